"""Every client for itself."""

from atlas.federation.strategies.base import Strategy, identity, register

LOCAL = register(Strategy(name="local", relation=identity))
