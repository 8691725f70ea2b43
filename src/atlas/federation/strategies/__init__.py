"""The strategies that ship with Atlas; importing this package registers them."""

from atlas.federation.strategies import baselines as fedavg
from atlas.federation.strategies import graphs, local, oracle, peers, pooled, ranks

__all__ = ["fedavg", "graphs", "local", "oracle", "peers", "pooled", "ranks"]
