"""Attention on texts by themselves and on pages: `python benchmarks/attention_pages.py`.

One core, batches of 16 texts with lengths like those of sst2, mrpc and cola, twelve heads of 32
numbers, forward and backward, with what it takes to bring packed tokens there and back.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from atlas.federation.batching import packing as pages
from atlas.federation.batching.packing import Packing, pack

HEADS, WIDTH, LONGEST = 12, 32, 64
LIKE = {"sst2": (25, 13), "mrpc": (52, 10), "cola": (11, 4)}
"""Mean and spread of lengths."""
SIZES = (64, 96, 128)


def attend(projected: list[Tensor], mask: Tensor) -> Tensor:
    """What attention makes of queries, keys and values [M, P, D]."""
    heads = (one.reshape(*one.shape[:2], HEADS, WIDTH).transpose(1, 2) for one in projected)
    return (
        functional.scaled_dot_product_attention(*heads, attn_mask=mask).transpose(1, 2).flatten(2)
    )


def by_text(packing: Packing, projected: list[Tensor]) -> Tensor:
    """Every text padded to the longest."""
    spread = [packing.spread(one) for one in projected]
    return packing.gather(attend(spread, packing.mask[:, None, None, :]))


def by_page(packing: Packing, projected: list[Tensor]) -> Tensor:
    """Texts several to a page."""
    spread = [packing.pages.spread(one) for one in projected]
    return packing.pages.gather(attend(spread, packing.pages.apart()), packing.real.shape)


def milliseconds(way: Callable[[Packing, list[Tensor]], Tensor], packing: Packing) -> float:
    """The fastest of some forward and backward passes."""
    shape = (*packing.real.shape, HEADS * WIDTH)
    draw = torch.Generator().manual_seed(0)
    projected = [torch.randn(shape, generator=draw).requires_grad_() for _ in range(3)]
    best = float("inf")
    for _ in range(40):
        began = time.perf_counter()
        torch.autograd.grad(way(packing, projected).sum(), projected)
        best = min(best, time.perf_counter() - began)
    return 1e3 * best


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print("texts like  tokens  by text  " + "  ".join(f"pages of {p:3}" for p in SIZES))
    for name, (mean, spread) in LIKE.items():
        draw = np.random.default_rng(0)
        drawn = draw.gamma((mean / spread) ** 2, spread**2 / mean, (1, 16))
        lengths = np.clip(drawn.astype(np.int64), 3, LONGEST)
        found = []
        for size in SIZES:
            pages.PAGE = size
            packing = pack(lengths, np.ones_like(lengths, dtype=bool), torch.device("cpu")).packing
            if not found:
                found.append(milliseconds(by_text, packing))
            found.append(milliseconds(by_page, packing))
        print(
            f"{name:10}  {lengths.sum():6}  {found[0]:4.1f} ms  "
            + "  ".join(f"{one:9.1f} ms" for one in found[1:])
        )


if __name__ == "__main__":
    main()
