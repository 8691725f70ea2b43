"""Every client for itself."""

from atlas.federation.strategy import Strategy, identity, register

LOCAL = register(Strategy(name="local", relation=identity))
