"""A run's figures in TensorBoard or MLflow, from its events."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "scalars": ["round_scalars"],
        "tracking": ["Tracking", "open_tracking"],
        "writers": ["check_library"],
    },
)
