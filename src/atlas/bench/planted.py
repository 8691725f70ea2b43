"""Cases whose answer is known beforehand: made up so that a method either finds it or does not."""

from __future__ import annotations

import torch

from atlas.ops.lowrank.factors import Layer
from atlas.runs.seeds import generator


def rotated_copies(count: int, rank: int, widths: tuple[int, int], seed: int) -> Layer:
    """One adapter, held by every client in another gauge, by turns rotated and reflected.

    Args:
        count: Clients.
        rank: Of the adapter.
        widths: d_in and d_out.
        seed: Of the adapter and of the gauges.

    Returns:
        Factors in float32, all of one product, with scales of one.
    """
    (d_in, d_out), draw = widths, generator(seed, "rotated-copies", rank, *widths)
    a = torch.from_numpy(draw.standard_normal((rank, d_in)))
    b = torch.from_numpy(draw.standard_normal((d_out, rank)))
    turns = torch.linalg.qr(torch.from_numpy(draw.standard_normal((count, rank, rank)))).Q
    wanted = torch.tensor([1.0, -1.0], dtype=torch.float64)[torch.arange(count) % 2]
    turns[:, 0] *= (torch.linalg.det(turns).sign() * wanted)[:, None]
    return Layer(
        (turns @ a).float(),
        (b @ turns.mT).float(),
        torch.full((count,), rank),
        torch.ones(count, dtype=torch.float64),
    )
