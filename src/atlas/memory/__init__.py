"""A memory that learns at test time: rules, layers, and the AtlasOmega model."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "rules.rule": ["Rule", "Tokens"],
        "rules.state": ["MemoryState", "initial_state"],
        "kernels.chunked": ["run_rule"],
        "layer.layer": ["MemoryLayer"],
        "layer.settings": ["LayerSettings"],
        "training.loop": ["Lines", "MemoryTrainer"],
    },
)
