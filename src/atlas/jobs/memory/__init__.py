"""The steps of a memory run, and what it came to."""
