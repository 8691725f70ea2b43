"""Studies: many runs laid out, shared out to processes, and compared in one table."""
