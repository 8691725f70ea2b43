"""What a memory computes: the rule, its state, its precision, and the loop that defines it."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "rule": ["Rule", "Tokens"],
        "state": ["MemoryState", "initial_state"],
        "naive": ["run_naive"],
    },
)
