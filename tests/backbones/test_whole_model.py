"""Models that no row of the table describes run as a whole, and give what transformers gives."""

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from atlas.backbones.export import export_adapter, load_adapter, merge_adapter
from atlas.backbones.whole_model import WholeModelBackbone
from atlas.build.federation import assemble
from atlas.errors import InputError
from atlas.federation.adapters.lora_hooks import LoraChange
from atlas.federation.batching.packing import pack
from atlas.federation.rounds import run_round
from atlas.federation.training.evaluate import Limits
from tests.backbones.conftest import OTHER_CAUSALS, OTHER_ENCODERS
from tests.engines.local.test_causal import ECHO, client, free
from tests.helpers import make_client, make_config

ALPHA = 8.0
OTHERS = OTHER_ENCODERS + OTHER_CAUSALS


def adapters(backbone, tools, rows):
    """Factors of so many rows by module, as leaves."""
    found = [tools.layers(backbone, seed) for seed in range(1, rows + 1)]
    return [
        {name: tuple(f.double().requires_grad_() for f in pair) for name, pair in one.items()}
        for one in found
    ]


def hooked(backbone, rows):
    """Hooks that add every row's own change, as training hangs them on."""
    handles = []
    for index in range(backbone.depth):
        for name, module in backbone.linears(index).items():
            a = torch.stack([row[name][0] for row in rows])
            b = torch.stack([row[name][1] * (ALPHA / len(row[name][0])) for row in rows])
            handles.append(module.register_forward_hook(LoraChange(a, b).hook()))
    return handles


def packed(backbone, inputs, rows):
    """Packed ids of texts dealt to rows, and where they are."""
    lengths = inputs.mask.sum(1).numpy()
    offsets = torch.from_numpy(np.cumsum(lengths) - lengths)
    shape = (rows, len(lengths) // rows)
    plan = pack(lengths.reshape(shape), np.ones(shape, dtype=bool), torch.device("cpu"))
    return backbone.embed(inputs)[inputs.mask][plan.source(offsets)], plan.packing


def peft_model(model, backbone, layers):
    """transformers' own model with PEFT's adapters of these factors."""
    start = f"{backbone.family.prefix}."
    ranks = {start + name: len(a) for name, (a, _) in layers.items()}
    config = LoraConfig(r=1, lora_alpha=ALPHA, target_modules=list(ranks), rank_pattern=ranks)
    wrapped = get_peft_model(model, config).double().eval()
    own = dict(wrapped.named_parameters())
    found = []
    for name, pair in layers.items():
        for factor, letter in zip(pair, "AB", strict=True):
            there = own[f"base_model.model.{start}{name}.lora_{letter}.default.weight"]
            there.data.copy_(factor)
            found.append(there)
    return wrapped, found


def whole_logits(model, backbone, inputs):
    """The logits of each text by itself, so without padding."""
    found = []
    for ids, types, mask in zip(inputs.ids, inputs.types, inputs.mask, strict=True):
        extra = {"token_type_ids": types[mask][None]} if backbone.reads_segments else {}
        found.append(model(input_ids=ids[mask][None], **extra).logits[0])
    return found


def check_gradients(ours, theirs, factors, others):
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=0)
    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(3)).double()
    mine = torch.autograd.grad((ours * weights).sum(), factors, retain_graph=True)
    wanted = torch.autograd.grad((theirs * weights).sum(), others)
    for one, other in zip(mine, wanted, strict=True):
        assert other.abs().max() > 0
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("examples", ["singles", "pairs"])
def test_class_logits_and_gradients_of_every_row_are_those_of_peft(
    kind, examples, backbone_of, checkpoint, tools
):
    backbone = backbone_of(kind, torch.float64)
    assert isinstance(backbone, WholeModelBackbone)
    inputs = backbone.tokenize(tools.classify, getattr(tools, examples), 24)
    assert not inputs.mask.all()
    head = {name: value.double() for name, value in tools.head(backbone, 3).items()}
    rows = adapters(backbone, tools, 2)
    hidden, packing = packed(backbone, inputs, 2)
    handles = hooked(backbone, rows)
    features = backbone.packed_features(hidden, packing, packing.mask, None)
    for handle in handles:
        handle.remove()
    for row, layers in enumerate(rows):
        model = AutoModelForSequenceClassification.from_pretrained(
            checkpoint(kind), num_labels=3, dtype=torch.float64, pad_token_id=0
        )
        tools.put(model, head)
        model, others = peft_model(model, backbone, layers)
        some = slice(row * 2, row * 2 + 2)
        theirs = torch.stack(whole_logits(model, backbone, inputs)[some])
        ours = tools.head_on(backbone, features[some], head)
        factors = [f for name in layers for f in layers[name]]
        check_gradients(ours, theirs, factors, others)


@pytest.mark.parametrize("kind", OTHER_CAUSALS)
def test_token_losses_and_gradients_are_those_of_peft(kind, backbone_of, checkpoint, tools):
    backbone = backbone_of(kind, torch.float64)
    inputs = backbone.tokenize(tools.answer, tools.questions, 48)
    rows = adapters(backbone, tools, 2)
    hidden, packing = packed(backbone, inputs, 2)
    at = inputs.mask.sum(1)[:, None] - torch.tensor([[1, 2]])
    handles = hooked(backbone, rows)
    final = backbone.packed_places(hidden, packing, packing.mask, at)
    for handle in handles:
        handle.remove()
    targets = inputs.targets.gather(1, at)
    losses = backbone.vocabulary_losses(final.flatten(0, 1), targets.flatten()).reshape(2, 2)
    for row, layers in enumerate(rows):
        base = AutoModelForCausalLM.from_pretrained(checkpoint(kind), dtype=torch.float64)
        model, others = peft_model(base, backbone, layers)
        logits = whole_logits(model, backbone, inputs)[row][at[row]]
        theirs = torch.nn.functional.cross_entropy(logits, targets[row], reduction="none")
        factors = [f for name in layers for f in layers[name]]
        check_gradients(losses[row], theirs, factors, others)


@pytest.mark.parametrize("kind", OTHERS)
def test_a_federation_of_three_trains_and_prints(kind, checkpoint):
    clients = [make_client(name, seed=seed) for seed, name in enumerate(("a", "b"))]
    causal, blocks = kind in OTHER_CAUSALS, 1 if kind == "albert" else 2
    clients.append(client("c", ECHO, free, 1) if causal else make_client("c", seed=7))
    config = make_config(
        strategy="atlas",
        backbone={"name": str(checkpoint(kind)), "max_length": 40, "max_new_tokens": 4},
        adapter={"modules": ["query", "value"], "blocks": blocks},
        fingerprint={"blocks": blocks},
        train={"lr": 0.01, "epochs": 3},
    )
    federation = assemble(config, clients)
    backbone = federation.engine.groups[0].model.backbone
    before, losses = backbone.fingerprint(), []
    for _ in range(3):
        run_round(
            federation.plan,
            federation.state,
            federation.engine,
            lambda event, fields: losses.append(fields["loss"]) if event == "fitted" else None,
        )
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    assert backbone.fingerprint() == before
    assert all(len(m._forward_hooks) == 0 for m in backbone.model.modules())


@pytest.mark.parametrize("kind", OTHERS)
def test_exports_and_merged_models_give_the_same_class_logits(
    kind, backbone_of, checkpoint, tools, tmp_path
):
    backbone = backbone_of(kind)
    layers, head = tools.layers(backbone), tools.head(backbone, 3)
    folder = tmp_path / "adapter"
    export_adapter(
        folder, backbone=backbone, task=tools.classify, layers=layers, alpha=ALPHA, head=head,
        card={}, limits=Limits(24, 8),
    )  # fmt: skip
    inputs = backbone.tokenize(tools.classify, tools.pairs, 24)
    with tools.adapted(backbone, layers, ALPHA), torch.no_grad():
        ours = tools.logits(backbone, inputs, head)
    base = AutoModelForSequenceClassification.from_pretrained(
        checkpoint(kind), num_labels=3, pad_token_id=0
    )
    model = PeftModel.from_pretrained(base, folder).eval()
    theirs = torch.stack(whole_logits(model, backbone, inputs))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    merge_adapter(tmp_path / "merged", backbone=backbone, adapter=load_adapter(folder))
    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged").eval()
    theirs = torch.stack(whole_logits(merged, backbone, inputs))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["pythia", "gemma2"])
def test_generation_equals_transformers(kind, backbone_of, checkpoint):
    backbone = backbone_of(kind)
    model = AutoModelForCausalLM.from_pretrained(checkpoint(kind)).eval()
    ids = torch.tensor([[1, *backbone.tokenizer("once", add_special_tokens=False).input_ids]])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6)
    wanted = backbone.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
    assert backbone.generate(["once", "and a longer one"], 6)[0] == wanted


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": {"point": 1}}, "runs as a whole"),
        (
            {"ranks": {"method": "uniform", "budget": 100}},
            "is not known, so neither can be planned",
        ),
        ({"compile": "aot_eager"}, "run as a whole"),
    ],
)
def test_what_needs_blocks_is_refused(settings, message, checkpoint):
    backbone = {"name": str(checkpoint("electra"))}
    if "compile" in settings:
        backbone, settings = backbone | settings, {}
    with pytest.raises(InputError, match=message):
        assemble(make_config(backbone=backbone, **settings), [make_client("one")])
