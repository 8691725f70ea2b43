"""The federation: tasks, cohorts, strategies and the round loop."""
