"""Studies: many runs laid out, shared out to processes, and compared in one table."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "cases": ["Study", "plan_study"],
        "compare": ["run_study"],
        "workers": ["run_apart"],
    },
)
