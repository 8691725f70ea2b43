"""Data: the edge to files, the hub and the synthetic generator."""
