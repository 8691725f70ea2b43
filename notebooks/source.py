# %% [markdown]
# # Atlas in one notebook
#
# Language models made personal at three speeds: per federation (who learns from whom), per round
# (each client's low-rank adapter) and per token (a memory that learns while it reads). Every part
# below is one call of the same Python API that the command line has; nothing needs data or a GPU.
#
# The next cell installs Atlas where it is missing, as in Colab; set `ATLAS_SOURCE` to the address or
# the folder that it is to be installed from.

# %%
import importlib.util
import os
import subprocess
import sys

if importlib.util.find_spec("atlas") is None:
    source = os.environ.get("ATLAS_SOURCE", "atlas-personal")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", source, "pandas"], check=True)

# %%
from pathlib import Path
from tempfile import mkdtemp

import pandas

import atlas

OUT = Path(os.environ.get("ATLAS_NOTEBOOK_OUT") or mkdtemp())
TINY = os.environ.get("ATLAS_NOTEBOOK_SIZE") == "tiny"  # a random model, for tests of this notebook
MODEL = "tiny" if TINY else "minilm"
SMALL = {
    "backbone": {"name": MODEL},
    "data": {"train": 8, "validation": 8, "test": 8} if TINY else {"test": 100},
    "rounds": 1 if TINY else 3,
    "out": OUT,
}

# %% [markdown]
# ## Who learns from whom
#
# Nine clients with three kinds of task. Nobody tells the server who has which: gradient fingerprints
# do. `atlas` is the strategy that finds out by itself; `oracle` is a yardstick that reads the task
# labels.

# %%
run = atlas.run("demo", strategy="atlas", name="atlas", **SMALL)
run.table()[["task", "cluster", "rank", "majority", "alone", "score", "gain"]]

# %%
oracle = atlas.run("demo", strategy="oracle", name="oracle", **SMALL)
means = {r.config.strategy: r.table()[["alone", "score", "gain"]].mean() for r in (run, oracle)}
pandas.DataFrame(means)

# %% [markdown]
# Raw affinity of the fingerprints, and the neighbours that are left of it. Look for blocks along the
# diagonal: clients of one task.

# %%
run.plot("affinity")

# %% [markdown]
# The measures of every number of clusters that was tried, with the chosen one marked, and where each
# client's fingerprint lies.

# %%
run.plot("clusters")

# %%
run.plot("fingerprints")

# %% [markdown]
# The mixing matrix W of the last round: row k holds the shares of which client k's adapter was made.

# %%
run.weights().round(2)

# %% [markdown]
# ## How large a step: a sweep of eta
#
# W = (1 - eta) I + eta A. With eta = 0 everybody trains alone.

# %%
etas = [0.0, 0.5] if TINY else [0.0, 0.1, 0.3, 0.5]
sweep = atlas.compare("demo", ceiling=False, relation={"eta": etas}, strategy="atlas", **SMALL)
[(row["keys"]["relation.eta"], round(row["mean"], 3)) for row in sweep["rows"]]

# %% [markdown]
# ## Ranks under memory budgets
#
# Every task has a small, a medium and a large device. Memory bounds the sum of a client's ranks;
# gradients say in which modules they count most.

# %%
run.plot("ranks")

# %% [markdown]
# ## A client's model is plain PEFT

# %%
client = run.client("sentiment-1")
client.predict(["The plot was thin, but the music saved it.", "Nothing worked."])

# %%
type(client.model())

# %% [markdown]
# ## Different backbones: a mosaic
#
# First the baseline, SimGrad: clients weigh each other by the likeness of their gradients at a shared
# probe, all on one model. Then clients of two models of different depth, which share only small cores
# (PQ-LoRA), aligned by texts that nobody owns, with routing: not every module travels in every round.

# %%
simgrad = atlas.run("demo", "ranks.method=fixed", strategy="simgrad", name="simgrad", **SMALL)
simgrad.plot("relevance")

# %%
depth = 2 if TINY else 4
mixed = {**SMALL, "backbone": {"name": MODEL, "deal": [MODEL, f"{MODEL}@{depth}"]}}
mosaic = atlas.run(
    "demo",
    "ranks.method=fixed",
    "adapter.rank=4",
    strategy="mosaic-adaptive",
    name="mosaic",
    **mixed,
)
mosaic.table()[["task", "alone", "score", "gain", "up"]]

# %%
mosaic.plot("routing")

# %%
mosaic.plot("gates")

# %%
mosaic.summary["alignment"]["backbones"]

# %% [markdown]
# ## Data of one's own, from memory
#
# Texts and labels, a DataFrame or a `datasets.Dataset` for each client. They are written into the
# run's folder, so the run can be resumed tomorrow.

# %%
good, bad = ("lovely", "warm", "fresh"), ("awful", "cold", "stale")
shops = {
    f"shop-{n}": (
        [f"{word} tea on day {day} at {n}" for day in range(8) for word in (*good, *bad)],
        ["praise", "praise", "praise", "complaint", "complaint", "complaint"] * 8,
    )
    for n in (1, 2, 3)
}
own = atlas.federate(shops, task="mood", backbone=MODEL, name="shops", rounds=1, out=OUT)
own.client("shop-2").predict(["lovely fresh tea", "stale cold tea"])

# %% [markdown]
# ## Per token: a memory that learns while it reads
#
# Pairs of tokens are read once and asked for far out of attention's sight. The model with a memory can
# answer, the one with a window alone cannot. (A few steps only: more of them show it clearly.)

# %%
length = ["train.steps=4", "train.round_steps=2", "task.test=32"] if TINY else []
recall = atlas.run("recall", "size=quick", *length, out=OUT)
recall.table()[["accuracy", "loss", "parameters"]]

# %%
recall.plot("training")

# %% [markdown]
# ## Grokking
#
# A small network learns sums by heart, and long after that the rule behind them; its control, without
# weight decay, stays with what it learned by heart.

# %%
length = (
    ["task.modulus=11", "model.width=16", "train.steps=12", "train.round_steps=6"] if TINY else []
)
grokking = atlas.run("grokking", "size=quick", *length, "train.observe_every=3", out=OUT)
grokking.rounds().filter(like="accuracy").tail(3)

# %%
sorted(path.stem for path in grokking.folder.plots.glob("*.png"))
