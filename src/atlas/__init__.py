"""Language models made personal per token, per round and per federation.

`run`, `plan`, `compare` and `open_run` are the verbs of the command line in Python. Nothing heavy
is imported before one of them is called.
"""

from typing import TYPE_CHECKING

from atlas.exports import exports

if TYPE_CHECKING:
    from atlas.jobs.api import Run, compare, open_run, plan, run

__version__ = "0.1.0"
__all__ = ["Run", "__version__", "compare", "open_run", "plan", "run"]
_, __getattr__, __dir__ = exports(
    __name__, {"jobs.api": ["Run", "compare", "open_run", "plan", "run"]}
)
