"""All clients in this process."""
