"""A common gauge for low-rank factors (FedRot): turned onto each other before A and B are averaged.

(B T^T)(T A) is B A for every orthogonal T, so two clients that do the same may hold factors that
are rotated or reflected against each other, and the mean of their A times the mean of their B is
then neither client's change. Here every client gets the T, reflections among them, that brings its
A and scaled B together nearest a reference (orthogonal Procrustes). No client's function changes.

The reference belongs to one mixture, that is to one row of W, and is found from the clients in it
alone: their weighted mean, turned and taken again `SWEEPS` times (generalised Procrustes), begun
at one of them. A client of rank r is turned within its own r slots, onto the reference's first r:
ranks and padding stay. It begins at a client of the largest rank, in that client's own gauge: all
start with the same rows of A, so equal slots mean the same where nothing has turned them.

A mixture comes back in the receiver's own gauge, turned as it would be turned to the reference and
back, so that W -> I ends at the factors that the client holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from atlas.ops.lowrank.factors import Layer, rank_mask

SWEEPS = 3
"""How often the reference is replaced by the mean of what was turned onto it."""

UNDECIDED = 1e-9
"""Share of the identity in what a turn is found from: where factors say nothing, none is made."""

TOGETHER = 1 << 21
"""Numbers turned at a time."""


class CommonGauge(NamedTuple):
    """What the clients of one mixture are turned onto; float64.

    Attributes:
        reference: Rows of A beside columns of the scaled and balanced B, [R, d_in + d_out].
        balance: What B is multiplied with, so that both factors count alike.
    """

    reference: Tensor
    balance: Tensor


def polar(matrices: Tensor) -> Tensor:
    """The T of the shape of M [..., r, d], rows orthonormal (r <= d), nearest to M in direction.

    It is the one for which the trace of T^T M is largest.
    """
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    turned: Tensor = left @ right
    return turned


def joint_factors(layer: Layer, balance: Tensor) -> Tensor:
    """A beside the scaled and balanced B of every client, float64 [n, R, d_in + d_out]."""
    strength = (layer.scales.to(torch.float64) * balance)[:, None, None]
    columns = layer.b.to(torch.float64).mT * strength
    return torch.cat([layer.a.to(torch.float64), columns], dim=2)


def find_turns(reference: Tensor, joint: Tensor, ranks: Tensor) -> Tensor:
    """The orthogonal T of every client that brings T F nearest the reference, in its own slots.

    Args:
        reference: [R, d].
        joint: F of every client [n, R, d], zero beyond each rank.
        ranks: Integer [n].

    Returns:
        [n, R, R], zero beyond each rank.
    """
    across = reference @ joint.mT
    turns = torch.zeros_like(across)
    for rank in torch.unique(ranks).tolist():
        some = torch.nonzero(ranks == rank).flatten()
        part = across[some, :rank, :rank]
        size = torch.linalg.matrix_norm(part)[:, None, None]
        unit = torch.eye(rank, dtype=part.dtype, device=part.device)
        turns[some, :rank, :rank] = polar(
            part + torch.where(size > 0, UNDECIDED * size, 1.0) * unit
        )
    return turns


def common_gauge(layer: Layer, shares: Tensor) -> CommonGauge:
    """The reference of one mixture, whatever the order of its clients.

    Args:
        layer: The clients in the mixture, m of them.
        shares: What each counts in it, all above zero [m].
    """
    shares = shares.to(torch.float64)
    sizes_a, sizes_b = _squares(layer)
    in_a, in_b = shares @ sizes_a, shares @ sizes_b
    balance = torch.where((in_a > 0) & (in_b > 0), in_a / in_b, torch.ones_like(in_a)).sqrt()
    strength = shares * (sizes_a + balance.square() * sizes_b).sqrt()
    # Among those of the largest rank: a smaller one would leave slots without a reference.
    start = int(torch.where(layer.ranks == layer.ranks.max(), strength, -1.0).argmax())
    reference = joint_factors(_of(layer, slice(start, start + 1)), balance)[0]
    for _ in range(SWEEPS):
        reference = _turned_mean(layer, shares, CommonGauge(reference, balance))
    return CommonGauge(reference, balance)


def mix_turned(layer: Layer, heard: Tensor, shares: Tensor, receivers: Tensor) -> Layer:
    """One mixture of factors in a common gauge, for all who receive it.

    Args:
        layer: Of n clients.
        heard: Who is in the mixture [m].
        shares: What each counts [m]. A client that lacks a slot counts as zero there.
        receivers: Who gets it [c].

    Returns:
        The receivers with new factors: cut to their ranks, in their own gauge and dtype.
    """
    mixed = _of(layer, heard)
    gauge = common_gauge(mixed, shares)
    d_in, total = layer.a.shape[2], torch.zeros_like(gauge.reference)
    for some, joint, turns in _turned(mixed, gauge):
        total += torch.einsum("m,mrd->rd", shares[some].to(torch.float64), turns @ joint)
    made = _of(layer, receivers)
    new_a, new_b = torch.zeros_like(made.a), torch.zeros_like(made.b)
    for some, _, turns in _turned(made, gauge):
        # A turn is zero beyond the client's rank, so that turning back also cuts.
        back = turns.mT @ total
        strength = (gauge.balance * made.scales[some])[:, None, None]
        new_a[some] = back[..., :d_in].to(new_a.dtype)
        new_b[some] = (back[..., d_in:] / strength).mT.to(new_b.dtype)
    return made._replace(a=new_a, b=new_b)


def gauge_residuals(layer: Layer, shares: Tensor) -> tuple[Tensor, Tensor]:
    """How far the clients of one mixture are from its reference, relative to their own size.

    Args:
        layer: The clients in the mixture.
        shares: What each counts, all above zero [m].

    Returns:
        ||F - reference|| / ||F|| of every client, before it is turned and after, each [m].
    """
    gauge, before, after = common_gauge(layer, shares), [], []
    for some, joint, turns in _turned(layer, gauge):
        wanted = gauge.reference * rank_mask(layer.ranks[some], joint.shape[1])[:, :, None]
        size = torch.linalg.matrix_norm(joint).clamp_min(torch.finfo(joint.dtype).tiny)
        before.append(torch.linalg.matrix_norm(joint - wanted) / size)
        after.append(torch.linalg.matrix_norm(turns @ joint - wanted) / size)
    return torch.cat(before), torch.cat(after)


def _turned_mean(layer: Layer, shares: Tensor, gauge: CommonGauge) -> Tensor:
    """The weighted mean of all factors turned to a reference, each slot over those who have it."""
    total = torch.zeros_like(gauge.reference)
    for some, joint, turns in _turned(layer, gauge):
        total += torch.einsum("m,mrd->rd", shares[some], turns @ joint)
    held = shares @ rank_mask(layer.ranks, total.shape[0]).to(shares.dtype)
    return total / torch.where(held > 0, held, 1.0)[:, None]


def _turned(layer: Layer, gauge: CommonGauge) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Joint factors and turns of a layer's clients, as many at a time as `TOGETHER` says."""
    for some in _portions(layer):
        part = _of(layer, some)
        joint = joint_factors(part, gauge.balance)
        yield some, joint, find_turns(gauge.reference, joint, part.ranks)


def _squares(layer: Layer) -> tuple[Tensor, Tensor]:
    """The squared norms of every client's A and of its scaled B."""
    parts = [_of(layer, some) for some in _portions(layer)]
    sizes_a = [part.a.to(torch.float64).square().sum((1, 2)) for part in parts]
    sizes_b = [part.b.to(torch.float64).square().sum((1, 2)) for part in parts]
    return torch.cat(sizes_a), torch.cat(sizes_b) * layer.scales.to(torch.float64).square()


def _portions(layer: Layer) -> Iterator[slice]:
    clients, largest, d_in = layer.a.shape
    size = max(1, TOGETHER // (largest * (d_in + layer.b.shape[1])))
    return (slice(start, start + size) for start in range(0, clients, size))


def _of(layer: Layer, some: slice | Tensor) -> Layer:
    return Layer(*(value[some] for value in layer))
