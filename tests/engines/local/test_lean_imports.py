"""What a run need not hold in memory is not imported before it is used."""

import subprocess
import sys

import pytest

HEAVY = ("sklearn", "scipy.stats", "matplotlib", "peft", "datasets", "pandas")
HEAVY += ("scipy.cluster", "scipy.optimize", "torch._dynamo", "transformers.modeling_utils")
TRAINED = """
from pathlib import Path
from tempfile import TemporaryDirectory
from atlas.config.load import load_config
from atlas.jobs.runner import start_run

class Enough(Exception):
    pass

def watch(event, fields):
    if event == "round_finished":
        raise Enough

settings = ["strategy=fedavg", "alone=false", "validate_every=0", "ranks.method=fixed"]
settings += ["rounds=1", "data.train=4", "data.validation=1", "data.test=1", "backbone.name={}"]
with TemporaryDirectory() as folder:
    try:
        start_run(load_config("demo", settings), Path(folder), watch)
    except Enough:
        pass
"""


def imported(program):
    said = f"{program}\nimport sys; print(*sorted(set({HEAVY}) & set(sys.modules)))"
    command = [sys.executable, "-c", said]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_running_a_federation_imports_neither_clustering_nor_drawing():
    assert imported("import atlas.jobs.runner") == []


def test_clustering_is_imported_where_it_is_called():
    call = "from atlas.ops.clustering.clusters import adjusted_rand as f; f([0, 1], [0, 1])"
    assert "sklearn" in imported(call)


@pytest.mark.parametrize("backbone", ["tiny", "minilm"])
def test_training_on_an_encoder_imports_no_models_of_transformers(backbone):
    assert imported(TRAINED.replace("{}", backbone)) == []
