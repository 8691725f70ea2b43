"""A server for the clients of one run, from opening their adapters to the last request."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from atlas.errors import InputError
from atlas.jobs.federation.client_models import open_clients
from atlas.jobs.runner import use_threads
from atlas.jobs.serve.batcher import Batcher
from atlas.jobs.serve.guard import Guard, is_loopback, needed_token
from atlas.runs.folder import RunFolder
from atlas.runs.process import usable_cores


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
    uvicorn = _need_uvicorn()
    from atlas.jobs.serve.app import make_app

    with _listening(host, port) as listener:
        use_threads(usable_cores())
        models = open_clients(folder)
        needed = needed_token(host, token)
        place = f"http://{_shown(host)}:{listener.getsockname()[1]}"
        backbones = sorted({stack.model.backbone.name for stack in models.stacks})
        serving = Serving(folder.path.name, place, list(models.tasks), backbones, needed)
        with Batcher(models) as batcher:
            app = Guard(make_app(models, batcher, folder.path.name), needed)
            settings = uvicorn.Config(app, log_level="warning", lifespan="off")
            server = uvicorn.Server(settings)
            ready(serving)
            with contextlib.suppress(KeyboardInterrupt):  # the ordinary end
                server.run(sockets=[listener])


def _need_uvicorn() -> Any:  # noqa: ANN401 - a module
    try:
        import fastapi  # noqa: F401
        import uvicorn
    except ImportError:
        raise InputError(
            "serve: needs fastapi and uvicorn: pip install 'atlas-personal[ui]'"
        ) from None
    return uvicorn


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that is bound before any model is loaded, so that a taken port costs no time."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"--host {host} --port {port}: {reason}") from None
        yield listener


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


__all__ = ["Serving", "is_loopback", "serve_run"]
