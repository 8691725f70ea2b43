"""What `runner` asks of a kind of run, and which kind a config means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from atlas.config.grokking import GrokkingConfig
from atlas.config.load import RunConfig
from atlas.config.memory import MemoryConfig
from atlas.errors import InputError
from atlas.runs.checkpoint import Checkpoint
from atlas.runs.events import Observe, Progress
from atlas.runs.folder import RunFolder
from atlas.runs.ranks import ALONE, Ranks


@dataclass(frozen=True)
class Snapshot:
    """What a job needs to go on after the round just made; see `runs.checkpoint.save_round`."""

    tensors: Mapping[str, torch.Tensor]
    meta: Mapping[str, object]
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    between: Callable[[], None] = lambda: None


class Job(Protocol):
    """The steps of one kind of run."""

    @property
    def identity(self) -> Mapping[str, str]:
        """Hashes of all that was read, by what it is: a run goes on with nothing else."""
        ...

    @property
    def ranks(self) -> Ranks:
        """The processes that make the run."""
        ...

    @property
    def round(self) -> int:
        """The last round made."""
        ...

    def facts(self) -> dict[str, object]:
        """What the log says where a run starts or goes on."""
        ...

    def begin(self, folder: RunFolder, observe: Observe) -> None:
        """Find out what must be known before the first round."""
        ...

    def run_rounds(self, observe: Observe, after_round: Callable[[], bool]) -> bool:
        """Make the rounds that are left; False if `after_round` said to stop before the last."""
        ...

    def snapshot(self, seconds: float) -> Snapshot:
        """What is saved after a round; `seconds` is what the run has taken so far."""
        ...

    def restore(self, folder: RunFolder, saved: Checkpoint) -> float:
        """Put a saved round back; returns the seconds that the run had taken by then.

        Raises:
            InputError: It does not fit this run.
        """
        ...

    def finish(self, folder: RunFolder, observe: Observe, seconds: float) -> dict[str, Any]:
        """Read the test data, write results, the summary last; returns it."""
        ...

    def draw(self, folder: RunFolder) -> None:
        """Draw the pictures of a finished run."""
        ...


def open_job(config: RunConfig, progress: Progress | None, ranks: Ranks = ALONE) -> Job:
    """The steps of a run of the config's kind; each kind does without the other's models.

    Raises:
        InputError: Several processes are to make a run of a kind that one makes.
    """
    if isinstance(config, MemoryConfig):
        from atlas.jobs.memory.steps import MemoryJob

        return MemoryJob.open(config, progress, ranks)
    if ranks.several:
        raise InputError(
            f"kind: {config.kind}; allowed for {ranks.count} processes (torchrun): memory"
        )
    if isinstance(config, GrokkingConfig):
        from atlas.jobs.grokking.steps import GrokkingJob

        return GrokkingJob.open(config, progress)
    from atlas.jobs.federation.run import FederationJob

    return FederationJob.open(config, progress)
