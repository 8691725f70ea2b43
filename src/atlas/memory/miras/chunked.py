"""A Miras variant in closed form: the tokens of a chunk in parallel, chunk after chunk.

This file cuts a sequence into chunks, takes gradients where each starts and closes it where it
ends; what happens in between, one matrix at a time, is `variants_paths`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atlas.memory.miras.architecture import Factors
from atlas.memory.miras.learner import decay_matrix
from atlas.memory.miras.variant import State, Tokens, Variant, advanced, read, start_weights
from atlas.memory.variants_paths import Before, Follow, Plan, follow_for


def variant_chunked(variant: Variant, tokens: Tokens, state: State) -> tuple[Tensor, State]:
    """Write and read a sequence, reading after writing.

    Args:
        variant: The rule.
        tokens: T tokens; T need not be a multiple of the chunk.
        state: From `fresh_state` or an earlier call; cutting a sequence anywhere changes nothing.

    Returns:
        Outputs [B, H, T, d_v] in the dtype of the values, and the state after the last token.
    """
    dtype, total, done = tokens.values.dtype, tokens.keys.shape[2], 0
    tokens = tokens.prepared(state.dual[0].dtype)
    outputs = [tokens.values[:, :, :0]]
    while done < total:
        stop = min(total, done + variant.chunk - state.offset)
        output, state = run_segment(variant, tokens.cut(done, stop), state, follow_for(variant))
        outputs.append(output)
        done = stop
    return torch.cat(outputs, 2).to(dtype), state


def run_segment(
    variant: Variant, tokens: Tokens, state: State, follow: Follow
) -> tuple[Tensor, State]:
    """Tokens that lie in one chunk."""
    logs = torch.log1p(-tokens.alpha)
    unrolled = variant.learner.unroll(tokens.eta, tokens.theta)
    plan = Plan(decay_matrix(logs), logs.cumsum(-1).exp(), *unrolled)
    before = map(Before, state.dual, state.momentum, state.start, state.anchor)
    factors = chunk_start_factors(variant, tokens, state)
    paths = [follow(variant, plan, *pair) for pair in zip(before, factors, strict=True)]
    output = variant.architecture.forward([path.reader for path in paths], tokens.queries)
    dual, momentum = tuple(path.dual for path in paths), tuple(path.momentum for path in paths)
    after = advanced(variant, state, dual, momentum, tokens.keys.shape[2])
    if after.offset == 0:
        # The last token of a chunk reads what closing it left.
        last = read(variant, after, tokens.queries[:, :, -1:])
        output = torch.cat([output[:, :, :-1], last], 2)
    return output, after


def chunk_start_factors(variant: Variant, tokens: Tokens, state: State) -> Factors:
    """(left, right) of every matrix's gradients at the weights the chunk started from."""

    def pull(answer: Tensor) -> Tensor:
        return variant.bias(answer - tokens.values, tokens.delta)

    return variant.architecture.factors(start_weights(variant, state), tokens.keys, pull)
