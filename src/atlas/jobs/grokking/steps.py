"""The steps of a grokking run: the same small model with and without what makes it grok."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from atlas.build.grokking import GrokkingRun, build_grokking
from atlas.config.grokking import GrokkingConfig
from atlas.errors import InputError
from atlas.jobs.arms import arm_tensors, of_arm, run_steps
from atlas.jobs.grokking.series import Series
from atlas.jobs.grokking.summary import save_weights, summarise
from atlas.jobs.job import Snapshot
from atlas.memory.training.grokking.trainer import ArithmeticStep
from atlas.runs.checkpoint import Checkpoint
from atlas.runs.events import Observe, Progress
from atlas.runs.folder import RunFolder, write_summary
from atlas.runs.ranks import ALONE, Ranks


@dataclass
class GrokkingJob:
    """A grokking run as `runner` runs it.

    Attributes:
        run: The models of all arms, and what they learn.
        progress: Called with (arm, steps done, steps of the round).
        round: The last round made.
        steps: Steps made.
        seconds: Of training and measuring, by arm.
        series: What was measured, by arm.
    """

    run: GrokkingRun
    progress: Progress | None = None
    round: int = 0
    steps: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    series: dict[str, Series] = field(default_factory=dict)

    @classmethod
    def open(cls, config: GrokkingConfig, progress: Progress | None) -> GrokkingJob:
        """Make the models.

        Raises:
            InputError: If anything the settings name cannot be had.
        """
        run = build_grokking(config)
        series = {arm: Series() for arm in run.learners}
        return cls(run, progress, seconds=dict.fromkeys(run.learners, 0.0), series=series)

    @property
    def ranks(self) -> Ranks:
        """It is made by one process."""
        return ALONE

    @property
    def identity(self) -> dict[str, str]:
        """Which equations are learned from; the models start from the seed alone."""
        return {"data": self.run.task.identity}

    def facts(self) -> dict[str, object]:
        """Task, arms and their sizes."""
        config, learners = self.run.config, self.run.learners
        return {
            "kind": config.kind,
            "rounds": config.rounds,
            "after": self.round,
            "steps": config.train.steps,
            "task": config.task.name,
            "pairs": {"learned": len(self.run.learned), "held out": len(self.run.held_out)},
            "arms": list(learners),
            "chance": self.run.task.chance,
            "parameters": {arm: learner.parameters for arm, learner in learners.items()},
        }

    def begin(self, folder: RunFolder, observe: Observe) -> None:
        """There is nothing to find out."""

    def run_rounds(self, observe: Observe, after_round: Callable[[], bool]) -> bool:
        """The rounds that are left."""
        last = self.run.config.train.steps
        return run_steps(self, last, lambda: self._make_round(observe), after_round)

    def _make_round(self, observe: Observe) -> None:
        """Some steps of every arm, measured on the way.

        Raises:
            RuntimeError: A loss is not finite; rounds saved before are kept.
        """
        own, number = self.run.config.train, self.round + 1
        last = min(self.steps + own.round_steps, own.steps)
        began = time.perf_counter()
        for arm, learner in self.run.learners.items():
            start = time.perf_counter()
            for step in range(self.steps, last):
                watched = (step + 1) % own.observe_every == 0
                made = learner.step(step, watched=watched)
                if not math.isfinite(made.loss):
                    raise RuntimeError(self._stopped(arm, step + 1, made.loss))
                if self.progress is not None:
                    self.progress(arm, step + 1 - self.steps, last - self.steps)
                if watched:
                    self._look(arm, number, step + 1, made, observe)
            self.seconds[arm] += time.perf_counter() - start
        self.round, self.steps = number, last
        latest = {arm: series.points[-1] for arm, series in self.series.items() if series.points}
        observe(
            "round_finished",
            {
                "round": number,
                "step": last,
                "fourier_concentration": {arm: point[1] for arm, point in latest.items()},
                "test_accuracy": {arm: point[2] for arm, point in latest.items()},
                "train_accuracy": {arm: point[3] for arm, point in latest.items()},
                "grokking_phase": {arm: self.series[arm].phases()[-1].name for arm in latest},
                "seconds": time.perf_counter() - began,
            },
        )

    def _stopped(self, arm: str, step: int, loss: float) -> str:
        """What is said where a loss is no number any more."""
        kept = f"round {self.round} is kept" if self.round else "nothing was saved before"
        return f"{arm}: the loss is {loss} at step {step}; {kept}; a lower train.lr may help"

    def _look(
        self, arm: str, number: int, step: int, made: ArithmeticStep, observe: Observe
    ) -> None:
        """Measure an arm; its phase is that of all measurements so far."""
        found = self.run.measure(arm)
        self.series[arm].add(step, found.numbers)
        about = {"round": number, "arm": arm, "step": step, **made._asdict()}
        phase = self.series[arm].phases()[-1].name
        observe("measured", about | found.fields() | {"grokking_phase": phase})

    def snapshot(self, seconds: float) -> Snapshot:
        """Weights and moments of every arm, and what was measured of it."""
        del seconds  # those of training, arm by arm, are what is told
        series = {f"{arm}|series": series.tensor() for arm, series in self.series.items()}
        tensors = arm_tensors(self.run.learners) | series
        return Snapshot(tensors, {"steps": self.steps, "seconds": self.seconds})

    def restore(self, folder: RunFolder, saved: Checkpoint) -> float:
        """Put a saved round back; returns the seconds of training by then."""
        del folder
        meta: Any = saved.meta
        try:
            for arm, learner in self.run.learners.items():
                own = of_arm(saved, arm)
                self.series[arm] = Series.of(own.pop("series"))
                learner.load(own)
            self.seconds = {arm: float(meta["seconds"][arm]) for arm in self.run.learners}
            self.round, self.steps = saved.number, int(meta["steps"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"round {saved.number} does not fit this run: {error}") from error
        return sum(self.seconds.values())

    def finish(self, folder: RunFolder, observe: Observe, seconds: float) -> dict[str, Any]:
        """Measure every arm once more, save the models and write the summary."""
        del seconds
        found = {arm: self.run.measure(arm) for arm in self.run.learners}
        for arm, measured in found.items():
            circles = self.run.circles(arm)
            observe("tested", {"arm": arm, "circles": circles, **measured.fields()})
            save_weights(self.run.learners[arm].model, folder.models / arm)
        summary = summarise(self.run, found, self.series, self.seconds)
        write_summary(folder.summary, summary)
        told = {arm: asdict(phase) for arm, s in self.series.items() for phase in s.phases()[-1:]}
        observe("finished", {"phases": told, "seconds": summary["seconds"]})
        return summary

    def draw(self, folder: RunFolder) -> None:
        """Pictures of the run."""
        # Late: training can use the memory that the library for drawing takes.
        from atlas.report.figures.grokking import plot_grokking

        plot_grokking(folder)
