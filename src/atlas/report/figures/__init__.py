"""Pictures, drawn from run folders and results alone."""
