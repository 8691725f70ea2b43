"""Which modules travel for which client."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(__name__, {"masks": ["RouteState", "Routes"]})
