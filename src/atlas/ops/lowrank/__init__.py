"""Low-rank changes of layers, and their mixtures."""
