"""The same rounds over Flower: in one process by its simulation, or over machines.

flwr is imported in this folder and nowhere else.
"""

import os

from atlas.exports import exports

# Read when flwr is loaded: nothing is reported to anybody, and nobody is asked for news.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "simulation": ["simulate"],
        "transport": ["FlowerTransport"],
    },
)
