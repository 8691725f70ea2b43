"""Blocks on packed tokens, and the last block's shortcut, give what whole padded blocks give."""

import numpy as np
import pytest
import torch

from atlas.federation.adapters.lora_hooks import LoraChange, Projected
from atlas.federation.batching.packing import pack
from tests.backbones.conftest import CAUSALS, ENCODERS


def before_last(backbone, inputs):
    """The last block's input and context."""
    hidden = backbone.embed(inputs)
    context = backbone.context(hidden, inputs.mask)
    for index in range(backbone.depth - 1):
        hidden = backbone.block(index, hidden, context)
    return hidden, context


def packing_of(mask, rows=2):
    """The texts of a padded rectangle dealt to so many rows, as packed tokens."""
    lengths = mask.sum(1).numpy()
    offsets = np.cumsum(lengths) - lengths
    shape = (rows, len(lengths) // rows)
    everybody = np.ones(shape, dtype=bool)
    plan = pack(lengths.reshape(shape), everybody, torch.device("cpu"))
    return plan, plan.source(torch.from_numpy(offsets))


def changes_of(layers, alpha=8.0, rows=2):
    """What adapters add, the same in every row."""
    return {
        name: LoraChange(a.expand(rows, -1, -1), (b * alpha / len(a)).expand(rows, -1, -1))
        for name, (a, b) in layers.items()
    }


def both_ways(backbone, inputs, changes=None):
    """Features by way of the whole last block, and by the shortcut on packed tokens."""
    hidden, context = before_last(backbone, inputs)
    whole = backbone.features(backbone.block(backbone.depth - 1, hidden, context), inputs.mask)
    plan, source = packing_of(inputs.mask)
    tokens = hidden[inputs.mask][source]
    return whole, backbone.packed_features(tokens, plan.packing, context, changes)


@pytest.mark.parametrize("kind", ENCODERS + CAUSALS)
def test_packed_blocks_equal_padded_ones_in_values_and_gradients(kind, backbone_of, tools):
    backbone = backbone_of(kind, torch.float64)
    inputs = backbone.tokenize(tools.classify, tools.singles, 24)
    assert not inputs.mask.all()
    layers = {
        name: tuple(factor.double().requires_grad_() for factor in pair)
        for name, pair in tools.layers(backbone).items()
    }
    factors = [factor for pair in layers.values() for factor in pair]
    plan, source = packing_of(inputs.mask)
    assert len(plan.packing.pages.text) < len(inputs.mask)  # texts share pages
    with tools.adapted(backbone, layers, 8.0):
        whole = tools.hidden(backbone, inputs)[inputs.mask]
        tokens = backbone.embed(inputs)[inputs.mask][source]
        frame = plan.packing.frame(tokens)
        assert frame.shape == (*inputs.mask.shape, backbone.width)
        context = backbone.context(frame, plan.packing.mask)
        for index in range(backbone.depth):
            tokens = backbone.packed_block(index, tokens, plan.packing, context)
        ours = tokens[plan.packing.real]
        assert len(ours) == len(whole)
        torch.testing.assert_close(ours, whole, atol=1e-10, rtol=0)
        weights = torch.randn(whole.shape, generator=torch.Generator().manual_seed(3)).double()
        theirs = torch.autograd.grad((whole * weights).sum(), factors, retain_graph=True)
        found = torch.autograd.grad((ours * weights).sum(), factors)
    for mine, other in zip(found, theirs, strict=True):
        assert other.abs().max() > 0
        torch.testing.assert_close(mine, other, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("kind", ENCODERS + CAUSALS)
def test_known_projections_give_what_calling_the_modules_gives(kind, backbone_of, tools):
    backbone = backbone_of(kind, torch.float64)
    inputs = backbone.tokenize(tools.classify, tools.singles, 24)
    layers = {
        name: tuple(factor.double().requires_grad_() for factor in pair)
        for name, pair in tools.layers(backbone).items()
    }
    factors = [factor for pair in layers.values() for factor in pair]
    plan, source = packing_of(inputs.mask)
    tokens = backbone.embed(inputs)[inputs.mask][source]
    context = backbone.context(plan.packing.frame(tokens), plan.packing.mask)
    values = backbone.project(0, tokens)
    assert tuple(one.shape[-1] for one in values) == backbone.projections(0)
    assert all(backbone.projections(0))
    called = []
    modules = backbone.select(0, ["query", "key", "value"])
    for name in modules:
        backbone.linears(0)[name].register_forward_hook(lambda *_: called.append(1))
    with tools.adapted(backbone, layers, 8.0):
        theirs = backbone.packed_block(0, tokens, plan.packing, context)
        assert len(called) == len(modules)
        known = Projected(values, changes_of(layers))
        ours = backbone.packed_block(0, tokens, plan.packing, context, known)
        assert len(called) == len(modules), "what is known is not computed again"
        bare = Projected(values, {})
        without = backbone.packed_block(0, tokens, plan.packing, context, bare)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    assert (without - theirs).abs().max() > 1e-4, "adapters must be felt"
    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(3)).double()
    pairs = zip(
        *(
            torch.autograd.grad((out * weights).sum(), factors, materialize_grads=True)
            for out in (ours, theirs)
        ),
        strict=True,
    )
    for mine, other in pairs:
        torch.testing.assert_close(mine, other, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("kind", ENCODERS + CAUSALS)
@pytest.mark.parametrize("examples", ["singles", "pairs"])
@pytest.mark.parametrize("reading", ["whole", "folded"])
def test_values_and_gradients_equal_the_whole_block(kind, examples, reading, backbone_of, tools):
    backbone = backbone_of(kind, torch.float64)
    inputs = backbone.tokenize(tools.classify, getattr(tools, examples), 24)
    layers = {
        name: tuple(factor.double().requires_grad_() for factor in pair)
        for name, pair in tools.layers(backbone).items()
    }
    factors = [factor for pair in layers.values() for factor in pair]
    with tools.adapted(backbone, layers, 8.0):
        changes = changes_of(layers) if reading == "folded" else None
        whole, short = both_ways(backbone, inputs, changes)
        torch.testing.assert_close(short, whole, atol=1e-12, rtol=0)
        weights = torch.randn(whole.shape, generator=torch.Generator().manual_seed(3)).double()
        theirs = torch.autograd.grad((whole * weights).sum(), factors, retain_graph=True)
        ours = torch.autograd.grad((short * weights).sum(), factors)
    for mine, other in zip(ours, theirs, strict=True):
        assert other.abs().max() > 0
        torch.testing.assert_close(mine, other, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("kind", ENCODERS + CAUSALS)
def test_some_places_of_each_text_equal_those_of_the_whole_block(kind, backbone_of, tools):
    backbone = backbone_of(kind, torch.float64)
    inputs = backbone.tokenize(tools.classify, tools.singles, 24)
    hidden, context = before_last(backbone, inputs)
    hidden = hidden.detach().requires_grad_()
    whole = backbone.block(backbone.depth - 1, hidden, context)
    ends = inputs.mask.sum(1)
    at = torch.stack([ends - 1, torch.zeros_like(ends), ends // 2], 1)
    theirs = whole[torch.arange(len(at))[:, None], at]
    plan, source = packing_of(inputs.mask)
    ours = backbone.packed_places(hidden[inputs.mask][source], plan.packing, context, at)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(3)).double()
    (mine,) = torch.autograd.grad((ours * weights).sum(), hidden)
    (other,) = torch.autograd.grad((theirs * weights).sum(), hidden)
    # The norms of the Llama family work in float32 whatever they are given.
    close = 1e-10 if kind in ENCODERS else 1e-5
    torch.testing.assert_close(mine[inputs.mask], other[inputs.mask], atol=close, rtol=close)


@pytest.mark.parametrize("kind", [*ENCODERS, "llama"])
@pytest.mark.parametrize("reading", ["whole", "folded"])
def test_nothing_is_computed_where_nobody_reads(kind, reading, backbone_of, tools):
    backbone = backbone_of(kind)
    inputs = backbone.tokenize(tools.classify, tools.singles, 24)
    hidden, context = before_last(backbone, inputs)
    seen = {}
    last = backbone.depth - 1
    handles = [
        module.register_forward_hook(
            lambda module, args, out, name=name: seen.update({name: args[0].shape[:-1].numel()})
        )
        for name, module in backbone.linears(last).items()
    ]
    plan, source = packing_of(inputs.mask)
    tokens = hidden[inputs.mask][source]
    backbone.packed_features(tokens, plan.packing, context, {} if reading == "folded" else None)
    for handle in handles:
        handle.remove()
    whole = set(backbone.select(last, ["key", "value"]))
    # Positions that turn keys ask for keys; without them one query does.
    folded = reading == "folded" and kind in ENCODERS
    assert set(seen) == set(backbone.linears(last)) - (whole if folded else set())
    for name, places in seen.items():
        assert places == (tokens.shape[:-1].numel() if name in whole else len(inputs.ids))


@pytest.mark.parametrize("kind", [*ENCODERS, "llama"])
@pytest.mark.parametrize("changes", [None, {}], ids=["whole", "folded"])
def test_bf16_stays_close_to_the_whole_block(kind, changes, backbone_of, tools):
    backbone = backbone_of(kind, torch.bfloat16)
    inputs = backbone.tokenize(tools.classify, tools.singles, 24)
    whole, short = both_ways(backbone, inputs, changes)
    assert short.dtype == torch.bfloat16
    torch.testing.assert_close(short, whole, atol=0.05, rtol=0.05)
