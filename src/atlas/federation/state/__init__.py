"""What is kept of very many clients: cohorts in a file."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "mapped": ["DiskCohort", "OnDisk"],
    },
)
