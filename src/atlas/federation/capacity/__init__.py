"""What training takes on a device, and the ranks granted within it."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "cost": ["Need", "Workload", "client_need", "importance_of"],
        "grant": ["Grant", "Site"],
    },
)
