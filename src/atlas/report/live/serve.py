"""An address, and an application that is served there until Ctrl-C."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from atlas.errors import InputError

if TYPE_CHECKING:
    from fastapi import FastAPI

MISSING = (
    "fastapi and uvicorn are not installed; install them with: pip install 'atlas-personal[ui]'"
)


def need_server() -> None:
    """Say what to install where it is missing.

    Raises:
        InputError: It is.
    """
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise InputError(MISSING) from None


def listen(host: str, port: int) -> socket.socket:
    """Take an address; 0 is any port that is free.

    Raises:
        InputError: The address cannot be listened to.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--host {host} --port {port}: cannot listen there: {reason}") from None


def serve(app: FastAPI, listening: socket.socket, patience: int = 1) -> None:
    """Serve until the process is asked to stop.

    Args:
        app: What to serve.
        listening: Where; see `listen`.
        patience: Seconds that answers under way have at the end; whoever follows a run never ends.
    """
    import uvicorn

    config = uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=patience)
    with contextlib.suppress(KeyboardInterrupt):  # the ordinary end
        uvicorn.Server(config).run(sockets=[listening])
