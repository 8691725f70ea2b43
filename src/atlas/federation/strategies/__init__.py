"""The strategies that ship with Atlas; importing this package registers them."""

from atlas.federation.strategies import baselines as fedavg
from atlas.federation.strategies import baselines as local
from atlas.federation.strategies import baselines as oracle
from atlas.federation.strategies import baselines as pooled
from atlas.federation.strategies import graphs, peers
from atlas.federation.strategies import peers as ranks

__all__ = ["fedavg", "graphs", "local", "oracle", "peers", "pooled", "ranks"]
