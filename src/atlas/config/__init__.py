"""Configuration: strict models and how they are read."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "federation": ["FederationConfig"],
        "memory": ["MemoryConfig"],
        "load": ["RunConfig", "load_config", "preset_names"],
        "grid": ["Arm", "Case"],
    },
)
