"""Training of models with a memory."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "loop": ["Lines", "MemoryTrainer"],
        "optimisers": ["Optimisers"],
    },
)
