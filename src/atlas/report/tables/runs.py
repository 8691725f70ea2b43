"""What a finished run looks like on a terminal, whatever its kind."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from atlas.report.tables.grokking import grokking_table
from atlas.report.words.english import counted
from atlas.report.words.plain_text import spelled

SHORT = {
    "balanced_accuracy": "balanced",
    "matthews": "Matthews",
    "f1": "F1",
    "token_f1": "word F1",
    "exact_match": "exact",
}


TEXT = ("token_f1", "exact_match")
"""Metrics of written answers."""


def as_text(value: object) -> Text:
    """A name from a file as the text it is: no markup, nothing that steers the terminal."""
    return Text(spelled(str(value)))


def percent(value: float) -> str:
    """A score in percent with one decimal."""
    return f"{100 * value:.1f}"


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks of one client: one number where all layers are alike."""
    return str(ranks[0]) if len(set(ranks)) == 1 else f"{min(ranks)}-{max(ranks)}"


def task_text(task: str, metric: str) -> str:
    """A task, with its metric where that is not accuracy."""
    return f"{task} ({SHORT[metric]})" if metric in SHORT else task


def client_table(summary: Mapping[str, Any], tasks: Mapping[str, str]) -> Table:
    """One row per client: alone, federated, gain, traffic, and what guesses score beside.

    Guesses are the most frequent training answer and, where a task has answers to choose among,
    any of them. Scores are in percent of each task's own metric, named where it is not accuracy.
    """
    rounds = counted(summary["rounds"], "round")
    title = f"{summary['strategy']}, {rounds}, {summary['seconds']:.0f} s"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 0))
    for column in ("client", "task"):
        table.add_column(column, no_wrap=True)
    chance = summary.get("chance", {}).get("clients", {})
    guesses = ("chance", "majority") if chance else ("majority",)
    for column in ("ranks", *guesses, "alone", "federated", "gain", "up", "down"):
        table.add_column(column, justify="right", no_wrap=True)
    alone = summary.get("alone", {}).get("clients", {})
    for client, score in summary["score"]["clients"].items():
        both = summary["bytes"]["clients"].get(client)
        ranks, metric = summary["ranks"].get(client), summary["metrics"][client]
        table.add_row(
            as_text(client),
            as_text(task_text(tasks.get(client, ""), metric)),
            ranks_text(ranks) if ranks else "",
            *([percent(chance[client]) if client in chance else ""] if chance else []),
            percent(summary["majority"]["clients"][client]),
            percent(alone[client]) if client in alone else "",
            percent(score),
            f"{100 * (score - alone[client]):+.1f}" if client in alone else "",
            size(both["up"]) if both else "",
            size(both["down"]) if both else "",
        )
    table.add_section()
    gain, traffic = summary.get("gain"), summary["bytes"]
    table.add_row(
        "mean",
        "",
        "",
        *([""] if chance else []),
        percent(statistics.fmean(summary["majority"]["clients"].values())),
        percent(summary["alone"]["mean"]) if alone else "",
        percent(summary["score"]["mean"]),
        f"{100 * gain['mean']:+.1f}" if gain else "",
        size(traffic["up"] / len(traffic["clients"])),
        size(traffic["down"] / len(traffic["clients"])),
    )
    notes = [split_text(traffic)] if "split" in traffic else []
    if any(metric in TEXT for metric in summary["metrics"].values()) or chance:
        notes.append(loss_text(summary))
    table.caption = "\n".join(note for note in notes if note) or None
    worst = min(alone.values()) if alone else None
    table.add_row(
        "worst",
        *[""] * (2 + len(guesses)),
        percent(worst) if worst is not None else "",
        percent(summary["score"]["worst"]),
        f"{100 * gain['worst']:+.1f}" if gain else "",
    )
    return table


def loss_text(summary: Mapping[str, Any]) -> str:
    """How well the tokens of answers are foreseen; scores of few answers tell little."""
    loss = summary.get("loss") or {"mean": None}
    if loss["mean"] is None:
        return ""
    told = f"mean loss of the answers' tokens {loss['mean']:.3f}"
    alone = list(loss.get("alone", {}).values())
    if alone and None not in alone:
        told += f", alone {statistics.fmean(alone):.3f}"
    return told


def split_text(traffic: Mapping[str, Any]) -> str:
    """What splitting cost, beside what adapters and everything else took."""
    both = {way: traffic["split"][way] for way in ("up", "down")}
    rest = sum(traffic[way] - both[way] for way in both)
    return (
        f"split steps sent {size(both['up'])} of activations up and {size(both['down'])} of "
        f"gradients down, all else {size(rest)}: splitting saves memory, not traffic"
    )


def runs_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """All runs of a folder, one line each."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 0))
    for column in ("run", "state", "strategy"):
        table.add_column(column)
    for column in ("rounds", "seed", "score", "gain", "seconds"):
        table.add_column(column, justify="right")
    for row in rows:
        summary = row.get("summary") or {}
        score, gain = _score(summary), summary.get("gain")
        table.add_row(
            as_text(row["run"]),
            row["state"],
            as_text(row["strategy"]),
            f"{row['done']}/{row['rounds']}",
            str(row["seed"]),
            "" if score is None else percent(score),
            f"{100 * gain['mean']:+.1f}" if gain else "",
            f"{summary['seconds']:.1f}" if summary else "",
        )
    return table


def everything_view(
    rows: Sequence[Mapping[str, Any]],
    studies: Sequence[Mapping[str, Any]],
    joins: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Group:
    """All runs of a folder, the studies beside them, and who joined which run later."""
    parts: list[RenderableType] = []
    if rows or not studies:
        parts.append(runs_table(rows))
        parts += [Text(spelled(f"unreadable: {row['error']}")) for row in rows if "error" in row]
    if studies:
        parts.append(studies_table(studies))
    if any(joins.values()):
        parts.append(joins_table(joins))
    return Group(*parts, Text("one of them in full: atlas show NAME"))


def studies_table(studies: Sequence[Mapping[str, Any]]) -> Table:
    """One line per study: its arms and how many runs it has."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 0))
    table.add_column("study", no_wrap=True)
    table.add_column("arms")
    for column in ("runs", "best", "ceiling"):
        table.add_column(column, justify="right")
    for study in studies:
        means: dict[str, list[float]] = {}
        for row in study["rows"]:
            means.setdefault(row["arm"], []).append(row["mean"])
        ceiling = study.get("ceiling")
        table.add_row(
            as_text(study["study"]),
            as_text(", ".join(means)),
            str(len(study["rows"])),
            percent(max(statistics.fmean(scores) for scores in means.values())),
            "" if ceiling is None else percent(ceiling),
        )
    return table


def joins_table(joins: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """One line per newcomer."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 0))
    for column in ("newcomer", "joined"):
        table.add_column(column, no_wrap=True)
    for column in ("cluster", "start", "alone"):
        table.add_column(column, justify="right")
    for run, records in joins.items():
        for record in records:
            scores, cluster = record["scores"], record["cluster"]
            table.add_row(
                as_text(record["client"]),
                as_text(run),
                "" if cluster is None else str(cluster),
                *("" if scores.get(k) is None else percent(scores[k]) for k in ("start", "alone")),
            )
    return table


def _score(summary: Mapping[str, Any]) -> float | None:
    """The one figure of a run: its clients' mean, or what its first arm got right."""
    if "accuracy" in summary and "arms" in summary:
        return next(iter(summary["accuracy"].values()), None)
    return summary["score"]["mean"] if "score" in summary else None


FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "lookup_accuracy": ("stored sums", percent),
    "math_accuracy": ("new sums", percent),
    "perplexity": ("perplexity", "{:.1f}".format),
    "bits_per_byte": ("bits/byte", "{:.2f}".format),
}
"""Columns of a memory run that has them: what they are called, and how they are told."""


def memory_table(summary: Mapping[str, Any]) -> Table:
    """One row per arm, and what a guess would score."""
    title = f"{summary['task']}, {counted(summary['steps'], 'step')}, {summary['seconds']:.0f} s"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 0))
    table.add_column("arm", no_wrap=True)
    arms = summary["arms"]
    more = [name for name in FIGURES if any(name in found for found in arms.values())]
    columns = [FIGURES[name][0] for name in more]
    for column in ("accuracy", *columns, "loss", "parameters", "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    best_first = sorted(summary["arms"].items(), key=lambda pair: -pair[1]["accuracy"])
    for arm, found in best_first:
        loss = found["loss"]
        table.add_row(
            as_text(arm),
            percent(found["accuracy"]),
            *(FIGURES[name][1](found[name]) for name in more),
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


ALERTS = {
    "risk": "collapse risk of the memory's share",
    "dead": "share of dead channels",
    "share": "share of the memory",
}
"""What alerts are about, in words."""


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
        if name == "alert" and fields["raised"]:
            return (
                f"alert  {fields['arm']} step {fields['step']} {fields['layer']}: "
                f"{ALERTS[fields['measure']]} {fields['value']:.2f} (threshold "
                f"{fields['threshold']:.2f})"
            )
        if name != "round_finished":
            return None
        arms = [
            f"{arm} {percent(accuracy)} (loss {fields['loss'][arm]:.3f})"
            for arm, accuracy in fields["accuracy"].items()
        ]
        return "  ".join(
            [f"step {fields['step']}/{self.steps}", *arms, f"{fields['seconds']:.1f} s"]
        )


def summary_table(found: Mapping[str, Any]) -> Table:
    """Of a run as `describe_run` gives it."""
    if found["kind"] == "memory":
        return memory_table(found["summary"])
    if found["kind"] == "grokking":
        return grokking_table(found["summary"])
    return client_table(found["summary"], found["tasks"])
