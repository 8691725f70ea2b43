"""How the verbs end: exit codes, and what is said of runs that stopped or could not be done."""

import json
import os
import re
import signal

import pytest

from tests.test_cli import TINY, atlas

__all__ = ["atlas"]

SMALL = [*TINY, "rounds=3"]


@pytest.fixture
def stop_early(monkeypatch):
    """Sends this process a signal once the first round is over."""

    def arrange(number):
        from atlas.report.live import PlainDisplay

        plain = PlainDisplay.event

        def event(self, name, fields):
            plain(self, name, fields)
            if name == "round_started" and fields["round"] == 2:
                os.kill(os.getpid(), number)

        monkeypatch.setattr(PlainDisplay, "event", event)

    return arrange


SIGNALS = [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_stopped_run_exits_with_130_and_goes_on(atlas, stop_early, number):
    stop_early(number)
    code, out, _ = atlas("run", *SMALL)
    assert code == 130
    assert "stopped after round 2; go on with: atlas resume runs/demo" in out
    code, out, err = atlas("resume", "demo")
    assert code == 0, err
    assert "round 3/3" in out and "round 2/3" not in out


def test_a_stopped_study_exits_with_130(atlas, stop_early):
    stop_early(signal.SIGINT)
    code, _, err = atlas("compare", *SMALL, "strategy=local,fedavg", "--no-ceiling")
    assert code == 130
    assert "stopped; the same command goes on from here" in err


def test_a_bad_setting_found_by_a_worker_exits_with_2(atlas):
    arguments = ["compare", "demo", "backbone.name=no/such", "strategy=local,fedavg", "seed=0,1"]
    one = atlas(*arguments)
    code, out, err = atlas(*arguments, "--workers", "2")
    assert code == one[0] == 2
    assert err.splitlines()[-1] == one[2].splitlines()[-1]
    assert "Traceback" not in out + err


@pytest.mark.slow
def test_runs_of_workers_are_listed_once(atlas):
    code, _, err = atlas(
        "compare", *TINY, "strategy=local", "seed=0,1", "--workers", "2", "--no-ceiling"
    )
    assert code == 0, err
    assert sum(line.endswith("seed=0: began") for line in err.splitlines()) == 1
    assert not any(line.endswith("seed=0") for line in err.splitlines()), err
    code, out, _ = atlas("show")
    assert code == 0
    (name,) = re.findall(r"demo-compare-[0-9a-f]{8}", out)
    assert json.loads(atlas("show", "--json")[1]) == [], "only runs, as before"
    shown = atlas("show", name)
    assert shown[0] == 0 and "task by task" in shown[1]


def test_newcomers_are_listed_with_the_run_they_joined(atlas, tmp_path):
    assert atlas("run", *TINY)[0] == 0
    joins = tmp_path / "runs" / "demo" / "joins"
    joins.mkdir()
    record = {"client": "shop", "cluster": 1, "scores": {"start": 0.625, "alone": None}}
    (joins / "shop.json").write_text(json.dumps(record))
    (joins / "broken.json").write_text("{")
    code, out, _ = atlas("show")
    assert code == 0
    assert ["shop", "demo", "1", "62.5"] in [line.split() for line in out.splitlines()]


def test_shell_completion_is_offered(atlas):
    code, out, _ = atlas("--help")
    assert code == 0 and "--install-completion" in out
