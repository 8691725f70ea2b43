"""Federations that are killed go on to the same adapters; see `tests/kills.py`."""

import pytest

from tests.helpers import make_config
from tests.kills import check_kills

DATA = {"train": 16, "validation": 8, "test": 12, "clients_per_task": 1}
KINDS = {
    "keep_best": {"keep_best": True, "train": {"keep_moments": True}},
    "sampled": {"strategy": "fedavg-body", "sample": 0.5, "absent": "last"},
}


def kill(folder, kind, count, seed):
    return check_kills(
        folder,
        lambda name: make_config(name=name, rounds=6, data=DATA, **KINDS[kind]),
        lambda summary: summary["adapters_sha256"],
        count,
        seed,
    )


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_killed_runs_resume_to_the_same_bits(tmp_path, kind):
    stages = kill(tmp_path, kind, 3, seed=1)
    assert max(stages) > 0, "a kill must fall into the rounds"


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_twenty_kills(tmp_path, kind):
    stages = kill(tmp_path, kind, 20, seed=2)
    print(f"\n{kind}: 20 of 20 kills resumed to the same adapters; rounds saved: {stages}")
    assert len(set(stages)) > 2
