"""Where the time of one round goes: `python benchmarks/profile_round.py [key=value ...]`.

Trains the second round of `atlas run glue strategy=local` (or `demo`, without ATLAS_DATA) under
torch's profiler, and compares the whole with the rate at which this machine multiplies matrices of
the sizes that occur in it.
"""

from __future__ import annotations

import os
import sys
import time

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from atlas.build import build_federation
from atlas.config.load import load_config
from atlas.federation.message import encode
from atlas.jobs.running import set_threads

KINDS = {
    "matrix products": ("mm", "addmm", "bmm", "baddbmm"),
    "attention": ("_scaled_dot_product", "_softmax"),
    "activation": ("gelu", "silu", "tanh"),
    "layer norm": ("native_layer_norm",),
    "gather and scatter": ("index", "index_select", "index_put", "gather", "index_copy"),
    "copies": ("copy_", "clone", "cat", "contiguous", "_to_copy", "fill_", "zero_"),
    "sums and products": ("add", "add_", "mul", "mul_", "div", "sum", "sub", "neg", "sqrt"),
}


def kind_of(op: str) -> str:
    """The row of the table that an operator counts for."""
    name = op.removeprefix("aten::").removesuffix("_backward")
    for kind, names in KINDS.items():
        if any(name == one or (one.startswith("_") and name.startswith(one)) for one in names):
            return kind
    return "attention" if "attention" in name else "other"


def product_rate(tokens: int, width: int) -> float:
    """Floating-point operations a second of the block's largest product, forward and backward."""
    x, w = torch.randn(tokens, width), torch.randn(4 * width, width)
    y = x @ w.T
    best = float("inf")
    for _ in range(10):
        began = time.perf_counter()
        torch.mm(x, w.T)
        torch.mm(y, w)
        best = min(best, time.perf_counter() - began)
    return 2 * 2 * tokens * 4 * width * width / best


def main(overrides: list[str]) -> None:
    """Print the table."""
    preset = "glue" if os.environ.get("ATLAS_DATA") else "demo"
    config = load_config(
        preset, ["strategy=local", "alone=false", "ranks.method=fixed", *overrides]
    )
    threads = set_threads(config)
    federation = build_federation(config)
    clients = sorted(federation.holders)
    fit = federation.engine.ask

    def round_(number: int) -> None:
        fit("fit", dict.fromkeys(clients, encode({}, {"round": number})))

    round_(1)
    began = time.perf_counter()
    round_(2)
    seconds = time.perf_counter() - began
    with FlopCounterMode(display=False) as counter:
        round_(3)
    with profile(activities=[ProfilerActivity.CPU]) as traced:
        round_(4)
    times: dict[str, float] = {}
    for event in traced.key_averages():
        if event.key.startswith("aten::"):
            kind = kind_of(event.key)
            times[kind] = times.get(kind, 0.0) + event.self_cpu_time_total / 1e6
    total = sum(times.values())
    flops = counter.get_total_flops()
    width = next(iter(federation.models.values())).backbone.width
    rate = product_rate(2048, width)
    print(f"{preset}, {len(clients)} clients, {threads} threads: {seconds:.2f} s a round")
    for kind, spent in sorted(times.items(), key=lambda pair: -pair[1]):
        print(f"  {kind:20} {100 * spent / total:5.1f} %")
    print(
        f"work: {flops / 1e9:.0f} GFLOP, {flops / seconds / 1e9:.1f} GFLOP/s over the whole round"
    )
    print(f"this machine's matrix products: {rate / 1e9:.1f} GFLOP/s")
    print(f"the round runs at {100 * flops / seconds / rate:.0f} % of that rate")


if __name__ == "__main__":
    main(sys.argv[1:])
