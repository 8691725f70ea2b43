"""Run folders: events, checkpoints, seeds, machine facts and summaries."""
