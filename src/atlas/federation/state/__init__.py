"""What is kept of very many clients: cohorts in a file, and numbered states of a whole server."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "disk": ["DiskState", "Generation", "Spec"],
        "disk_mixing": ["mix_on_disk", "store_cohort"],
        "mapped": ["DiskCohort", "OnDisk"],
    },
)
