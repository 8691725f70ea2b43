"""Atlas: language models made personal per token, per round and per federation."""

__version__ = "0.1.0"
