"""Any run, whatever its kind."""

from __future__ import annotations

from pathlib import Path

from atlas.config.load import RunConfig, load_resolved
from atlas.config.memory import MemoryConfig
from atlas.engines.local.engine import Progress
from atlas.jobs.federation.run import resume_run, start_run
from atlas.jobs.runner import Finished, Watch, known_result
from atlas.runs.folder import RunFolder


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
