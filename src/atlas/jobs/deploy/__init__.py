"""Federations over machines: what the server's host and every node do."""
