"""What a run need not hold in memory is not imported before it is used."""

import subprocess
import sys

HEAVY = ("sklearn", "scipy.stats", "matplotlib", "peft", "datasets", "pandas")


def imported(program):
    said = f"{program}\nimport sys; print(*sorted(set({HEAVY}) & set(sys.modules)))"
    command = [sys.executable, "-c", said]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_running_a_federation_imports_neither_clustering_nor_drawing():
    assert imported("import atlas.jobs.kinds") == []


def test_clustering_is_imported_where_it_is_called():
    call = "from atlas.ops.clusters import adjusted_rand as f; f([0, 1], [0, 1])"
    assert "sklearn" in imported(call)
