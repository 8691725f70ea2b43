"""Pictures, drawn from run folders and results alone."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "run": ["plot_run"],
        "memory": ["plot_memory"],
        "study": ["plot_study"],
    },
)
