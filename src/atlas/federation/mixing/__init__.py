"""From W to what clients hold: relate, apply, deliver."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "apply": ["Weights", "mix_cohort", "relate"],
        "deliver": ["Taken", "cluster_distance"],
    },
)
