"""What training takes on a device, and the ranks granted within it."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "block_bytes": ["BlockBytes", "LargestBatch", "StepMeter"],
        "cost": ["Moment", "Need", "client_need", "importance_of"],
        "grant": ["Grant", "Site"],
    },
)
