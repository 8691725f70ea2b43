"""Memory runs that are killed go on to the same weights; see `tests/kills.py`."""

import pytest

from atlas.config.load import load_config
from tests.jobs.memory.test_memory_runs import TINY
from tests.kills import check_kills

STEPS = [*TINY, "train.steps=30", "train.round_steps=5"]


def kill(folder, count, seed):
    return check_kills(
        folder,
        lambda name: load_config("recall", [*STEPS, f"name={name}"]),
        lambda summary: {arm: found["weights_sha256"] for arm, found in summary["arms"].items()},
        count,
        seed,
    )


def test_killed_memory_runs_resume_to_the_same_bits(tmp_path):
    stages = kill(tmp_path, 2, seed=1)
    assert max(stages) > 0, "a kill must fall into the rounds"


@pytest.mark.slow
def test_ten_kills(tmp_path):
    stages = kill(tmp_path, 10, seed=2)
    print(f"\n10 of 10 kills resumed to the same weights; rounds saved: {stages}")
    assert len(set(stages)) > 2
