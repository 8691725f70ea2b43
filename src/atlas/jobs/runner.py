"""What runs of every kind share: a folder begun, threads, the log and what watches it.

Any run, whatever its kind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from atlas.config.load import RunConfig, dump_config, load_resolved
from atlas.config.memory import MemoryConfig
from atlas.engines.local.engine import Progress
from atlas.errors import InputError
from atlas.jobs.federation.run import resume_run, start_run
from atlas.runs.events import EventLog
from atlas.runs.folder import RunFolder, read_summary, write_text_atomic
from atlas.runs.process import machine_facts, share_heap, usable_cores

ENDINGS = ("stopped", "tested")
"""Events of an end that is now no end, or that will be reached again."""
Watch = Callable[[str, Mapping[str, object]], None]


@dataclass(frozen=True)
class Finished:
    """Where a run is and, unless it was stopped before its end, its summary."""

    folder: RunFolder
    summary: dict[str, Any] | None


def new_folder(config: RunConfig, parent: Path, threads: int) -> RunFolder:
    """A fresh folder under `parent` that says what is run in it, and on what."""
    folder = RunFolder.create(parent, config.name)
    write_text_atomic(folder.machine, json.dumps(machine_facts(threads), indent=2) + "\n")
    # The config comes last: a folder is a run once it is there.
    write_text_atomic(folder.config, dump_config(config))
    return folder


def known_result(folder: RunFolder) -> Finished | None:
    """What a run came to, if it is finished already."""
    return Finished(folder, read_summary(folder.summary)) if folder.summary.exists() else None


def set_threads(config: RunConfig) -> int:
    """Give torch the threads that the settings name, all cores by default; returns how many."""
    return use_threads(config.threads or usable_cores())


def use_threads(threads: int) -> int:
    """Have torch use so many, and all of them one heap; returns how many."""
    share_heap()
    torch.set_num_threads(threads)
    return threads


def recorded_threads(folder: RunFolder) -> int:
    """The thread count a run was started with; other counts give other bits."""
    try:
        threads = json.loads(folder.machine.read_text(encoding="utf-8"))["threads"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder.machine}: cannot be read: {error}") from error
    if not isinstance(threads, int) or threads < 1:
        raise InputError(f"{folder.machine}: threads is {threads!r}; expected a whole number >= 1")
    return threads


def observer(log: EventLog, watch: Watch | None) -> Watch:
    """Writes events to the log, and passes them on."""

    def observe(event: str, fields: Mapping[str, object]) -> None:
        log.log(event, fields)
        if watch is not None:
            watch(event, fields)

    return observe


def start_any(
    config: RunConfig, parent: Path, watch: Watch | None = None, progress: Progress | None = None
) -> Finished:
    """Start a new run in a fresh folder under `parent`."""
    if isinstance(config, MemoryConfig):
        from atlas.jobs.memory.steps import start_memory  # a federation can do without its models

        return start_memory(config, parent, watch, progress)
    return start_run(config, parent, watch, progress)


def resume_any(
    path: Path, watch: Watch | None = None, progress: Progress | None = None
) -> Finished:
    """Go on with a run from its last saved round; of a finished run the summary is returned."""
    folder = RunFolder.open(path)
    if (done := known_result(folder)) is not None:
        return done  # whatever today's settings would say of it
    config = load_resolved(folder.config)
    if isinstance(config, MemoryConfig):
        from atlas.jobs.memory.steps import resume_memory

        return resume_memory(config, folder, watch, progress)
    return resume_run(path, watch, progress)
