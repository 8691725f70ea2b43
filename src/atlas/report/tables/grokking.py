"""What a grokking run looks like on a terminal, while it runs and once it is finished."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from atlas.report.words.english import counted

CAPTION = (
    "known: step at which 99 % were right; waves: Fourier concentration of the neurons, 1 if each "
    "has one frequency"
)


def grokking_table(summary: Mapping[str, Any]) -> Table:
    """One row per arm, and what a guess would score."""
    title = f"{summary['task']}, {counted(summary['steps'], 'step')}, {summary['seconds']:.0f} s"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("arm", no_wrap=True)
    columns = ("learned pairs, %", "known", "held out, %", "known", "waves", "jump at")
    for column in (*columns, "seconds"):
        table.add_column(column, justify="right")
    table.add_column("phase", no_wrap=True)
    first_phase = {"name": "none: too few measurements"}
    for arm, found in sorted(summary["arms"].items(), key=lambda pair: -pair[1]["test_accuracy"]):
        jump = found["jump"]
        table.add_row(
            arm,
            _percent(found["train_accuracy"]),
            _step(found["memorised"]),
            _percent(found["test_accuracy"]),
            _step(found["generalised"]),
            f"{found['fourier']['neurons']:.2f}",
            "none" if jump is None else str(jump["step"]),
            f"{found['seconds']:.1f}",
            (found["phases"] or [first_phase])[-1]["name"],
        )
    table.add_section()
    table.add_row("chance", "", "", _percent(summary["chance"]))
    table.caption, table.caption_justify = CAPTION, "left"
    return table


class GrokkingLine:
    """One round's events as a line of text, and a line for every phase that an arm enters."""

    def __init__(self) -> None:
        self.steps = 0
        self.phases: dict[str, str] = {}

    def add(self, name: str, fields: Mapping[str, Any]) -> str | None:
        """The line, once a phase begins or a round is over."""
        if name in ("started", "resumed"):
            self.steps = fields["steps"]
            sizes = "  ".join(f"{arm} {size:,}" for arm, size in fields["parameters"].items())
            pairs = fields["pairs"]
            return (
                f"{fields['task']}  {pairs['learned']:,} pairs to learn from, "
                f"{pairs['held out']:,} held out  parameters: {sizes}"
            )
        if name == "measured":
            return self._phase(fields["arm"], fields["grokking_phase"], fields["step"])
        if name != "round_finished":
            return None
        arms = [
            f"{arm} learned {_percent(fields['train_accuracy'][arm])} held out {_percent(accuracy)}"
            f" waves {fields['fourier_concentration'][arm]:.2f}"
            for arm, accuracy in fields["test_accuracy"].items()
        ]
        return "  ".join(
            [f"step {fields['step']}/{self.steps}", *arms, f"{fields['seconds']:.1f} s"]
        )

    def _phase(self, arm: str, phase: str, step: int) -> str | None:
        before = self.phases.get(arm)
        self.phases[arm] = phase
        if before is None or before == phase:
            return None
        return f"  {arm}: phase {phase}, seen at step {step}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _step(step: int | None) -> str:
    return "never" if step is None else str(step)
