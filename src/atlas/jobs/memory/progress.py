"""What a memory run remembers of every arm from round to round: scores, alerts, the best round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atlas.build.memory import MemoryRun
from atlas.config.memory_train import AlertSettings
from atlas.jobs.memory.scores import ArmScore
from atlas.memory.training.grokking.phase import PhaseStart, find_phases
from atlas.memory.training.loop import MemoryTrainer
from atlas.memory.training.watch import Alerts
from atlas.ops.fourier import circular_fit, neuron_share, residue_order

SERIES = ("masked_word_accuracy", "math_accuracy", "math_train_accuracy", "fourier_concentration")
"""Figures that phases and the last verdict are made from."""


@dataclass
class ArmProgress:
    """One arm's history, all of it plain values that a checkpoint can hold.

    Attributes:
        alerts: Which thresholds are crossed.
        steps: Of the rounds made.
        series: Figures after each of them, by name; None where there was none.
        best: Step and loss of the best round so far.
    """

    alerts: Alerts
    steps: list[int] = field(default_factory=list)
    series: dict[str, list[float | None]] = field(default_factory=dict)
    best: dict[str, float] | None = None

    def add(self, step: int, score: ArmScore, figures: Mapping[str, float]) -> bool:
        """Take down a round; says whether it is the best so far."""
        self.steps.append(step)
        for name in SERIES:
            self.series.setdefault(name, []).append({**score.figures, **figures}.get(name))
        if self.best is not None and not score.judged < self.best["loss"]:
            return False
        self.best = {"step": step, "loss": score.judged}
        return True

    def phases(self) -> list[PhaseStart]:
        """What the series says of how sums are learned."""
        fourier, known = self.series.get("fourier_concentration"), self.series.get("math_accuracy")
        if not fourier or not known:
            return []
        points = [
            (step, share, accuracy)
            for step, share, accuracy in zip(self.steps, fourier, known, strict=True)
            if share is not None and accuracy is not None
        ]
        return find_phases(*zip(*points, strict=True)) if points else []

    def plain(self) -> dict[str, Any]:
        """As a checkpoint holds it."""
        return {
            "alerts": sorted(self.alerts.active),
            "steps": self.steps,
            "series": self.series,
            "best": self.best,
        }

    @classmethod
    def load(cls, saved: Mapping[str, Any], settings: AlertSettings) -> ArmProgress:
        """Back from `plain`."""
        own = {name: list(values) for name, values in saved["series"].items()}
        return cls(Alerts(settings, saved["alerts"]), list(saved["steps"]), own, saved["best"])


def wave_figures(run: MemoryRun, learner: MemoryTrainer) -> dict[str, float]:
    """How far residues are waves in the embedding: of the operation where they are most."""
    found = wave_table(run, learner)
    if not found:
        return {}
    best = max(found.values(), key=lambda own: own["concentration"])
    return {"fourier_concentration": best["concentration"], "circular_fit": best["r_squared"]}


def wave_table(run: MemoryRun, learner: MemoryTrainer) -> dict[str, dict[str, float]]:
    """By operation: concentration (per column), and the circle at the strongest frequency."""
    sums = run.reading.sums
    if sums is None:
        return {}
    weight: Any = learner.model.get_input_embeddings().weight  # type: ignore[operator]
    rows = weight.detach().cpu()[sums.residues()]
    found = {}
    for name in sums.task.operations:
        table = rows[residue_order(name, sums.task.modulus)]
        fit = circular_fit(table)
        found[name] = {
            "concentration": neuron_share(table),
            "frequency": float(fit.frequency),
            "r_squared": fit.r_squared,
            "isotropy": fit.isotropy,
        }
    return found
