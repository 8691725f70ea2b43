"""Bases in which models of different width and depth say the same."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "bases": ["Bases", "Basis", "make_bases"],
        "features": ["Features", "text_features"],
    },
)
