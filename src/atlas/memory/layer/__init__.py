"""A layer with a memory: attention, branch, gates, placement and the state they carry."""
