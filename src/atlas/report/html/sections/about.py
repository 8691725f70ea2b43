"""The end of a report: the exact command, the settings, the machine."""

from __future__ import annotations

import json

from atlas.report.html.charts import Section, Spec
from atlas.report.read.log import events_of
from atlas.report.read.source import RunSource

ABOUT = "About"


def about_section(run: RunSource) -> Section:
    """How to make this run again, and what it ran on."""
    began = next(events_of(run.events, "started", "resumed"), {})
    machine = {key: value for key, value in run.machine.items() if key != "command"}
    versions = machine.pop("versions", None) or {}
    facts = {key.removesuffix("_bytes"): _words(value) for key, value in machine.items()}
    facts |= {name: str(version) for name, version in versions.items() if version}
    texts: list[Spec] = [{"title": "Command", "text": command_of(run), "open": True}]
    if run.config_text:
        texts.append({"title": "Settings (config.yaml)", "text": run.config_text})
    if facts:
        text = "\n".join(f"{key:<16}{value}" for key, value in facts.items())
        texts.append({"title": "Machine and versions", "text": text})
    started = str(began.get("time", ""))[:19].replace("T", " ")
    when = f" It was started on {started} UTC." if started else ""
    return Section(
        "about",
        ABOUT,
        "How this run was made",
        f"The command, all settings and the machine.{when}",
        "The same command with the same data gives the same numbers on the same machine and "
        "thread count.",
        texts=texts,
    )


def command_of(run: RunSource) -> str:
    """The command that was given; where nobody wrote it down, one that does the same."""
    told = run.machine.get("command")
    same = f"atlas run {run.path / 'config.yaml'}"
    return f"{told}\n# or, from the settings below:\n{same}" if told else same


def _words(value: object) -> str:
    if isinstance(value, int) and value > 10**9:
        return f"{value / 1e9:.1f} GB"
    return value if isinstance(value, str) else json.dumps(value)
