"""Adapters: one client's, a whole cohort's, and what they do to a module."""
