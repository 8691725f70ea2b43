"""What a contender tells of its rounds: one JSON line each, with the seconds since its clock."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Round:
    """One finished round.

    Attributes:
        round: Its number, from 1.
        seconds: From the clock's start to the round's end.
        losses: Mean training loss of every client.
    """

    round: int
    seconds: float
    losses: dict[str, float]


class RoundLog:
    """Writes rounds as they end; its clock starts when it is made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.began = time.perf_counter()

    def finished(self, number: int, losses: Mapping[str, float]) -> None:
        """Note the end of a round."""
        done = Round(number, time.perf_counter() - self.began, dict(losses))
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(done)) + "\n")


def read_rounds(path: Path) -> list[Round]:
    """The rounds that have ended so far."""
    if not path.exists():
        return []
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
    return [Round(**json.loads(line)) for line in whole.splitlines()]


def given() -> tuple[Path, RoundLog]:
    """The folder of the work and a log whose clock starts now, from the command line."""
    folder, log = sys.argv[1:]
    return Path(folder), RoundLog(Path(log))
