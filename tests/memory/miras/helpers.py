"""Tokens, runs and comparisons that the tests of memory variants share."""

import torch

from atlas.memory.miras.architecture import ARCHITECTURES
from atlas.memory.miras.bias import BIASES
from atlas.memory.miras.learner import LEARNERS
from atlas.memory.miras.retention import RETENTIONS
from atlas.memory.miras.variant import Variant, VariantTokens, fresh_state

REGISTRIES = (BIASES, RETENTIONS, LEARNERS, ARCHITECTURES)
GATES = ("alpha", "eta", "theta", "delta")


def build(names, chunk):
    pieces = (registry[name]() for registry, name in zip(REGISTRIES, names, strict=True))
    return Variant(*pieces, chunk=chunk)


def make(variant, length, dtype=torch.float64, seed=0, step=0.2, batch=2):
    """Unit keys and queries [batch, 2, length, 4], values of width 3, gates, start weights."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(batch, 2, *shape, generator=draw, dtype=torch.float64).to(dtype)

    def uniform(low, high):
        drawn = torch.rand(batch, 2, length, generator=draw, dtype=torch.float64)
        return (low + (high - low) * drawn).to(dtype)

    queries, keys = (torch.nn.functional.normalize(normal(length, 4), dim=-1) for _ in range(2))
    gates = uniform(0.01, 0.3), uniform(0.05, 0.95), uniform(0, step), uniform(0.3, 1.5)
    tokens = VariantTokens(queries, keys, normal(length, 3), *gates)
    weights = tuple(normal(*shape) / 2 for shape in variant.architecture.shapes(4, 3, 5))
    return tokens, weights


def run_with_gradients(run, variant, tokens, weights):
    """Outputs and state, and the gradients of a fixed random functional of both.

    Forgetting leads to an anchor of its own, so that gradients of it are compared as well.
    """
    anchors = [w.flip(-1) / 2 for w in weights]
    inputs = [part.clone().requires_grad_() for part in (*tokens, *weights, *anchors)]
    first, second = len(tokens), len(tokens) + len(weights)
    start = fresh_state(tuple(inputs[first:second]), tuple(inputs[second:]))
    output, state = run(variant, VariantTokens(*inputs[:first]), start)
    results = [output, *state.dual, *state.momentum, *state.start]
    draw = torch.Generator().manual_seed(9)
    probes = (torch.randn(r.shape, generator=draw, dtype=torch.float64) for r in results)
    value = sum((r * p.to(r.dtype)).sum() for r, p in zip(results, probes, strict=True))
    gradients = torch.autograd.grad(value, inputs, allow_unused=True)
    filled = [
        torch.zeros_like(i) if g is None else g for i, g in zip(inputs, gradients, strict=True)
    ]
    places = range(len(weights))
    names = [
        *VariantTokens._fields,
        *(f"start{i}" for i in places),
        *(f"anchor{i}" for i in places),
    ]
    return [r.detach() for r in results], dict(zip(names, filled, strict=True))


def off_by(found, wanted):
    """Largest difference, relative to the largest entry."""
    scale = float(wanted.abs().max())
    return float((found - wanted).abs().max()) / (scale if scale > 0 else 1.0)


def assert_twins(runs, variant, tokens, weights, tolerance, gradient_tolerance):
    (one, one_grads), (two, two_grads) = (
        run_with_gradients(run, variant, tokens, weights) for run in runs
    )
    for found, wanted in zip(one, two, strict=True):
        assert torch.isfinite(wanted).all()
        assert off_by(found, wanted) <= tolerance
    for name, wanted in two_grads.items():
        assert off_by(one_grads[name], wanted) <= gradient_tolerance, name
