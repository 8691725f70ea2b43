"""How far clients that share passes are from the same clients one by one, after a few steps.

    python benchmarks/parity_steps.py

The first local training of the demo's nine clients on MiniLM: stacked, and each by itself, which
is what Flower's nodes do. Nothing but the order of sums differs, so float64 shows what of it is
rounding.
"""

from __future__ import annotations

import torch

from atlas.build.federation import build_federation
from atlas.config.load import load_config
from atlas.federation.adapters.adapter import Adapter
from atlas.federation.exchange.message import decode, encode

SETTINGS = ["backbone.name=minilm", "size=quick", "strategy=fedavg", "alone=false",
            "ranks.method=fixed", "rounds=5"]  # fmt: skip
STEPS, CORES = (1, 2, 6), (1, 2)
Ended = dict[str, Adapter]


def trained(steps: int, dtype: str, cores: int) -> tuple[Ended, Ended]:
    """Adapters after so many steps, of stacked clients and of those who trained by themselves."""
    length = ["train.epochs=null", f"train.steps={steps}"]
    config = load_config(
        "demo", [*SETTINGS, *length, f"backbone.dtype={dtype}", f"threads={cores}"]
    )
    federation = build_federation(config)
    engine, clients = federation.engine, sorted(federation.holders)
    torch.set_num_threads(cores)
    before = engine.ask("save", dict.fromkeys(clients, encode({}, {})))
    asked = dict.fromkeys(clients, encode({}, {"round": 1}))
    together = engine.ask("fit", asked)
    engine.ask("load", {client: bytes(saved) for client, saved in before.items()})
    alone = {client: engine.ask("fit", {client: asked[client]})[client] for client in clients}
    one, two = (
        {client: decode(bytes(reply)).tensors for client, reply in replies.items()}
        for replies in (together, alone)
    )
    return one, two


def farthest(one: Ended, two: Ended) -> dict[str, float]:
    """The farthest entry of any client by kind of tensor."""
    found: dict[str, float] = {}
    for client, adapter in one.items():
        for name, value in adapter.items():
            kind = name.partition("/")[0]
            gap = float((value - two[client][name]).abs().max())
            found[kind] = max(found.get(kind, 0.0), gap)
    return found


def main() -> None:
    """Measure and print."""
    for dtype in ("float32", "float64"):
        for cores in CORES:
            for steps in STEPS:
                found = farthest(*trained(steps, dtype, cores))
                told = ", ".join(f"{kind} {gap:.1e}" for kind, gap in sorted(found.items()))
                print(f"{dtype}, {cores} cores, {steps} steps: {told}", flush=True)


if __name__ == "__main__":
    main()
