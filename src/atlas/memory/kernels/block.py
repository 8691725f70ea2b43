"""One block of a chunked rule: read the state, write to it, and the gradients of both.

The state is M and S side by side, x = [M | S] of [b, d_k, 2 d_v], so that one product serves
both. Batch and heads are one dimension b throughout.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """Two factors per row, of M and of S: [b, rows, 1] each."""

    m: Tensor
    s: Tensor


class Ends(NamedTuple):
    """What a block leaves of the state: M' = mm M + ms S, S' = ss S; each [b, 1, 1]."""

    mm: Tensor
    ms: Tensor
    ss: Tensor


def combine(pair: Tensor, rows: Rows) -> Tensor:
    """[left | right] -> rows.m * left + rows.s * right."""
    left, right = pair.chunk(2, -1)
    return (left * rows.m).addcmul_(right, rows.s)


def side_by_side(x: Tensor, rows: Rows) -> Tensor:
    """Put [rows.m * x | rows.s * x] together: what `combine` becomes in the gradient."""
    width = x.shape[-1]
    out = x.new_empty(*x.shape[:-1], 2 * width)
    torch.mul(x, rows.m, out=out[..., :width])
    torch.mul(x, rows.s, out=out[..., width:])
    return out


def row_dots(x: Tensor, pair: Tensor) -> Rows:
    """Gradients of the factors in `combine`: x is what reaches its result."""
    left, right = pair.chunk(2, -1)
    return Rows((x * left).sum(-1), (x * right).sum(-1))


def leave(x: Tensor, ends: Ends) -> Tensor:
    """The state decayed over a block, before what the block writes is added."""
    width = x.shape[-1] // 2
    m, s = x[..., :width], x[..., width:]
    out = torch.empty_like(x)
    torch.mul(m, ends.mm, out=out[..., :width]).addcmul_(s, ends.ms)
    torch.mul(s, ends.ss, out=out[..., width:])
    return out


def leave_back(dx: Tensor, x: Tensor, ends: Ends) -> tuple[Tensor, Ends]:
    """Gradients of `leave`: of the state, and of mm, ms, ss, [b] each."""
    width = dx.shape[-1] // 2
    dm, ds = dx[..., :width], dx[..., width:]
    m, s = x[..., :width], x[..., width:]
    out = torch.empty_like(dx)
    torch.mul(dm, ends.mm, out=out[..., :width])
    torch.mul(ds, ends.ss, out=out[..., width:]).addcmul_(dm, ends.ms)
    return out, Ends(_dot(dm, m), _dot(dm, s), _dot(ds, s))


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).flatten(1).sum(1)
