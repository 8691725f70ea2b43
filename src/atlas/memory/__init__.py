"""A memory that learns at test time: rules, layers, and the AtlasOmega model."""
