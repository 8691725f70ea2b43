"""Training of models with a memory."""
