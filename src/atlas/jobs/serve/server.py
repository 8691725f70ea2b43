"""A server for the clients of one run, from opening their adapters to the last request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from atlas.jobs.federation.client_models import open_clients
from atlas.jobs.runner import use_threads
from atlas.jobs.serve.batcher import Batcher
from atlas.report.live.serve import listen, need_server, serve
from atlas.runs.folder import RunFolder
from atlas.runs.process import usable_cores

PATIENCE = 10
"""Seconds that answers under way have when the server ends."""


@dataclass(frozen=True)
class Serving:
    """What was opened, and where it answers."""

    run: str
    address: str
    clients: list[str]
    backbones: list[str]
    token: str | None


def serve_run(
    folder: RunFolder,
    host: str,
    port: int,
    token: str | None,
    ready: Callable[[Serving], None],
) -> None:
    """Answer requests until the process is told to end.

    Args:
        folder: A finished federation.
        host: The address to listen at.
        port: The port; 0 for any that is free.
        token: What requests must bring. None: nothing at a loopback address, a new one elsewhere.
        ready: Told where it answers, once it does.

    Raises:
        InputError: A library is missing, the run has no adapters, or the address is taken.
    """
    need_server()
    from atlas.jobs.serve.app import answer_router
    from atlas.report.live.access import Access
    from atlas.report.live.app import create_app, page_router

    # Taken before any model is loaded, so that a port in use costs no time.
    with listen(host, port) as listening:
        access, path = Access.to(host, token), folder.path.resolve()
        use_threads(usable_cores())
        models = open_clients(folder)
        base = access.base(listening.getsockname()[1])
        backbones = sorted({stack.model.backbone.name for stack in models.stacks})
        serving = Serving(path.name, base, list(models.tasks), backbones, access.token)
        with Batcher(models) as batcher:
            routes = answer_router(models, batcher, path.name)
            page = page_router(path.parent, only=path.name)
            ready(serving)
            serve(create_app(access, [routes, page]), listening, PATIENCE)
