"""The steps of a grokking run, and what it came to."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "steps": ["GrokkingJob"],
    },
)
