"""What a memory run looks like on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from atlas.report.tables.runs import percent


def memory_table(summary: Mapping[str, Any]) -> Table:
    """One row per arm, and what a guess would score."""
    title = f"{summary['task']}, {summary['steps']} steps, {summary['seconds']:.0f} s"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 0))
    table.add_column("arm", no_wrap=True)
    for column in ("accuracy", "loss", "parameters", "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    best_first = sorted(summary["arms"].items(), key=lambda pair: -pair[1]["accuracy"])
    for arm, found in best_first:
        loss = found["loss"]
        table.add_row(
            arm,
            percent(found["accuracy"]),
            "not finite" if loss is None else f"{loss:.3f}",
            f"{found['parameters']:,}",
            f"{found['seconds']:.1f}",
        )
    table.add_section()
    table.add_row("chance", percent(summary["chance"]))
    gates = summary["gates"]
    if gates["mean"] is not None:
        table.caption = f"share of the memory {gates['mean']:.2f}, floor {gates['floor']:.2f}"
    return table


class MemoryLine:
    """One round's events as a line of text."""

    def __init__(self) -> None:
        self.steps = 0

    def add(self, name: str, fields: Mapping[str, Any]) -> str | None:
        """The line, once the round is over."""
        if name in ("started", "resumed"):
            self.steps = fields["steps"]
            sizes = "  ".join(f"{arm} {size:,}" for arm, size in fields["parameters"].items())
            return f"{fields['task']}  parameters: {sizes}"
        if name != "round_finished":
            return None
        arms = [
            f"{arm} {percent(accuracy)} (loss {fields['loss'][arm]:.3f})"
            for arm, accuracy in fields["accuracy"].items()
        ]
        return "  ".join(
            [f"step {fields['step']}/{self.steps}", *arms, f"{fields['seconds']:.1f} s"]
        )
