"""Clients of a finished run answered over HTTP: one backbone in memory, all adapters on it."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "app": ["answer_router"],
        "batcher": ["Batcher", "Busy"],
        "server": ["Serving", "serve_run"],
    },
)
