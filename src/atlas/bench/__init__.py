"""Benchmarks: Atlas and its peers at the same work, measured in one run.

A benchmark is a module of this package with `run(size, progress) -> Bench`; its name is in `NAMES`.
"""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "processes": ["Bench", "run_bench", "save_bench"],
    },
)
