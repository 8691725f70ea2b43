"""Flower's own simulation and its own FedAvg over PEFT clients, one client a core at a time."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from atlas.bench.federation_work import read_work
from atlas.bench.peers.flower_client import app as client_app
from atlas.bench.peers.rounds import RoundLog, given
from atlas.federation.adapters.adapter import body_of


def run(folder: Path, log: RoundLog) -> None:
    """All rounds of a folder of work; heads stay with their clients."""
    work, start = read_work(folder)
    names, numbers = list(work.clients), count(1)

    def round_ended(replies: list[RecordDict], weight: str) -> MetricRecord:
        """Called by the strategy once it has averaged the arrays."""
        del weight
        told = [reply["metrics"] for reply in replies]
        log.finished(next(numbers), {names[int(t["place"])]: float(t["loss"]) for t in told})
        return MetricRecord()

    def main(grid: Grid, context: Context) -> None:
        del context
        strategy = FedAvg(
            fraction_evaluate=0.0,
            min_train_nodes=len(names),
            min_available_nodes=len(names),
            train_metrics_aggr_fn=round_ended,
        )
        adapter = body_of(start)
        strategy.start(
            grid,
            ArrayRecord(adapter),
            num_rounds=work.rounds,
            train_config=ConfigRecord({"folder": str(folder)}),
        )

    server_app = ServerApp()
    server_app.main()(main)
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    machine = {"num_cpus": os.cpu_count() or 1, "include_dashboard": False}
    run_simulation(
        server_app,
        client_app,
        num_supernodes=len(names),
        backend_config={"client_resources": resources, "init_args": machine},
    )


if __name__ == "__main__":
    run(*given())
