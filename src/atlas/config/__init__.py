"""Configuration: strict models and how they are read."""
