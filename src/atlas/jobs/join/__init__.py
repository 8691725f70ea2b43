"""Newcomers to a finished federation: read, placed, given a first adapter, kept."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "join": ["join_run"],
        "newcomer": ["Newcomer"],
    },
)
