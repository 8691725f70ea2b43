"""A layer with a memory: attention, branch, gates, placement and the state they carry."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "layer": ["MemoryLayer"],
        "settings": ["LayerSettings", "Stage"],
        "state": ["BlockState", "BranchState", "LayerState", "WindowState"],
        "placement": ["PLACEMENTS"],
        "gates": ["Floors", "MemoryGates", "ReadMode"],
        "attention": ["WindowAttention"],
        "branch": ["MemoryBranch"],
        "continuum": ["ContinuumFeedForward", "SwiGLU"],
        "features": ["unit_features"],
        "observe": ["LayerView"],
    },
)
