"""Studies over combinations, on the tiny backbone."""

import csv
import json

import pytest

from atlas.config.grid import Case
from atlas.errors import InputError
from atlas.jobs.federation.plan import plan_run
from atlas.jobs.study import compare
from atlas.jobs.study.cases import plan_study
from atlas.jobs.study.compare import run_study
from atlas.ops.metrics import share_of_way
from atlas.report.tables.compare import _with_share

TINY = [
    "backbone.name=tiny", "rounds=1", "threads=1", "data.train=16", "data.validation=8",
    "data.test=12", "data.clients_per_task=1", "train.lr=0.02",
]  # fmt: skip


def test_a_study_is_one_table_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    study = plan_study("demo", [*TINY, "strategy=local,fedavg", "seed=0,1"])
    assert len(study.configs) == 4
    assert sorted(study.ceilings) == [0, 1]
    result = run_study(study, tmp_path)
    assert [row["keys"] for row in result["rows"]] == [
        {"strategy": "local", "seed": 0},
        {"strategy": "local", "seed": 1},
        {"strategy": "fedavg", "seed": 0},
        {"strategy": "fedavg", "seed": 1},
    ]
    hashes = [row["adapters_sha256"] for row in result["rows"]]
    assert len(set(hashes)) == 4
    assert [(t["first"], t["second"], t["seeds"]) for t in result["tests"]] == [
        ("strategy=local", "strategy=fedavg", 2)
    ]
    means = [row["mean"] for row in result["rows"]]
    gap = (means[2] + means[3] - means[0] - means[1]) / 2
    assert result["tests"][0]["difference"] == pytest.approx(gap)
    assert 0 < result["ceiling"] <= 1
    assert result["majority"] == 0.5
    check_tasks_and_clients(result)
    folder = tmp_path / study.name
    assert json.loads((folder / "compare.json").read_text()) == result
    rows = list(csv.DictReader((folder / "compare.csv").open()))
    assert [row["adapters_sha256"] for row in rows] == hashes
    written = [float(row["task:order"]) for row in rows]
    assert written == [row["tasks"]["order"] for row in result["rows"]]
    assert (folder / "plots" / "arms.png").stat().st_size > 0
    assert not list(folder.glob("plots/sweep-*"))

    # The same command reads what is finished; a run that lost its summary is finished again.
    lost = next(folder.glob("fedavg-1-*/*/summary.json"))
    lost.unlink()
    started = []
    monkeypatch.setattr(compare, "start_run", lambda *arguments: started.append(arguments))
    again = run_study(study, tmp_path)
    assert not started
    assert [row["adapters_sha256"] for row in again["rows"]] == hashes


def check_tasks_and_clients(result):
    """With one client per task, a task's score is its client's."""
    assert list(result["tasks"]) == ["order", "paraphrase", "sentiment"]
    for task, found in result["tasks"].items():
        assert found["metric"] == "accuracy" and found["majority"] == 0.5
        for arm in ("strategy=local", "strategy=fedavg"):
            scores = [row["tasks"][task] for row in result["rows"] if row["arm"] == arm]
            assert found["arms"][arm] == pytest.approx(sum(scores) / 2)
            assert found["arms"][arm] == result["clients"][arm]["score"][f"{task}-1"]
        assert found["at_chance"] == (found["ceiling"] <= 0.52)
    assert result["clients"]["strategy=local"]["worst_gain"] == 0.0
    fedavg = result["clients"]["strategy=fedavg"]
    assert fedavg["worst_gain"] == min(fedavg["gain"].values())


def outcome(seed, score, tasks=None, alone=None, **keys):
    """A finished run with the given scores; clients a and b share a task."""
    mean = sum(score.values()) / len(score)
    summary = {
        "score": {"mean": mean, "spread": 0, "worst": 0, "clients": score},
        "majority": {"clients": dict.fromkeys(score, 0.5)},
        "metrics": dict.fromkeys(score, "accuracy"),
        "bytes": {"up": 1, "down": 2}, "seconds": 3, "adapters_sha256": "",
    }  # fmt: skip
    if alone:
        summary["alone"] = {"clients": alone}
    found = {"a": "one", "b": "one", "c": "two"} if tasks is None else tasks
    return compare.RunOutcome(Case((), {**keys, "seed": str(seed)}, keys), summary, found)


def test_tasks_and_clients_are_averaged_over_seeds():
    runs = [
        outcome(0, {"a": 0.6, "b": 0.8, "c": 0.51}, alone={"a": 0.7, "b": 0.7, "c": 0.5}, x="1"),
        outcome(1, {"a": 0.8, "b": 0.8, "c": 0.51}, alone={"a": 0.6, "b": 0.9, "c": 0.5}, x="1"),
        outcome(0, {"a": 0.6, "b": 0.6, "c": 0.5}, x="2"),
        outcome(1, {"a": 0.6, "b": 0.6, "c": 0.5}, x="2"),
    ]
    result = compare.draw_up(runs, [])
    assert result["rows"][0]["tasks"] == pytest.approx({"one": 0.7, "two": 0.51})
    assert result["tasks"]["one"]["arms"] == pytest.approx({"x=1": 0.75, "x=2": 0.6})
    first, second = result["clients"]["x=1"], result["clients"]["x=2"]
    assert first["gain"] == pytest.approx({"a": 0.05, "b": 0.0, "c": 0.01})
    assert first["worst_gain"] == pytest.approx(0.0)
    assert (second["gain"], second["worst_gain"]) == ({}, None)
    assert result["alone"]["mean"] == pytest.approx((1.9 + 2.0) / 6)
    assert result["alone"]["difference"] == pytest.approx((1.9 + 2.0) / 6 - (1.91 + 2.11) / 6)
    assert compare.draw_up(runs[2:], [])["alone"] is None


def test_how_much_of_the_way_to_the_ceiling_is_gone():
    runs = [
        outcome(0, {"a": 0.7, "c": 0.51}, alone={"a": 0.6, "c": 0.5}, x="1"),
        outcome(0, {"a": 0.5, "c": 0.52}, x="2"),
    ]
    ceiling = [outcome(0, {"a": 0.8, "c": 0.515}, strategy="pooled")]
    tasks = compare.draw_up(runs, ceiling)["tasks"]
    assert tasks["one"]["recovered"] == pytest.approx({"x=1": 0.5, "x=2": -0.5})
    assert tasks["one"]["alone"] == pytest.approx(0.6)
    assert tasks["one"]["recovered_error"] == {"x=1": None, "x=2": None}, "one seed tells nothing"
    assert tasks["two"]["recovered"] is None, "the way is too short to measure"
    assert tasks["two"]["recovered_error"] is None
    assert compare.draw_up(runs, [])["tasks"]["one"]["recovered"] is None


def test_the_error_of_the_share_is_over_seeds():
    scores = {0: (0.6, 0.7, 0.8), 1: (0.62, 0.64, 0.7), 2: (0.58, 0.7, 0.9)}
    runs = [outcome(s, {"a": x}, alone={"a": solo}, x="1") for s, (solo, x, _) in scores.items()]
    ceilings = [outcome(s, {"a": top}, strategy="pooled") for s, (*_, top) in scores.items()]
    task = compare.draw_up(runs, ceilings)["tasks"]["one"]
    share, error = share_of_way((0.7, 0.64, 0.7), (0.6, 0.62, 0.58), (0.8, 0.7, 0.9))
    assert task["recovered"]["x=1"] == pytest.approx(share)
    assert task["recovered_error"]["x=1"] == pytest.approx(error)
    assert "(40 ± 5 %)" in _with_share(task, "x=1")
    # A ceiling of fewer seeds still has a mean, and no error.
    task = compare.draw_up(runs, ceilings[:2])["tasks"]["one"]
    assert task["recovered"]["x=1"] == pytest.approx((0.68 - 0.6) / (0.75 - 0.6))
    assert task["recovered_error"]["x=1"] is None


@pytest.mark.parametrize(("best", "expected"), [(0.52, True), (0.53, False)])
def test_a_task_is_at_chance_by_its_ceiling_or_its_best_arm(best, expected):
    runs = [outcome(0, {"c": 0.5}, x="1"), outcome(0, {"c": best}, x="2")]
    assert compare.draw_up(runs, [])["tasks"]["two"]["at_chance"] is expected
    # The ceiling, where there is one, decides whatever the arms are like.
    ceiling = [outcome(0, {"c": best}, strategy="pooled")]
    high = [outcome(0, {"c": 0.9}, x="1")]
    assert compare.draw_up(high, ceiling)["tasks"]["two"]["at_chance"] is expected


def test_arms_may_differ_in_their_tasks_and_events_may_be_lost():
    runs = [outcome(0, {"a": 0.6}, x="1"), outcome(0, {"c": 0.6}, {}, x="2")]
    result = compare.draw_up(runs, [])
    assert {task: found["arms"] for task, found in result["tasks"].items()} == {
        "one": {"x=1": 0.6},
        "c": {"x=2": 0.6},
    }


def test_a_bad_value_is_found_before_anything_runs():
    with pytest.raises(InputError, match="unknown name 'nonsense'"):
        plan_study("demo", ["strategy=local,nonsense"])
    with pytest.raises(InputError, match="rounds"):
        plan_study("demo", ["rounds=1,-3"])


def test_a_compared_ceiling_is_not_run_twice():
    assert not plan_study("demo", ["strategy=local,pooled"]).ceilings
    assert not plan_study("demo", ["seed=0,1"], ceiling=False).ceilings


def test_plan_tells_who_takes_part_without_training():
    given = [*TINY, "adapter.ranks.order-1=[1,2,3,4]", "strategy=fedavg"]
    with pytest.raises(InputError, match=r"adapter.ranks.* ranks.method: importance"):
        plan_run("demo", given)
    plan = plan_run("demo", [*given, "ranks.method=fixed"])
    assert plan["ranks"]["order-1"] == [1, 2, 3, 4]
    assert plan["ranks"]["sentiment-1"] == [8, 8, 8, 8]
    assert plan["clusters"] is None
    assert plan["budgets"] == {}
    assert plan["clients"]["paraphrase-1"]["train"] == 16
