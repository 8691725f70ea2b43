"""Tables for a terminal."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "runs": ["runs_table", "summary_table"],
        "compare": ["compare_table"],
        "plan": ["plan_view"],
        "join": ["join_view"],
    },
)
