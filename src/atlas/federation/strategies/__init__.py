"""The strategies that ship with Atlas; importing this package registers them."""

from atlas.federation.strategies import fedavg, local, oracle, pooled

__all__ = ["fedavg", "local", "oracle", "pooled"]
