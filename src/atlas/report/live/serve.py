"""Serves an application on an address until Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
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


def serve(app: FastAPI, host: str, port: int, ready: Callable[[int], None]) -> None:
    """Serve until the process is asked to stop.

    Args:
        app: What to serve.
        host: Address to listen to.
        port: 0 takes any that is free.
        ready: Told the port once it is taken.

    Raises:
        InputError: The address cannot be listened to.
    """
    import socket

    import uvicorn

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--host {host} --port {port}: cannot listen there: {reason}") from None
    with listening:
        ready(listening.getsockname()[1])
        # Followers hold their lines open, so the end does not wait for them.
        config = uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=1)
        uvicorn.Server(config).run(sockets=[listening])
