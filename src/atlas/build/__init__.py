"""From settings to objects; the only folder that knows both."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "federation": ["Federation", "assemble", "build_federation"],
        "memory": ["MemoryRun", "build_memory"],
        "models": ["find_model", "open_backbone"],
    },
)
