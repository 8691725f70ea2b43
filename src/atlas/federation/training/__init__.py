"""Local training: the loop, one step of it, on all cores, split, and scores."""
