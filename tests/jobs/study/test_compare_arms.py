"""Studies over arms, and the distances that runs record, on the tiny backbone."""

import csv
import json
import sys

import pytest

from atlas import cli
from atlas.errors import InputError
from atlas.jobs.study import compare
from atlas.jobs.study.cases import folder_name, plan_study
from atlas.jobs.study.compare import run_study
from atlas.jobs.study.outcomes import ends_of_distance
from tests.jobs.study.test_compare import TINY

ARMS = ["strategy=fedavg keep_best=true", "control: strategy=fedavg keep_best=false relation.eta=0"]


def test_arms_are_compared_like_combinations(tmp_path, monkeypatch):
    study = plan_study("demo", [*TINY, "seed=0,1"], ARMS, ceiling=False)
    assert [config.keep_best for config in study.configs] == [True, True, False, False]
    result = run_study(study, tmp_path)
    rows = result["rows"]
    names = ["strategy=fedavg keep_best=true", "control"]
    assert [row["arm"] for row in rows] == [names[0], names[0], names[1], names[1]]
    assert rows[0]["keys"] == {"strategy": "fedavg", "keep_best": True, "seed": 0}
    changes = {"keep_best": False, "relation.eta": 0}
    assert rows[3]["keys"] == {"strategy": "fedavg", **changes, "seed": 1}
    assert rows[3]["columns"] == {"arm": "control"}
    means = [row["mean"] for row in rows]
    assert [(t["first"], t["second"], t["seeds"]) for t in result["tests"]] == [(*names, 2)]
    gap = (means[2] + means[3] - means[0] - means[1]) / 2
    assert result["tests"][0]["difference"] == pytest.approx(gap)
    assert list(result["tasks"]["order"]["arms"]) == list(result["clients"]) == names
    folder = tmp_path / study.name
    assert json.loads((folder / "compare.json").read_text()) == result
    written = list(csv.DictReader((folder / "compare.csv").open()))
    assert [row["arm"] for row in written] == [row["arm"] for row in rows]
    assert [row["keep_best"] for row in written] == ["True", "True", "False", "False"]
    assert (folder / "plots" / "arms.png").stat().st_size > 0

    # Other labels are other words for the same runs, which are read and not run again.
    monkeypatch.setattr(compare, "start_run", lambda *arguments: pytest.fail("run again"))
    relabelled = ["plain: " + ARMS[0], ARMS[1].replace("control", "no graph")]
    again = run_study(plan_study("demo", [*TINY, "seed=0,1"], relabelled, ceiling=False), tmp_path)
    assert [row["arm"] for row in again["rows"]][::2] == ["plain", "no graph"]
    assert [row["mean"] for row in again["rows"]] == means


def test_a_study_without_arms_has_the_folders_it_always_had():
    study = plan_study("demo", ["strategy=local,fedavg", "seed=0,1"])
    folders = [folder_name(case.keys) for case, _ in study.jobs()]
    assert folders[:3] == ["local-0-c43063", "local-1-a1fd1c", "fedavg-0-abb901"]


def test_the_keys_of_an_arm_are_checked_like_others():
    with pytest.raises(InputError, match=r"did you mean relation\.eta"):
        plan_study("demo", ["seed=0,1"], ["strategy=fedavg relation.eat=0"])
    with pytest.raises(InputError, match="unknown name 'fedvag'; did you mean fedavg"):
        plan_study("demo", ["seed=0,1"], ["strategy=fedvag"])


def mixed(number, trained, after, cohort="one"):
    distance = {"trained": trained, "mixed": after}
    return {"event": "mixed", "round": number, "cohort": cohort, "distance": distance}


def test_distances_are_those_of_the_first_and_the_last_round():
    events = [
        {"event": "started"},
        mixed(1, 4.0, 2.0), mixed(1, 2.0, 1.0, "two"), mixed(2, 9.0, 9.0), mixed(3, 0.5, 0.25),
    ]  # fmt: skip
    last = {"trained": 0.5, "mixed": 0.25}
    assert ends_of_distance(events) == {"first": {"trained": 3.0, "mixed": 1.5}, "last": last}
    assert ends_of_distance(events[-1:]) == {"first": last, "last": last}


def test_runs_may_tell_no_distance():
    plain = {"event": "mixed", "round": 1, "cohort": "one"}
    unknown = [plain, {**plain, "distance": None}, mixed(1, None, None), mixed(1, 1.0, None)]
    assert ends_of_distance([]) is None
    assert ends_of_distance(unknown) is None
    one = {"trained": 2.0, "mixed": 1.0}
    assert ends_of_distance([*unknown, mixed(2, 2.0, 1.0)]) == {"first": one, "last": one}


def tell_distance(path, found):
    """Let a finished run have logged a distance."""
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for event in events:
        if event["event"] == "mixed":
            event["distance"] = found
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


def test_rows_tell_the_distance_and_tables_show_it(tmp_path, monkeypatch, capsys):
    arms = ["--arm", "a: relation.eta=0", "--arm", "b: alone=false keep_best=false"]
    command = ["compare", "demo", *TINY, *arms, "--no-ceiling", "--out", str(tmp_path)]
    assert call(monkeypatch, command) == 0
    kept, report = capsys.readouterr().out.splitlines()[-2:]
    study = next(tmp_path.iterdir())
    assert kept == f"runs, compare.json, compare.csv and plots/: {study}"
    assert report.startswith(f"report: {study / 'report.html'} ")
    logs = {path.parents[1].name.split("-")[0]: path for path in study.glob("*/*/events.jsonl")}
    tell_distance(logs["0"], {"trained": 2.0, "mixed": 0.12345})
    tell_distance(logs["false"], None)
    assert call(monkeypatch, command) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    heading = "arm seeds mean spread worst gain MB seconds distance last p (t) p (W) d"
    assert heading.split() in lines
    first = next(line for line in lines if line[:1] == ["a"])
    assert first[-2:] == ["0.123", "0.123"]
    rows = json.loads((study / "compare.json").read_text())["rows"]
    both = {"trained": 2.0, "mixed": 0.12345}
    assert [row["distance"] for row in rows] == [{"first": both, "last": both}, None]


def call(monkeypatch, command):
    monkeypatch.setattr(sys, "argv", ["atlas", *command])
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_nothing_to_compare_exits_with_2(monkeypatch, capsys):
    assert call(monkeypatch, ["compare", "demo"]) == 2
    assert "error: nothing to compare" in capsys.readouterr().err
    assert call(monkeypatch, ["compare", "demo", "--arm", "a=1 a=2"]) == 2
    assert "a is given twice" in capsys.readouterr().err
