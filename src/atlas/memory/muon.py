"""The chunk-start rule with orthogonalised momentum (Newton-Schulz, as in Muon and ATLAS).

M_t = keep_t M_{t-1} + added_t NS(S_t) is not linear in what is written, so no short form carries
it: momenta of all tokens of a block are built, orthogonalised together, and added up. Memory grows
with C * d_k * d_v, hence small blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atlas.memory.kernels.chunk_start import Shape
from atlas.memory.kernels.omega_window import band
from atlas.memory.rules.rule import Steps
from atlas.ops.newton_schulz import newton_schulz


def muon_scan(
    rows: tuple[Tensor, Tensor, Tensor],
    steps: Steps,
    x: Tensor,
    start: Tensor,
    shape: Shape,
) -> tuple[Tensor, Tensor]:
    """Walk n blocks; arguments and results as in `start.start_scan`, with steps [n, b, C]."""
    outputs = []
    memory, momentum = x.chunk(2, -1)
    for i, (queries, keys, values) in enumerate(zip(*rows, strict=True)):
        if shape.begins_chunk(i):
            start = memory
        own = Steps(*(part[i] for part in steps))
        errors = keys @ start - values
        written = (keys[..., :, None] * errors[..., None, :]).flatten(-2)
        momenta = _momenta(written, momentum, own)
        memories = _memories(newton_schulz(momenta), memory, own)
        read = memories[:, shape.first_read : shape.first_read + queries.shape[1]]
        outputs.append((queries[:, :, None] @ read)[:, :, 0])
        memory, momentum = memories[:, -1], momenta[:, -1]
    return torch.stack(outputs), torch.cat([memory, momentum], -1)


def _momenta(written: Tensor, momentum: Tensor, steps: Steps) -> Tensor:
    """S_1 .. S_C [b, C, d_k, d_v] from writes [b, W, d_k * d_v] and S_0."""
    between, since = _products(steps.carry)
    factors = (between * steps.step[:, None, :]) @ band(steps.gamma)
    carried = since[..., None, None] * momentum[:, None]
    return carried - (factors @ written).view_as(carried)


def _memories(added: Tensor, memory: Tensor, steps: Steps) -> Tensor:
    """M_0 .. M_C [b, C + 1, d_k, d_v] from what each token adds and M_0."""
    between, since = _products(steps.keep)
    sums = ((between * steps.added[:, None, :]) @ added.flatten(-2)).view_as(added)
    return torch.cat([memory[:, None], since[..., None, None] * memory[:, None] + sums], 1)


def _products(gate: Tensor) -> tuple[Tensor, Tensor]:
    """As `table.spread`, for autograd to follow."""
    size = gate.shape[-1]
    past = torch.ones(size, size, dtype=torch.bool, device=gate.device).tril(-1)
    between = torch.where(past, gate[..., :, None], 1.0).cumprod(-2).tril()
    return between, between[..., 0] * gate[..., :1]
