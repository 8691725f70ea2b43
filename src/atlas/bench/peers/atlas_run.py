"""Atlas as `atlas run` runs it, data, checkpoints and events included, up to the last round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atlas.bench.federation_work import CONFIG
from atlas.bench.peers.rounds import RoundLog, given
from atlas.config.load import load_resolved_federation
from atlas.federation.strategies.base import Strategy, register
from atlas.federation.strategies.relations_sparse import scaled_data_shares
from atlas.jobs.runner import start_run

RULE = Strategy(
    name="fedavg-factors", relation=scaled_data_shares, space="factors", heads="personal"
)
"""What Flower's FedAvg does to the arrays it is sent. Atlas's own `fedavg` averages products, which
is exact; here it is to do the same as the others."""


class LastRoundError(Exception):
    """Ends a run before its tests and exports, which the other contenders do not have."""


def run(folder: Path, log: RoundLog) -> None:
    """All rounds of a folder of work."""
    config = load_resolved_federation(folder / CONFIG)
    losses: dict[str, float] = {}

    def watch(event: str, fields: Mapping[str, Any]) -> None:
        if event == "fitted":
            losses[fields["client"]] = fields["loss"]
        elif event == "round_finished":
            log.finished(fields["round"], losses)
            losses.clear()
            if fields["round"] == config.rounds:
                raise LastRoundError

    try:
        start_run(config, folder / "runs", watch)
    except LastRoundError:
        return


if __name__ == "__main__":
    register(RULE)
    run(*given())
