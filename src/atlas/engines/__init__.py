"""Where clients run; each engine answers `Transport.ask`."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "local.engine": ["LocalEngine"],
    },
)
