"""What tables and runs mean, in words: legends, and the end of a run."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "ending": ["run_view"],
        "english": ["counted", "listed"],
    },
)
