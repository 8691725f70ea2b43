"""Benchmarks: Atlas and its peers at the same work, measured in one run.

A benchmark is a module of this package with `run(size, progress) -> Bench`; its name is in `NAMES`.
"""
