"""The strategies that ship with Atlas; importing this package registers them."""

from atlas.federation.strategies import baselines, graphs, peers, relevance
from atlas.federation.strategies.base import (
    STRATEGIES,
    Strategy,
    View,
    find_strategy,
    list_strategies,
    register,
)

__all__ = [
    "STRATEGIES",
    "Strategy",
    "View",
    "baselines",
    "find_strategy",
    "graphs",
    "list_strategies",
    "peers",
    "register",
    "relevance",
]
