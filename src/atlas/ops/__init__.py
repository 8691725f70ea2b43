"""Pure functions on tensors: no I/O, configuration, logging or hidden randomness."""
