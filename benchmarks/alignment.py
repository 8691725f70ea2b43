"""What alignment finds where the answer is known: `python benchmarks/alignment.py`.

Eight clients hold one adapter in gauges that are randomly rotated and reflected. Printed are the
relative error of their mean, unaligned and aligned, and how much the outputs of a client change
when its factors are turned.
"""

from __future__ import annotations

import torch

from atlas.bench.planted import rotated_copies
from atlas.ops.lowrank.factors import Layer, delta
from atlas.ops.lowrank.gauge import common_gauge, find_turns, joint_factors
from atlas.ops.lowrank.mixing import mix_factors, mix_rotated

SEEDS, COPIES, RANK, WIDTHS = range(5), 8, 16, (576, 192)


def main() -> None:
    """Measure and print."""
    rows = [gauge_row(seed) for seed in SEEDS]
    print(f"{COPIES} copies of one adapter, rank {RANK}, {WIDTHS[0]} to {WIDTHS[1]}, float32")
    print("relative, worst of seeds     unaligned mean  aligned mean  change of outputs")
    print(f"  {len(rows)} seeds {min(r[0] for r in rows):24.3f} (least)", end="")
    print(f"{max(r[1] for r in rows):12.1e} {max(r[2] for r in rows):18.1e}")


def gauge_row(seed: int) -> tuple[float, float, float]:
    """Errors of the mean, unaligned and aligned, and of outputs of turned factors."""
    layer = rotated_copies(COPIES, RANK, WIDTHS, seed)
    shares = torch.full((COPIES, COPIES), 1 / COPIES, dtype=torch.float64)
    true = delta(layer.a.double(), layer.b.double(), layer.scales)
    plain, turned = (delta(*mix(*layer, shares), 1.0) for mix in (mix_factors, mix_rotated))
    x = torch.randn(64, WIDTHS[0], generator=torch.Generator().manual_seed(seed))
    before, after = (x @ delta(*pair, 1.0).mT for pair in (layer[:2], in_gauge(layer, shares[0])))
    return relative(plain, true), relative(turned, true), relative(after, before)


def in_gauge(layer: Layer, shares: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Every client's factors as they are averaged."""
    found = common_gauge(layer, shares)
    turns = find_turns(found.reference, joint_factors(layer, found.balance), layer.ranks).float()
    return turns @ layer.a, layer.b @ turns.mT


def relative(found: torch.Tensor, true: torch.Tensor) -> float:
    """How far `found` is from `true`, relative to that."""
    return float((found.double() - true.double()).norm() / true.double().norm())


if __name__ == "__main__":
    main()
