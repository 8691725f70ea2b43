"""The steps of a memory run: models with and without a memory, trained on the same sequences."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from atlas.backbones.memory_lm.sizes import save_model
from atlas.build.memory import MemoryRun, build_memory
from atlas.config.memory import MemoryConfig
from atlas.errors import InputError
from atlas.jobs.arms import arm_tensors, of_arm, run_steps
from atlas.jobs.job import Snapshot
from atlas.jobs.memory.progress import ArmProgress, wave_figures
from atlas.jobs.memory.scores import ArmScore, measure
from atlas.jobs.memory.summary import summarise
from atlas.memory.training.loop import Diverged, Step
from atlas.memory.training.retrieval import MEMORIES, OWN
from atlas.memory.training.watch import Alerts, model_figures
from atlas.runs.checkpoint import Checkpoint
from atlas.runs.events import Observe, Progress
from atlas.runs.folder import RunFolder, write_summary
from atlas.runs.ranks import ALONE, Ranks


@dataclass
class MemoryJob:
    """A memory run as `runner` runs it.

    Attributes:
        run: The models of all arms, and what they read.
        progress: Called with (arm, steps done, steps of the round).
        round: The last round made.
        steps: Steps made.
        seconds: Of training, by arm.
        arms: What is remembered of each.
        folder: Where the run is, once it has one.
    """

    run: MemoryRun
    progress: Progress | None = None
    round: int = 0
    steps: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    arms: dict[str, ArmProgress] = field(default_factory=dict)
    folder: RunFolder | None = None

    @classmethod
    def open(
        cls, config: MemoryConfig, progress: Progress | None, ranks: Ranks = ALONE
    ) -> MemoryJob:
        """Read the text and make the models.

        Raises:
            InputError: If anything the settings name cannot be had.
        """
        run = build_memory(config, ranks)
        arms = {arm: ArmProgress(Alerts(config.train.alerts)) for arm in run.learners}
        return cls(run, progress, seconds=dict.fromkeys(run.learners, 0.0), arms=arms)

    @property
    def ranks(self) -> Ranks:
        """The processes that make the run."""
        return self.run.ranks

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
            "objective": config.objective,
            "arms": list(learners),
            "chance": self.run.sequences.chance,
            "parameters": {arm: learner.parameters for arm, learner in learners.items()},
        }

    def begin(self, folder: RunFolder, observe: Observe) -> None:
        """There is nothing to find out."""
        self.folder = folder

    def run_rounds(self, observe: Observe, after_round: Callable[[], bool]) -> bool:
        """The rounds that are left."""
        steps = self.run.config.train.steps
        return run_steps(self, steps, lambda: self._make_round(observe), after_round)

    def _make_round(self, observe: Observe) -> None:
        """Some steps of every arm, on the same sequences, and how well each does after them."""
        own, number = self.run.config.train, self.round + 1
        last = min(self.steps + own.round_steps, own.steps)
        self.run.prepare(self.steps)
        scores: dict[str, ArmScore] = {}
        began = time.perf_counter()
        for arm in self.run.learners:
            start = time.perf_counter()
            self._train(arm, last, observe)
            self.seconds[arm] += time.perf_counter() - start
            scores[arm] = self._validate(arm, last)
        self.round, self.steps = number, last
        observe(
            "round_finished",
            {
                "round": number,
                "step": last,
                "loss": {arm: score.loss for arm, score in scores.items()},
                "accuracy": {arm: score.accuracy for arm, score in scores.items()},
                **_by_figure(scores),
                "seconds": time.perf_counter() - began,
            },
        )

    def _train(self, arm: str, last: int, observe: Observe) -> None:
        """One arm's steps of a round.

        Raises:
            Diverged: A loss is not finite; what was saved is kept, and named.
        """
        own, learner = self.run.config.train, self.run.learners[arm]
        for step in range(self.steps, last):
            watched = (step + 1) % own.observe_every == 0
            about = {"round": self.round + 1, "arm": arm, "step": step + 1}
            try:
                made = learner.step(step, self.run.training(step), watched=watched)
            except Diverged as error:
                observe("diverged", about | {"reason": str(error)})
                raise Diverged(f"{arm}: {error}; {self._kept()}") from error
            if self.progress is not None:
                self.progress(arm, step + 1 - self.steps, last - self.steps)
            if watched:
                self._tell(arm, about, made, observe)

    def _tell(self, arm: str, about: dict[str, Any], made: Step, observe: Observe) -> None:
        """What a step did, and which thresholds were crossed since the last look."""
        plain = made._asdict()
        figures = plain.pop("measures") | model_figures(made.memory)
        floors = self.run.learners[arm].floors(about["step"] - 1)
        figures |= {"gate_floor": floors.mix} if made.memory else {}
        figures |= wave_figures(self.run, self.run.learners[arm])
        if phases := self.arms[arm].phases():
            figures["grokking_phase"] = phases[-1].name
        observe("trained", about | plain | figures)
        for alert in self.arms[arm].alerts.look(made.memory):
            observe("alert", about | alert._asdict())

    def _validate(self, arm: str, last: int) -> ArmScore:
        """How an arm does after a round; its best round is kept as a whole model."""
        learner = self.run.learners[arm]
        score = measure(self.run, learner, "validation", last, (OWN,))
        if self.arms[arm].add(last, score, wave_figures(self.run, learner)) and self.folder:
            self._save_model(arm, self.folder, "best")
        return score

    def _save_model(self, arm: str, folder: RunFolder, kind: str) -> None:
        """Write an arm's model and its tokenizer, whole or not at all.

        Of several processes each has its part in the model, and the first one writes.
        """
        model = self.run.whole_model(arm)
        if not self.run.ranks.first:
            return
        place = folder.path / kind / arm
        fresh = place.with_name(f".tmp-{arm}")
        shutil.rmtree(fresh, ignore_errors=True)
        save_model(model, fresh)
        if self.run.reading.tokens is not None:
            self.run.reading.tokens.save(fresh)
        shutil.rmtree(place, ignore_errors=True)
        fresh.rename(place)

    def _kept(self) -> str:
        """Where a run can go on from, in words."""
        if self.folder is None or not self.round:
            return "no round was saved before it"
        kept = self.folder.rounds / f"{self.round:04d}"
        return (
            f"the last good checkpoint is {kept} (step {self.steps}), from which atlas resume "
            f"{self.folder.path} goes on"
        )

    def snapshot(self, seconds: float) -> Snapshot:
        """Weights and moments of every arm, and what is remembered of it."""
        del seconds  # those of training, arm by arm, are what a memory run tells
        tensors = arm_tensors(self.run.learners)
        arms = {arm: own.plain() for arm, own in self.arms.items()}
        return Snapshot(tensors, {"steps": self.steps, "seconds": self.seconds, "arms": arms})

    def restore(self, folder: RunFolder, saved: Checkpoint) -> float:
        """Put a saved round back; returns the seconds of training by then."""
        meta: Any = saved.meta
        try:
            for arm, learner in self.run.learners.items():
                learner.load(of_arm(saved, arm))
                alerts = self.run.config.train.alerts
                self.arms[arm] = ArmProgress.load(meta["arms"][arm], alerts)
            self.seconds = {arm: float(meta["seconds"][arm]) for arm in self.run.learners}
            self.round, self.steps = saved.number, int(meta["steps"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"round {saved.number} does not fit this run: {error}") from error
        self.folder = folder
        return sum(self.seconds.values())

    def finish(self, folder: RunFolder, observe: Observe, seconds: float) -> dict[str, Any]:
        """Test every arm once, save the models and write the summary."""
        del seconds
        self.run.prepare(self.steps)
        scores = {
            arm: measure(self.run, learner, "test", self.steps, tuple(MEMORIES))
            for arm, learner in self.run.learners.items()
        }
        for arm, score in scores.items():
            observe("tested", {"arm": arm, **score.plain()})
            self._save_model(arm, folder, "models")
        summary = summarise(self.run, scores, self.seconds, self.arms)
        if self.run.ranks.first:
            write_summary(folder.summary, summary)
        observe("finished", {"accuracy": summary["accuracy"], "seconds": summary["seconds"]})
        return summary

    def draw(self, folder: RunFolder) -> None:
        """Pictures of the run."""
        # Late: training can use the memory that the library for drawing takes.
        from atlas.report.figures.memory import plot_memory

        plot_memory(folder)


def _by_figure(scores: dict[str, ArmScore]) -> dict[str, dict[str, float]]:
    """{figure: {arm: value}}."""
    names = dict.fromkeys(name for score in scores.values() for name in score.figures)
    return {
        name: {arm: own.figures[name] for arm, own in scores.items() if name in own.figures}
        for name in names
    }
