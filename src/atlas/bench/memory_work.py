"""One contender of `atlas bench memory`, measured in a process of its own.

Reads a `MemoryWork` as JSON from its first argument and prints what it found as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from atlas.memory.kernels.chunked import run_chunked
from atlas.memory.rules.naive import run_naive
from atlas.memory.rules.rule import Rule, Tokens
from atlas.memory.rules.state import initial_state

BATCH, HEADS, CHUNK = 4, 4, 64
KB = 1024


@dataclass(frozen=True)
class MemoryWork:
    """What is measured: a contender, its sizes, and how often."""

    name: str
    head_dim: int
    length: int
    repeats: int


class BenchedLayer(nn.Module):
    """Projections, per-token gates and one rule: what the peer's layer has, and no more."""

    def __init__(self, head_dim: int, rule: Rule, run: Callable) -> None:  # type: ignore[type-arg]
        super().__init__()
        width = HEADS * head_dim
        self.projections = nn.Linear(width, 3 * width, bias=False)
        self.gates = nn.Linear(width, 3 * HEADS)
        self.out = nn.Linear(width, width, bias=False)
        self.start = nn.Parameter(torch.zeros(HEADS, head_dim, head_dim))
        self.rule, self.run = rule, run

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [B, T, D] -> [B, T, D]."""
        batch, length, width = x.shape
        split = self.projections(x).reshape(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        queries, keys, values = functional.silu(split).unbind(0)
        gates = torch.sigmoid(self.gates(x)).reshape(batch, length, 3, HEADS).permute(2, 0, 3, 1)
        tokens = Tokens(
            functional.normalize(queries, dim=-1),
            functional.normalize(keys, dim=-1),
            values,
            *gates,
        )
        state = initial_state(self.start.expand(batch, -1, -1, -1), self.rule)
        read, _ = self.run(tokens, state, self.rule)
        merged: Tensor = self.out(read.transpose(1, 2).reshape(batch, length, width))
        return merged


def titans(head_dim: int) -> nn.Module:
    """The peer with a linear memory; chunks of one token, since it shares gates within a chunk."""
    from titans_pytorch import NeuralMemory

    layer: nn.Module = NeuralMemory(
        dim=HEADS * head_dim,
        heads=HEADS,
        dim_head=head_dim,
        chunk_size=1,
        default_model_kwargs={"depth": 1},
    )
    return layer


CONTENDERS: dict[str, Callable[[int], nn.Module]] = {
    "exact": partial(BenchedLayer, rule=Rule(chunk=CHUNK), run=run_chunked),
    "chunk-start": partial(
        BenchedLayer, rule=Rule(gradient="chunk-start", chunk=CHUNK), run=run_chunked
    ),
    "naive": partial(BenchedLayer, rule=Rule(), run=run_naive),
    "titans": titans,
}


def measure(work: MemoryWork) -> dict[str, float]:
    """Milliseconds of the fastest forward and backward pass, and how far memory rose for it."""
    torch.manual_seed(0)
    layer = CONTENDERS[work.name](work.head_dim)
    x = torch.randn(BATCH, work.length, HEADS * work.head_dim, requires_grad=True)
    before, best = _resident(), float("inf")
    for _ in range(work.repeats):
        layer.zero_grad()
        began = time.perf_counter()
        output = layer(x)
        output = output[0] if isinstance(output, tuple) else output
        output.square().mean().backward()
        best = min(best, time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KB
    return {"ms": 1e3 * best, "peak_mb": max(0, peak - before) / KB**2}


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(MemoryWork(**json.loads(sys.argv[1])))) + "\n")
