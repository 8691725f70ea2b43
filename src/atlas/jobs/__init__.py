"""What the verbs of the command line do, without the command line."""
