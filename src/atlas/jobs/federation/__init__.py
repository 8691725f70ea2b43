"""Federations from start to end: run and resume, plan, finish, and answer as a client would."""
