"""What a server keeps of very many clients: on disk, mixed a module at a time."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "disk": ["DiskState", "Generation", "Spec"],
        "disk_mixing": ["mix_on_disk", "store_cohort"],
    },
)
