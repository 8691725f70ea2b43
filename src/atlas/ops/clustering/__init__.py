"""Groups of points: partitions, how good they are, and whether a split is real."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "clusters": ["adjusted_rand", "kmeans_labels", "purity", "score_partition"],
        "gain": ["Gain", "Use", "held_out_products", "split_gain", "useful_splits"],
        "stability": ["bootstrap_stability", "real_splits"],
    },
)
