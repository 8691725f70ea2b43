"""Who sees how far a run in Python is: the given watchers, or a notebook's reader."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from atlas.runs.events import Observe, Progress


@contextmanager
def shown(
    show: bool | None, watch: Observe | None, progress: Progress | None
) -> Iterator[tuple[Observe | None, Progress | None]]:
    """The watchers of a run.

    Args:
        show: Whether to print how far it is; None: in notebooks, unless there are watchers.
        watch: Receives events.
        progress: Receives (what, done, total).

    Yields:
        Both, as a run takes them; what is shown comes beside what is given.
    """
    if not (in_notebook() and watch is None and progress is None if show is None else show):
        yield watch, progress
        return
    from rich.console import Console

    from atlas.report.live import live_display

    # Plain text also where rich could draw: a notebook keeps it when it is saved.
    with live_display(Console(force_jupyter=False)) as display:

        def event(name: str, fields: object) -> None:
            display.event(name, fields)
            if watch is not None:
                watch(name, fields)  # type: ignore[arg-type]

        def step(what: str, done: int, total: int) -> None:
            display.step(what, done, total)
            if progress is not None:
                progress(what, done, total)

        yield event, step


def in_notebook() -> bool:
    """Whether this process runs the cells of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"
