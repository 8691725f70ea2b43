"""What a cut removes from a client's mixture, kept for the next one (error feedback).

With M_k the mixture of client k before it is cut and H_k what the client then holds, the residual
is e_k = M_k - H_k. The next mixture is made of H_l + (training) + f e_l instead of H_l + (training)
alone: with f = 1 that is M_l + (training), as if nothing had ever been cut.

A client that takes a share s of its mixture has (1 - s)(T_k + f e_k) + s M_k, with T_k what it
trained; with s = 0 that leaves the residual f e_k. Residuals are low-rank too, cut to a rank of the
server's: what even that removes is told, and lost.

Of a mixture that was taken whole, a client of rank r and a residual of rank S can hold no more than
the r + S leading directions. Of one that was taken in part all of it matters: what the client kept
of its own overlaps with every direction of the mixture, for it is one of its sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from atlas.ops.lowrank.factors import Layer, squared_norms
from atlas.ops.lowrank.leading import Exact, leading_of_slots

TOGETHER = 1 << 21
"""Numbers of one factor gathered at a time."""


class LeftOver(NamedTuple):
    """Residuals of c clients, and energies (squared norms), float64.

    Attributes:
        a: [c, S, d_in], S the server's rank.
        b: [c, d_out, S]; the residual is b @ a.
        whole: Energy of what clients would hold uncut [c].
        residual: Energy of what they do not hold of it [c].
        lost: The part of that which the server's rank cuts away [c].
    """

    a: Tensor
    b: Tensor
    whole: Tensor
    residual: Tensor
    lost: Tensor


class Shared(NamedTuple):
    """What c clients had and took in one module.

    Attributes:
        mixtures: Before they were cut; with all their directions if anybody took less than all.
        which: The one that each client picked [c].
        shares: How much of it each took [c], above 0.
        trained: What they had.
        residual: What earlier cuts removed from that.
        held: What they hold now.
    """

    mixtures: Exact
    which: Tensor
    shares: Tensor
    trained: Layer
    residual: Layer
    held: Layer


def left_over(taken: Shared, feedback: float, rank: int) -> LeftOver:
    """The residuals of clients that took something of their mixtures.

    Args:
        taken: What they had and took.
        feedback: f.
        rank: The server's.
    """
    held, shares = taken.held, taken.shares
    slots = taken.mixtures.leading.sizes.shape[1] + held.a.shape[1]
    some_left = bool((shares < 1).any())
    if some_left:
        slots += taken.trained.a.shape[1] + taken.residual.a.shape[1]
    size = max(1, TOGETHER // (slots * max(held.a.shape[2], held.b.shape[1])))
    parts = [
        _left_over(_rows(taken, some), feedback, rank, some_left)
        for some in torch.split(torch.arange(len(shares), device=held.a.device), size)
    ]
    return LeftOver(*(torch.cat(values) for values in zip(*parts, strict=True)))


def _rows(taken: Shared, some: Tensor) -> Shared:
    layers = (Layer(*(value[some] for value in layer)) for layer in taken[3:])
    return Shared(taken.mixtures, taken.which[some], taken.shares[some], *layers)


def _left_over(taken: Shared, feedback: float, rank: int, some_left: bool) -> LeftOver:
    (mixtures, energy), which, share = taken.mixtures, taken.which, taken.shares.double()
    sources = [
        (mixtures.right[which].mT, mixtures.image[which].mT, share),
        _slots(taken.held, -torch.ones_like(share)),
    ]
    if some_left:
        sources.append(_slots(taken.trained, 1 - share))
        sources.append(_slots(taken.residual, (1 - share) * feedback))
    rows, columns, strength = _together(sources)
    found = leading_of_slots(rows, columns, strength, rank)
    # Taken whole, what a mixture has beyond its leading part is orthogonal to all that is here, and
    # out of anybody's reach; taken in part, nothing is beyond.
    beyond = (energy - mixtures.image.square().sum((1, 2))).clamp_min(0.0)[which] * share.square()
    whole = _energy(*_together([sources[0], *sources[2:]])) + beyond
    residual = _energy(rows, columns, strength) + beyond
    kept = found.image.square().sum((1, 2))
    short = rank - found.right.shape[2]
    a = torch.nn.functional.pad(found.right, (0, short)).mT
    b = torch.nn.functional.pad(found.image, (0, short))
    return LeftOver(a, b, whole, residual, (residual - kept).clamp_min(0.0))


Slotted = tuple[Tensor, Tensor, Tensor]
"""Rows [c, q, d_in], columns [c, q, d_out], and what all slots of a client count [c]."""


def _slots(layer: Layer, share: Tensor) -> Slotted:
    return layer.a.double(), layer.b.double().mT, share * layer.scales.to(share)


def _together(sources: Sequence[Slotted]) -> Slotted:
    """All slots one after another, with what each counts [c, q]."""
    rows, columns = (torch.cat([source[i] for source in sources], 1) for i in (0, 1))
    counts = [share[:, None].expand(-1, part.shape[1]) for part, _, share in sources]
    return rows, columns, torch.cat(counts, 1)


def _energy(rows: Tensor, columns: Tensor, strength: Tensor) -> Tensor:
    return squared_norms(rows, (columns * strength[..., None]).mT)
