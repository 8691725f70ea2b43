"""Compiled blocks give what plain ones give, and are really compiled."""

import pytest
import torch
from torch._dynamo.utils import counters

from atlas.backbones import compiled
from atlas.backbones.load import load_backbone
from atlas.build.models import find_model
from atlas.errors import InputError
from atlas.jobs.runner import start_run
from atlas.runs.events import read_events
from tests.backbones.test_backbone_readout import packing_of
from tests.helpers import make_config

COMPILERS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


@pytest.fixture(autouse=True)
def nothing_compiled_yet():
    torch._dynamo.reset()
    counters.clear()


def packed_output(backbone, inputs):
    """The last block's output on packed tokens, and its gradient at the first block's input."""
    plan, source = packing_of(inputs.mask)
    begun = backbone.embed(inputs)[inputs.mask][source].requires_grad_()
    context = backbone.context(plan.packing.frame(begun), plan.packing.mask)
    tokens = begun
    for index in range(backbone.depth):
        tokens = backbone.packed_block(index, tokens, plan.packing, context)
    tokens = tokens * plan.packing.real[..., None]
    return tokens, torch.autograd.grad(tokens.square().sum(), begun)[0]


@pytest.mark.parametrize("kind", ["bert", "distilbert", "mpnet", "llama", "qwen3"])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_values_and_gradients_are_those_of_plain_blocks(kind, compiler, checkpoint, tools):
    folder = str(checkpoint(kind))
    plain, other = (
        load_backbone(folder, dtype=torch.float64, compiler=one) for one in (None, compiler)
    )
    assert plain is not other
    # The norms of the Llama family work in float32 whatever they are given.
    close = {"atol": 1e-4, "rtol": 1e-4} if plain.can_generate else {"atol": 1e-10, "rtol": 1e-10}
    for length in (24, 9):
        inputs = plain.tokenize(tools.classify, tools.singles, length)
        for wanted, found in zip(
            packed_output(plain, inputs), packed_output(other, inputs), strict=True
        ):
            torch.testing.assert_close(found, wanted, **close)
    # Blocks and lengths share graphs; none of these would mean that nothing was compiled.
    assert 1 <= counters["stats"]["unique_graphs"] <= 2 * plain.depth


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_learns_the_same(threads, tmp_path):
    losses = {}
    for compiler in (None, "aot_eager"):
        config = make_config(threads=threads, strategy="fedavg", backbone={"compile": compiler})
        run = start_run(config, tmp_path / str(compiler))
        events = read_events(run.folder.events)
        losses[compiler] = [e["loss"] for e in events if e["event"] == "fitted"]
        assert bool(counters["stats"]["unique_graphs"]) == bool(compiler)
    assert losses["aot_eager"] == pytest.approx(losses[None], abs=1e-5)
    assert len(set(losses[None])) > 2


def test_what_cannot_be_compiled_is_refused(checkpoint, monkeypatch):
    with pytest.raises(InputError, match="blocks of atlas run as a whole; allowed: null"):
        load_backbone(str(checkpoint("atlas")), compiler="aot_eager")
    adapter = {"modules": ["query", "up"]}
    with pytest.raises(InputError, match="intermediate.dense is compiled.*allowed: query, key, va"):
        find_model(make_config(backbone={"compile": "aot_eager"}, adapter=adapter), "tiny")
    find_model(make_config(adapter=adapter), "tiny")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    with pytest.raises(InputError, match=r"needs a C\+\+ compiler.*allowed: aot_eager, null"):
        load_backbone(str(checkpoint("bert")), dtype=torch.bfloat16, compiler="inductor")
