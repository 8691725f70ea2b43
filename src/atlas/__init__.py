"""Language models made personal per token, per round and per federation.

`run`, `plan`, `compare` and `open_run` are the verbs of the command line in Python, `federate` runs
data that lies in memory. Nothing heavy is imported before one of them is called.
"""

import os
from typing import TYPE_CHECKING

from atlas.exports import exports

if TYPE_CHECKING:
    from atlas.jobs.api import Run, compare, federate, open_run, plan, run

# Threads of torch wait for each other asleep instead of spinning, which on a shared machine takes
# the cores from those they wait for (docs/speed.md). It is read when torch is loaded, so it is set
# here; whoever has set either of these is obeyed.
if "GOMP_SPINCOUNT" not in os.environ:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"
__all__ = ["Run", "__version__", "compare", "federate", "open_run", "plan", "run"]
_, __getattr__, __dir__ = exports(
    __name__, {"jobs.api": ["Run", "compare", "federate", "open_run", "plan", "run"]}
)
