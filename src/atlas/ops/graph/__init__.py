"""Who is near whom: affinities of few clients, sparse edges and rows of many."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "affinity": [
            "lazy",
            "nearest",
            "rbf",
            "row_normalise",
            "symmetrise",
            "within",
            "without_self",
        ],
        "neighbours": ["near_edges", "nearest_points"],
        "sparse_rows": ["SharedRows"],
    },
)
