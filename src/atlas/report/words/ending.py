"""The end of a run as it is shown: the table, what it means, where things are, what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from atlas.config.federation import FederationConfig
from atlas.config.grokking import GrokkingConfig
from atlas.config.load import RunConfig, load_resolved
from atlas.config.memory import MemoryConfig
from atlas.report.tables.rounds import rounds_table
from atlas.report.tables.runs import runs_table, summary_table
from atlas.report.words.federation import federation_words
from atlas.report.words.grokking import grokking_words
from atlas.report.words.legends import CHOICE_LEGEND, RUN_LEGEND
from atlas.report.words.memory import memory_words
from atlas.report.words.plain_text import spelled
from atlas.runs.events import read_events
from atlas.runs.folder import RunFolder


def run_view(folder: RunFolder, found: Mapping[str, Any]) -> Group:
    """A finished run, as `describe_run` gives it, for people."""
    return Group(*_parts(folder, found))


def _parts(folder: RunFolder, found: Mapping[str, Any]) -> Iterator[RenderableType]:
    config = load_resolved(folder.config)
    yield summary_table(found)
    events = read_events(folder.events) if folder.events.exists() else []
    if isinstance(config, FederationConfig):
        guessed = CHOICE_LEGEND if "chance" in found["summary"] else ""
        yield Text(RUN_LEGEND + guessed, style="dim")
        yield Text()
        yield Text(spelled(federation_words(found["summary"], events, config)))
    elif isinstance(config, GrokkingConfig):
        yield Text(grokking_words(found["summary"]))
    else:
        yield Text(memory_words(found["summary"], config))
    yield Text()
    if (rounds := rounds_table(events, config.kind)) is not None:
        yield rounds
    # Paths and commands are there to be copied, so they are not broken into lines.
    for name, place in places(folder, found["summary"], config).items():
        yield Text(f"{name + ':':<12}{place}", no_wrap=True, overflow="ignore")


def unfinished_view(folder: RunFolder, found: Mapping[str, Any]) -> Group:
    """A run that is under way or was stopped: its line, and how its rounds went so far."""
    events = read_events(folder.events) if folder.events.exists() else []
    rounds = rounds_table(events, found["kind"])
    parts: list[RenderableType] = [runs_table([found])]
    if rounds is not None:
        parts.append(rounds)
    if found["state"] != "unreadable":
        parts.append(Text(f"go on with: atlas resume {folder.path}", no_wrap=True))
    return Group(*parts)


def places(folder: RunFolder, summary: Mapping[str, Any], config: RunConfig) -> dict[str, str]:
    """Where what a run left is, and the next command."""
    found = {"run folder": str(folder.path)}
    if folder.report.exists():
        found["report"] = f"{folder.report} (open it in a browser; it needs no network)"
    plots = sorted(path.name for path in folder.plots.glob("*.png"))
    if plots:
        found["plots"] = f"{folder.plots} ({', '.join(plots)})"
    if isinstance(config, GrokkingConfig):
        arms = ", ".join(summary["arms"])
        found["models"] = f"{folder.models} ({arms}), each a file of weights"
        longer = 2 * config.train.steps
        found["next"] = f"atlas resume {folder.path} train.steps={longer}"
        return found
    if isinstance(config, MemoryConfig):
        arms = ", ".join(summary["arms"])
        found["models"] = f"{folder.models} ({arms}), each with a README that says how to load it"
        best = max(summary["accuracy"], key=summary["accuracy"].__getitem__)
        if config.task.name == "text":
            found["next"] = f'atlas generate {folder.path} --arm {best} --prompt "To be"'
            return found
        found["next"] = (
            'python -c "import atlas.backbones.memory_lm, transformers as t; '
            f"print(t.AutoModelForCausalLM.from_pretrained('{folder.models / best}'))\""
        )
        return found
    scores = summary["score"]["clients"]
    alone = summary.get("alone", {}).get("clients", {})
    best = max(scores, key=lambda client: scores[client] - alone.get(client, 0.0))
    if not folder.adapters.is_dir():
        found["adapters"] = "none: adapter.gate=input has no form that PEFT knows"
        found["next"] = f"atlas show {folder.path}"
        return found
    found["adapters"] = f"{folder.adapters} (a plain PEFT folder for each client)"
    found["next"] = f"atlas export {folder.path} --client {best} --to {best}-adapter"
    return found
