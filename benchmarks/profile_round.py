"""Where the time of one round goes: `python benchmarks/profile_round.py [key=value ...]`.

Trains rounds of `atlas run glue strategy=local` (or `demo`, without ATLAS_DATA), one of them under
torch's profiler, and compares the whole with the rate at which this machine multiplies matrices of
the sizes that occur in it.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from itertools import count

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from atlas.build.federation import build_federation
from atlas.config.load import load_config
from atlas.federation.exchange.message import encode
from atlas.jobs.runner import set_threads
from atlas.runs.cores import side_by_side

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


def product_rate(tokens: int, width: int, cores: int) -> float:
    """Operations a second of the block's largest product, both ways, by all cores side by side."""
    x, w = torch.randn(tokens, width), torch.randn(4 * width, width)
    y = x @ w.T

    def products() -> None:
        for _ in range(10):
            torch.mm(x, w.T)
            torch.mm(y, w)

    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        side_by_side([products] * cores)
        best = min(best, time.perf_counter() - began)
    return cores * 10 * 2 * 2 * tokens * 4 * width * width / best


def main(overrides: list[str]) -> None:
    """Print the table."""
    preset = "glue" if os.environ.get("ATLAS_DATA") else "demo"
    config = load_config(
        preset, ["strategy=local", "alone=false", "ranks.method=fixed", *overrides]
    )
    threads = set_threads(config)
    federation = build_federation(config)
    clients = sorted(federation.holders)
    numbers = count(1)

    def round_() -> float:
        began = time.perf_counter()
        payload = encode({}, {"round": next(numbers)})
        federation.engine.ask("fit", dict.fromkeys(clients, payload))
        return time.perf_counter() - began

    round_()
    seconds = statistics.median(round_() for _ in range(5))
    # Counters see the operators of their own thread only.
    torch.set_num_threads(1)
    alone = statistics.median(round_() for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        round_()
    with profile(activities=[ProfilerActivity.CPU]) as traced:
        round_()
    torch.set_num_threads(threads)
    times: dict[str, float] = {}
    for event in traced.key_averages():
        if event.key.startswith("aten::"):
            kind = kind_of(event.key)
            times[kind] = times.get(kind, 0.0) + event.self_cpu_time_total / 1e6
    total = sum(times.values())
    flops = counter.get_total_flops()
    width = next(iter(federation.models.values())).backbone.width
    rate = product_rate(2048, width, threads)
    print(f"{preset}, {len(clients)} clients: {seconds:.2f} s a round on {threads} cores, ", end="")
    print(f"{alone:.2f} s on one; of the latter")
    for kind, spent in sorted(times.items(), key=lambda pair: -pair[1]):
        print(f"  {kind:20} {100 * spent / total:5.1f} %")
    print(
        f"work: {flops / 1e9:.0f} GFLOP, {flops / seconds / 1e9:.1f} GFLOP/s over the whole round"
    )
    print(f"matrix products, {threads} cores side by side: {rate / 1e9:.1f} GFLOP/s")
    print(f"the round runs at {100 * flops / seconds / rate:.0f} % of that rate")


if __name__ == "__main__":
    main(sys.argv[1:])
