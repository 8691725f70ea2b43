"""The sections of a page, one file for each of what there is to see."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "relations": ["taken_section"],
        "scores": ["clients_section", "losses_section", "scores_section"],
    },
)
