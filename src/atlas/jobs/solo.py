"""One client by itself: trained alone, scored on its own test data."""

from __future__ import annotations

from atlas.build.federation import Federation, assemble
from atlas.config.capacity import RankSettings
from atlas.config.federation import FederationConfig
from atlas.engines.local.engine import Progress
from atlas.federation.clients import ClientData
from atlas.federation.exchange.message import decode
from atlas.federation.rounds import run_rounds
from atlas.federation.training.evaluate import Scores
from atlas.jobs.federation.finish import ask_all
from atlas.jobs.runner import Watch


def train_alone(
    config: FederationConfig, data: ClientData, watch: Watch, progress: Progress | None
) -> Scores:
    """Test scores of training alone from the shared start, with what a client of the run had.

    Args:
        config: The run's settings, as they hold for this client.
        data: The client.
        watch: Receives the events of the rounds.
        progress: Called with (what, done, total) during long work.
    """
    # A shadow of somebody who is alone would only be trained twice.
    changes = {"strategy": "local", "keep_best": False, "alone": False, "ranks": RankSettings()}
    lonely = assemble(config.model_copy(update=changes), [data], progress)
    watch("started", {"rounds": config.rounds, "after": 0})
    run_rounds(lonely.plan, lonely.state, lonely.engine, watch, lambda state: True)
    if not lonely.state.examples:
        reasons = sorted({str(entry["reason"]) for entry in lonely.state.failures})
        raise RuntimeError(f"training alone failed (--no-solo skips it): {'; '.join(reasons)}")
    return score_one(lonely)


def score_one(federation: Federation) -> Scores:
    """Test scores of a federation's only client."""
    (reply,) = ask_all(federation, "evaluate", {"split": "test", "arm": "final"}).values()
    (scores,) = decode(reply).facts["members"].values()
    found: Scores = scores
    return found
