"""The last block's shortcut gives what the whole block gives."""

import pytest
import torch

ENCODERS = ["bert", "bert-bare", "distilbert", "mpnet"]
CAUSALS = ["llama", "qwen2", "qwen2-window", "qwen3", "mistral"]


def before_last(backbone, inputs):
    """The last block's input and context."""
    hidden = backbone.embed(inputs)
    context = backbone.context(hidden, inputs.mask)
    for index in range(backbone.depth - 1):
        hidden = backbone.block(index, hidden, context)
    return hidden, context


def both_ways(backbone, inputs):
    """Features by way of the whole last block, and by the shortcut."""
    hidden, context = before_last(backbone, inputs)
    whole = backbone.features(backbone.block(backbone.depth - 1, hidden, context), inputs.mask)
    return whole, backbone.last_features(hidden, inputs.mask, context)


@pytest.mark.parametrize("kind", ENCODERS + CAUSALS)
@pytest.mark.parametrize("examples", ["singles", "pairs"])
def test_values_and_gradients_equal_the_whole_block(kind, examples, backbone_of, tools):
    backbone = backbone_of(kind, torch.float64)
    inputs = backbone.tokenize(tools.classify, getattr(tools, examples), 24)
    layers = {
        name: tuple(factor.double().requires_grad_() for factor in pair)
        for name, pair in tools.layers(backbone).items()
    }
    factors = [factor for pair in layers.values() for factor in pair]
    with tools.adapted(backbone, layers, 8.0):
        whole, short = both_ways(backbone, inputs)
        torch.testing.assert_close(short, whole, atol=1e-12, rtol=0)
        weights = torch.randn(whole.shape, generator=torch.Generator().manual_seed(3)).double()
        theirs = torch.autograd.grad((whole * weights).sum(), factors, retain_graph=True)
        ours = torch.autograd.grad((short * weights).sum(), factors)
    for mine, other in zip(ours, theirs, strict=True):
        assert other.abs().max() > 0
        torch.testing.assert_close(mine, other, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("kind", [*ENCODERS, "llama"])
def test_no_feed_forward_where_nobody_reads(kind, backbone_of, tools):
    backbone = backbone_of(kind)
    inputs = backbone.tokenize(tools.classify, tools.singles, 24)
    hidden, context = before_last(backbone, inputs)
    seen = {}
    last = backbone.depth - 1
    handles = [
        module.register_forward_hook(
            lambda module, args, out, name=name: seen.update({name: args[0].shape[1]})
        )
        for name, module in backbone.linears(last).items()
    ]
    backbone.last_features(hidden, inputs.mask, context)
    for handle in handles:
        handle.remove()
    whole = set(backbone.select(last, ["key", "value"]))
    assert set(seen) == set(backbone.linears(last))
    for name, places in seen.items():
        assert places == (inputs.ids.shape[1] if name in whole else 1)


@pytest.mark.parametrize("kind", [*ENCODERS, "llama"])
def test_bf16_stays_close_to_the_whole_block(kind, backbone_of, tools):
    backbone = backbone_of(kind, torch.bfloat16)
    inputs = backbone.tokenize(tools.classify, tools.singles, 24)
    whole, short = both_ways(backbone, inputs)
    assert short.dtype == torch.bfloat16
    torch.testing.assert_close(short, whole, atol=0.05, rtol=0.05)
