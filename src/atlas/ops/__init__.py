"""Pure functions on tensors: no I/O, configuration, logging or hidden randomness."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "metrics": ["class_scores", "paired_comparison", "text_scores"],
        "fourier": ["circular_fit", "neuron_share", "residue_order", "spectrum"],
        "muon": ["Muon"],
        "optim": ["adamw_"],
        "stability": ["make_perpendicular_", "stablemax_cross_entropy"],
        "sketch": ["count_sketch", "pca"],
        "capacity": ["SOLVERS", "greedy_ranks"],
        "vocabulary": ["token_losses"],
    },
)
