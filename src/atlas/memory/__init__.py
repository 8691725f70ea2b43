"""A memory that learns at test time: rules, layers, and the AtlasOmega model."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "rules.rule": ["Rule", "Tokens"],
        "rules.state": ["MemoryState", "initial_state"],
        "layer.layer": ["MemoryLayer"],
        "training.loop": ["Lines", "MemoryTrainer"],
    },
)
