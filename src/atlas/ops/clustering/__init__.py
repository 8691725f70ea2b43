"""Groups of points: partitions, how good they are, and whether a split is real."""
