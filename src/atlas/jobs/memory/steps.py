"""The steps of a memory run: models with and without a memory, trained on the same sequences."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from atlas.backbones.memory_lm.sizes import save_model
from atlas.build.memory import MemoryRun, build_memory
from atlas.config.memory import MemoryConfig
from atlas.errors import InputError
from atlas.jobs.memory.summary import summarise
from atlas.jobs.runner import Snapshot
from atlas.memory.training.loop import Score
from atlas.runs.checkpoint import Checkpoint
from atlas.runs.events import Observe, Progress
from atlas.runs.folder import RunFolder, write_summary


@dataclass
class MemoryJob:
    """A memory run as `runner` runs it.

    Attributes:
        run: The models of all arms, and what they read.
        progress: Called with (arm, steps done, steps of the round).
        round: The last round made.
        steps: Steps made.
        seconds: Of training, by arm.
    """

    run: MemoryRun
    progress: Progress | None = None
    round: int = 0
    steps: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def open(cls, config: MemoryConfig, progress: Progress | None) -> MemoryJob:
        """Read the text and make the models.

        Raises:
            InputError: If anything the settings name cannot be had.
        """
        run = build_memory(config)
        return cls(run, progress, seconds=dict.fromkeys(run.learners, 0.0))

    @property
    def identity(self) -> dict[str, str]:
        """What is read, to the bit; the models start from the seed alone."""
        return {"data": self.run.sequences.identity}

    def facts(self) -> dict[str, object]:
        """Task, arms and their sizes."""
        config, learners = self.run.config, self.run.learners
        return {
            "kind": config.kind,
            "rounds": config.rounds,
            "after": self.round,
            "steps": config.train.steps,
            "task": config.task.name,
            "arms": list(learners),
            "chance": self.run.sequences.chance,
            "parameters": {arm: learner.parameters for arm, learner in learners.items()},
        }

    def begin(self, folder: RunFolder, observe: Observe) -> None:
        """There is nothing to find out."""

    def run_rounds(self, observe: Observe, after_round: Callable[[], bool]) -> bool:
        """The rounds that are left."""
        while self.steps < self.run.config.train.steps:
            self._make_round(observe)
            if not after_round():
                break
        return self.steps >= self.run.config.train.steps

    def _make_round(self, observe: Observe) -> None:
        """Some steps of every arm, on the same sequences, and how well each does after them."""
        own, number = self.run.config.train, self.round + 1
        last = min(self.steps + own.round_steps, own.steps)
        held_out = self.run.held_out("validation")
        self.run.prepare(self.steps)
        scores: dict[str, Score] = {}
        began = time.perf_counter()
        for arm, learner in self.run.learners.items():
            start = time.perf_counter()
            for step in range(self.steps, last):
                watched = (step + 1) % own.observe_every == 0
                made = learner.step(step, self.run.training(step), watched=watched)
                if self.progress is not None:
                    self.progress(arm, step + 1 - self.steps, last - self.steps)
                if watched:
                    about = {"round": number, "arm": arm, "step": step + 1}
                    observe("trained", about | made._asdict())
            self.seconds[arm] += time.perf_counter() - start
            scores[arm] = learner.score(held_out, last)
        self.round, self.steps = number, last
        observe(
            "round_finished",
            {
                "round": number,
                "step": last,
                "loss": {arm: score.loss for arm, score in scores.items()},
                "accuracy": {arm: score.accuracy for arm, score in scores.items()},
                "seconds": time.perf_counter() - began,
            },
        )

    def snapshot(self, seconds: float) -> Snapshot:
        """Weights and moments of every arm."""
        del seconds  # those of training, arm by arm, are what a memory run tells
        tensors = {
            f"{arm}|{name}": value
            for arm, learner in self.run.learners.items()
            for name, value in learner.tensors().items()
        }
        return Snapshot(tensors, {"steps": self.steps, "seconds": self.seconds})

    def restore(self, folder: RunFolder, saved: Checkpoint) -> float:
        """Put a saved round back; returns the seconds of training by then."""
        meta: Any = saved.meta
        try:
            for arm, learner in self.run.learners.items():
                learner.load(_of_arm(saved, arm))
            self.seconds = {arm: float(meta["seconds"][arm]) for arm in self.run.learners}
            self.round, self.steps = saved.number, int(meta["steps"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"round {saved.number} does not fit this run: {error}") from error
        return sum(self.seconds.values())

    def finish(self, folder: RunFolder, observe: Observe, seconds: float) -> dict[str, Any]:
        """Test every arm once, save the models and write the summary."""
        del seconds
        self.run.prepare(self.steps)
        lines = self.run.held_out("test")
        learners = self.run.learners
        scores = {arm: learner.score(lines, self.steps) for arm, learner in learners.items()}
        for arm, score in scores.items():
            observe("tested", {"arm": arm, **score._asdict()})
            save_model(self.run.models[arm], folder.models / arm)
        summary = summarise(self.run, scores, self.seconds)
        write_summary(folder.summary, summary)
        observe("finished", {"accuracy": summary["accuracy"], "seconds": summary["seconds"]})
        return summary

    def draw(self, folder: RunFolder) -> None:
        """Pictures of the run."""
        # Late: training can use the memory that the library for drawing takes.
        from atlas.report.figures.memory import plot_memory

        plot_memory(folder)


def _of_arm(saved: Checkpoint, arm: str) -> dict[str, torch.Tensor]:
    start = f"{arm}|"
    own = [name for name in saved.tensors if name.startswith(start)]
    return {name.removeprefix(start): saved.tensors[name] for name in own}
