"""Studies over combinations, on the tiny backbone."""

import csv
import json

import pytest

from atlas.errors import InputError
from atlas.jobs import compare
from atlas.jobs.compare import plan_study, run_study
from atlas.jobs.plan import plan_run

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
    folder = tmp_path / study.name
    assert json.loads((folder / "compare.json").read_text()) == result
    rows = list(csv.DictReader((folder / "compare.csv").open()))
    assert [row["adapters_sha256"] for row in rows] == hashes

    # The same command reads what is finished; a run that lost its summary is finished again.
    lost = next(folder.glob("fedavg-1-*/*/summary.json"))
    lost.unlink()
    started = []
    monkeypatch.setattr(compare, "start_run", lambda *arguments: started.append(arguments))
    again = run_study(study, tmp_path)
    assert not started
    assert [row["adapters_sha256"] for row in again["rows"]] == hashes


def test_a_bad_value_is_found_before_anything_runs():
    with pytest.raises(InputError, match="unknown name 'nonsense'"):
        plan_study("demo", ["strategy=local,nonsense"])
    with pytest.raises(InputError, match="rounds"):
        plan_study("demo", ["rounds=1,-3"])


def test_a_compared_ceiling_is_not_run_twice():
    assert not plan_study("demo", ["strategy=local,pooled"]).ceilings
    assert not plan_study("demo", ["seed=0,1"], ceiling=False).ceilings


def test_plan_tells_who_takes_part_without_training():
    plan = plan_run("demo", [*TINY, "adapter.ranks.order-1=[1,2,3,4]"])
    assert plan["ranks"]["order-1"] == [1, 2, 3, 4]
    assert plan["ranks"]["sentiment-1"] == [8, 8, 8, 8]
    assert plan["clusters"] is None
    assert plan["budgets"] == {}
    assert plan["clients"]["paraphrase-1"]["train"] == 16
