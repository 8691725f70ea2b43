"""PEFT clients one after another in one process, and the mean of their adapters."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from atlas.bench.peers.rounds import RoundLog, given
from atlas.bench.peers.training import trainer_of
from atlas.federation.adapters.adapter import body_of, heads_of


def run(folder: Path, log: RoundLog) -> None:
    """All rounds of a folder of work; heads stay with their clients."""
    trainer = trainer_of(folder)
    clients = trainer.work.clients
    total = sum(len(share.examples) for share in clients.values())
    adapter = body_of(trainer.start)
    head = {name: value for name, value in trainer.start.items() if name not in adapter}
    heads = dict.fromkeys(clients, head)
    for number in range(1, trainer.work.rounds + 1):
        losses: dict[str, float] = {}
        mean: dict[str, Tensor] = {name: torch.zeros_like(v) for name, v in adapter.items()}
        for client, share in clients.items():
            losses[client] = trainer.fit(client, number, {**adapter, **heads[client]})
            heads[client] = heads_of(trainer.trained())
            for name, value in body_of(trainer.trained()).items():
                mean[name].add_(value, alpha=len(share.examples) / total)
        adapter = mean
        log.finished(number, losses)


if __name__ == "__main__":
    torch.set_num_threads(os.cpu_count() or 1)
    run(*given())
