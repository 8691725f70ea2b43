"""A Flower server app around whatever makes the rounds."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.task_identity import TaskIdentity

from atlas.engines.flower.link import end_with
from atlas.engines.flower.post import Post


def server_app(make_run: Callable[[Post, Mapping[str, object]], None]) -> ServerApp:
    """A server app.

    Args:
        make_run: Makes the rounds, given the way to nodes and Flower's config of the run. What it
            raises fails the run.
    """
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        logging.getLogger("httpx").setLevel(logging.WARNING)
        # Flower sends SIGINT when its server is gone, which a run takes for a wish to stop after
        # this round. But nobody will answer, and the server's next life needs the run's folder.
        end_with(os.getppid())
        make_run(Post(grid, context.run_id, TaskIdentity.task_id), dict(context.run_config))

    app.main()(main)
    return app
