"""All clients in this process."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "engine": ["LocalEngine"],
        "groups": ["ClientGroup"],
    },
)
