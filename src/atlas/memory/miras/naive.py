"""A Miras variant token by token, as its definition reads: the twin of `variant_chunked`.

Gradients come from autograd at the weights the chunk started from, so this file knows nothing of
outer products; decay, momentum and retention are applied one token at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atlas.memory.miras.architecture import MemoryWeights
from atlas.memory.miras.variant import (
    Variant,
    VariantState,
    VariantTokens,
    advanced,
    read,
    start_weights,
)


def variant_naive(
    variant: Variant, tokens: VariantTokens, state: VariantState
) -> tuple[Tensor, VariantState]:
    """Same arguments and results as `variant_chunked`."""
    dtype = tokens.values.dtype
    tokens = tokens.prepared(state.dual[0].dtype)
    outputs = [tokens.values[:, :, :0]]
    for t in range(tokens.keys.shape[2]):
        token = tokens.cut(t, t + 1)
        state = written(variant, token, state)
        outputs.append(read(variant, state, token.queries))
    return torch.cat(outputs, 2).to(dtype), state


def written(variant: Variant, token: VariantTokens, state: VariantState) -> VariantState:
    """The state after one token."""
    alpha, eta, theta = (gate[..., None] for gate in (token.alpha, token.eta, token.theta))
    gradients = autograd_gradients(variant, token, start_weights(variant, state))
    steps = [
        variant.learner.step(s, g, eta, theta)
        for s, g in zip(state.momentum, gradients, strict=True)
    ]
    momentum = tuple(s for s, _ in steps)
    dual = tuple(
        (1 - alpha) * a + alpha * anchor + increment
        for a, anchor, (_, increment) in zip(state.dual, state.anchor, steps, strict=True)
    )
    return advanced(variant, state, dual, momentum, 1)


def autograd_gradients(
    variant: Variant, token: VariantTokens, weights: MemoryWeights
) -> MemoryWeights:
    """The gradient of the token's loss with respect to each matrix, differentiable again."""
    with torch.enable_grad():
        seen = tuple(w if w.requires_grad else w.clone().requires_grad_() for w in weights)
        answer = variant.architecture.apply(seen, token.keys)
        pull = variant.bias(answer - token.values, token.delta)
        return torch.autograd.grad(answer, seen, grad_outputs=pull, create_graph=True)
