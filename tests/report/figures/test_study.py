"""Pictures and tables of fabricated studies."""

import io
import itertools
import statistics

import pytest
from matplotlib.image import imread
from rich.console import Console

from atlas.report.figures.study import plot_study, swept_keys
from atlas.report.tables.compare import compare_table

METRICS = {"cola": "matthews", "sst2": "accuracy"}


def study(axes, *, ceiling=0.9, lacking=None):
    """The result of a study in which every run scores a little better than the one before."""
    rows = []
    for number, point in enumerate(itertools.product(*axes.values())):
        keys = dict(zip(axes, point, strict=True))
        tasks = {"cola": 0.001 * number, "sst2": 0.6 + 0.01 * number}
        if number == 0:
            tasks.pop(lacking, None)
        arm = " ".join(f"{k}={v}" for k, v in keys.items() if k != "seed") or "all"
        scores = {"mean": statistics.fmean(tasks.values()), "spread": 0.1, "worst": 0.0}
        sizes = {"bytes": {"up": 2_000_000, "down": 1_000_000}, "seconds": 7.0}
        rows.append({"arm": arm, "keys": keys, "tasks": tasks, **scores, **sizes})
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    tasks = {}
    for task, metric in METRICS.items():
        of_arm = {
            arm: [r["tasks"][task] for r in rows if r["arm"] == arm and task in r["tasks"]]
            for arm in arms
        }
        tasks[task] = {
            "metric": metric,
            "majority": 0.0 if task == "cola" else 0.5,
            "ceiling": ceiling,
            "arms": {arm: statistics.fmean(found) for arm, found in of_arm.items() if found},
            "at_chance": task == "cola",
        }
    tests = [{"t_test_p": None, "wilcoxon_p": None, "cohens_d": None} for _ in arms[1:]]
    return {
        "study": "fabricated", "rows": rows, "majority": 0.25, "ceiling": ceiling,
        "tasks": tasks, "tests": tests,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ({"seed": [0, 1]}, ["arms.png"]),
        ({"strategy": ["local", "fedavg"], "alone": [True, False]}, ["arms.png"]),
        ({"data.train": [16, None]}, ["arms.png"]),
        ({"relation.eta": [0, 0.01, 0.5], "seed": [0, 1]}, ["arms.png", "sweep-relation.eta.png"]),
        (
            {"strategy": ["local", "fedavg"], "rounds": [1, 2], "train.lr": [1e-3, 2e-3]},
            ["arms.png", "sweep-rounds.png", "sweep-train.lr.png"],
        ),
    ],
)
@pytest.mark.parametrize("ceiling", [0.9, None])
def test_every_study_has_bars_and_every_number_a_sweep(tmp_path, axes, expected, ceiling):
    plot_study(tmp_path, study(axes, ceiling=ceiling))
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == expected
    for name in expected:
        assert imread(tmp_path / "plots" / name).std() > 0.01


def test_a_sweep_shows_what_differs_and_stands_tasks_that_some_arms_lack(tmp_path):
    axes = {"rounds": [1, 2], "data.tasks": ["a", "b"]}
    result = study(axes, lacking="sst2")
    plot_study(tmp_path, result)
    before = imread(tmp_path / "plots" / "sweep-rounds.png")
    result["rows"][-1]["tasks"]["sst2"] += 0.2
    plot_study(tmp_path, result)
    assert (before != imread(tmp_path / "plots" / "sweep-rounds.png")).any()


def test_seeds_and_words_are_not_swept():
    rows = study({"strategy": ["a", "b"], "rounds": [1, 2], "seed": [0, 1]})["rows"]
    assert swept_keys(rows) == ["rounds"]


def test_tables_tell_tasks_apart_and_mark_those_at_chance():
    console = Console(width=100, file=io.StringIO())
    axes = {"strategy": ["local", "fedavg"], "seed": [0, 1]}
    console.print(compare_table(study(axes, ceiling=0.9)))
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    below = lines[lines.index(["task", "by", "task"]) :]
    assert ["strategy", "cola", "(Matthews),", "at", "chance", "sst2"] in below
    assert [line for line in below if line][3:7] == [
        ["majority", "0.0", "50.0"],
        ["local", "0.1", "60.5"],
        ["fedavg", "0.2", "62.5"],
        ["ceiling", "90.0", "90.0"],
    ]
    legend = " ".join(word for line in below[7:] for word in line)
    assert "spread: standard deviation of the mean over seeds" in legend
    assert "at chance: nothing beats the majority by more than 2 points" in legend
