"""The small space in which all mixtures of a cohort's low-rank changes lie.

Whatever the weights, a mixture of scale_l * B_l @ A_l has its columns among all the B columns and
its rows among all the A rows. Orthonormal bases of both, found once, turn every mixture into a
small core between them; norms, differences and singular values are those of the core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from atlas.ops.lowrank.factors import rank_mask


class Layer(NamedTuple):
    """One adapted module of a cohort of n clients, R the largest rank.

    Attributes:
        a: [n, R, d_in], zero beyond each client's rank.
        b: [n, d_out, R], likewise.
        ranks: Integer [n].
        scales: What turns B @ A into the module's change, [n].
    """

    a: Tensor
    b: Tensor
    ranks: Tensor
    scales: Tensor


class Slots(NamedTuple):
    """The rank slots in use, one after another, m in all; float64.

    Attributes:
        rows: Rows of all A [m, d_in].
        columns: Columns of all B [m, d_out].
        owner: Whose each slot is [m].
    """

    rows: Tensor
    columns: Tensor
    owner: Tensor


def used_slots(a: Tensor, b: Tensor, ranks: Tensor) -> Slots:
    """The slots of all clients without the padding, clients in order."""
    used = rank_mask(ranks, a.shape[1]).reshape(-1)
    owner = torch.arange(a.shape[0], device=a.device).repeat_interleave(a.shape[1])[used]
    rows = a.to(torch.float64).reshape(-1, a.shape[2])[used]
    columns = b.to(torch.float64).transpose(1, 2).reshape(-1, b.shape[1])[used]
    return Slots(rows, columns, owner)


@dataclass(frozen=True)
class Span:
    """Orthonormal bases of all B columns and all A rows, and where each slot lies in them.

    Attributes:
        left: [d_out, p].
        right: [d_in, q].
        left_core: Columns of all B in the left basis [p, m].
        right_core: Rows of all A in the right basis [q, m].
        owner: Whose each slot is [m].
        scales: Of every client [n], float64.
    """

    left: Tensor
    right: Tensor
    left_core: Tensor
    right_core: Tensor
    owner: Tensor
    scales: Tensor

    def core(self, row: Tensor) -> Tensor:
        """The mixture with the weights `row` [n], as a matrix [p, q] between the bases."""
        strength = row.to(torch.float64) * self.scales
        return (self.left_core * strength[self.owner]) @ self.right_core.T


def span_of(a: Tensor, b: Tensor, ranks: Tensor, scales: Tensor) -> Span:
    """The span of a layer; arguments as in `Layer`."""
    slots = used_slots(a, b, ranks)
    left, left_core = torch.linalg.qr(slots.columns.T)
    right, right_core = torch.linalg.qr(slots.rows.T)
    return Span(left, right, left_core, right_core, slots.owner, scales.to(torch.float64))


def row_key(row: Tensor) -> bytes:
    """Equal for rows of W with equal bits, so that what follows from a row is computed once."""
    return row.cpu().numpy().tobytes()
