"""The rest of the memory model."""
