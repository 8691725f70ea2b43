"""Many clients' texts through one frozen model."""
