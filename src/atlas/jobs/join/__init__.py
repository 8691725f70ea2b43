"""Newcomers to a finished federation: read, placed, given a first adapter, kept."""
