"""Named devices whose memory decides ranks layer by layer, on models of real sizes.

A model as large as BERT-base has made-up weights and is not trained: one of its blocks is measured,
the rest is arithmetic.
"""

import pytest
import torch
from transformers import BertConfig

from atlas.backbones.bert import Bert
from atlas.backbones.load import build_tiny
from atlas.backbones.transformer import TransformerBackbone
from atlas.config.load import load_federation
from atlas.config.plan import MB, PROFILES, RankSettings, SplitSettings
from atlas.federation.adapters.adapter import Layout, Member
from atlas.federation.batching.forward import Model
from atlas.federation.capacity.block_bytes import LargestBatch, StepMeter
from atlas.federation.capacity.cost import block_of, importance_of
from atlas.federation.capacity.grant import Site, grant
from atlas.federation.capacity.points import split_point

MODULES = ["query", "key", "value", "output", "up", "down"]
CHOICES = [4, 8, 16, 32, 64]


@pytest.fixture(scope="module")
def meter():
    """BERT-base with adapters on all linear layers; what its weights are does not matter."""
    with torch.device("meta"):
        model = Bert(BertConfig())
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.01)
        for buffer in model.buffers():
            buffer.copy_(torch.arange(buffer.numel()).reshape(buffer.shape))
    backbone = TransformerBackbone(
        model, build_tiny(torch.float32)[1], name="base", source="base", device=torch.device("cpu")
    )
    modules = [m for block in range(12) for m in backbone.select(block, MODULES)]
    linears = {name: one for block in range(12) for name, one in backbone.linears(block).items()}
    widths = tuple((linears[m].in_features, linears[m].out_features) for m in modules)
    layout = Layout("base", tuple(modules), widths, backbone.head_layers, 16.0)
    return StepMeter(Model(backbone, layout, 0))


def norms_of(modules, tilt):
    """Gradients that fall or rise with depth."""
    return {"label": {m: 1.0 + tilt * (block_of(m) - 5.5) / 6 for m in modules}}


def test_a_laptop_shares_out_its_memory_over_the_layers_of_a_bert_base(meter):
    member = Member("one", (8,) * len(meter.model.layout.modules), ("no", "yes"))
    site = Site("laptop", PROFILES["laptop"], meter, member, 16)
    modules = site.layout.modules
    need = site.need(LargestBatch((160,) * 16))
    assert 400 * MB < need.weights < 440 * MB
    # The smallest ranks fit and the largest do not: the profile binds.
    assert need.total([4] * len(modules)) < 2048 * MB < need.total([64] * len(modules))
    settings = RankSettings(method="importance", choices=CHOICES, ceilings="ignored")
    low, high = (
        grant("one", site, need, settings, importance_of(norms_of(modules, t), modules, 12, 0.0), 1)
        for t in (-0.9, 0.9)
    )
    easy = grant("one", site, need, settings, low.importance, 0.1)
    for found in (low, high, easy):
        assert found.used <= found.budget == 2048 * MB
        assert len(set(found.ranks)) > 1
    top = [i for i, module in enumerate(modules) if block_of(module) >= 6]
    assert sum(high.ranks[i] for i in top) > sum(low.ranks[i] for i in top)
    assert sum(easy.ranks) < sum(low.ranks)


def test_what_fills_a_laptop_leaves_a_small_gpu_room_for_the_largest_ranks(meter):
    member = Member("one", (8,) * len(meter.model.layout.modules), ("no", "yes"))
    site = Site("gpu-8gb", PROFILES["gpu-8gb"], meter, member, 16)
    need = site.need(LargestBatch((160,) * 16))
    settings = RankSettings(method="importance", choices=CHOICES)
    found = grant("one", site, need, settings, [1.0] * len(site.layout.modules), 1.0)
    assert set(found.ranks) == {64}


def test_a_phone_shares_out_its_memory_over_as_many_blocks_as_it_holds(meter):
    member = Member("one", (8,) * len(meter.model.layout.modules), ("no", "yes"))
    site, texts = Site("phone", PROFILES["phone"], meter, member, 16), LargestBatch((64,) * 4)
    modules = site.layout.modules
    flat = importance_of(norms_of(modules, 0.9), modules, 12, 0.0)
    preset = load_federation("devices", [])
    ranks = preset.ranks.model_copy(update={"ceilings": "ignored"})
    point, saving = (
        split_point("one", site, ranks, split, texts, flat)
        for split in (preset.split, SplitSettings(point="auto"))
    )
    assert saving < point < 12, "by default memory is saved, and with it blocks"
    found = grant("one", site, site.need(texts, point), ranks, flat, 1.0)
    assert found.used <= found.budget == 256 * MB < site.need(texts, point + 1).fixed
    mine = {rank for rank, m in zip(found.ranks, modules, strict=True) if block_of(m) < point}
    assert len(mine) > 1, "its budget binds in its ranks, too"


def test_the_preset_of_devices_deals_named_profiles_and_ignores_ceilings():
    config = load_federation("devices", [])
    assert config.ranks.devices == ["phone", "laptop", "gpu-8gb"]
    assert set(config.ranks.devices) <= set(PROFILES) and not config.devices
    assert config.ranks.ceilings == "ignored" and config.split.point == "auto"
