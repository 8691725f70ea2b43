"""Runs whose ranks follow memory budgets tell what was granted."""

import jsonschema

from atlas.jobs.federation.plan import plan_run
from atlas.jobs.runner import start_run
from atlas.runs.events import read_events
from atlas.runs.folder import schema
from tests.helpers import make_config

DATA = {"train": 16, "validation": 8, "test": 12, "clients_per_task": 3}
BUDGETS = {
    "ranks": {"method": "importance", "devices": ["a", "b", "c"]},
    "devices": {"a": {"room": 0.1}, "b": {"room": 0.5}, "c": {"room": 1.0}},
}


def run(folder, **changes):
    fingerprint = {"sketch": 64, "folds": 4}
    settings = {"strategy": "atlas", "rounds": 1, "data": DATA, "fingerprint": fingerprint}
    return start_run(make_config(**{**settings, **changes}), folder)


def test_a_run_under_budgets_tells_what_was_granted(tmp_path):
    finished = run(tmp_path, **BUDGETS)
    summary = finished.summary
    jsonschema.validate(summary, schema())
    events = read_events(finished.folder.events)
    granted = {event["client"]: event for event in events if event["event"] == "granted"}
    assert granted.keys() == summary["budgets"].keys() == summary["score"]["clients"].keys()
    for client, found in summary["budgets"].items():
        assert found == {key: granted[client][key] for key in found}
        assert found.keys() == {"device", "budget", "used", "valid", "measured", "lowered"}
        assert summary["ranks"][client] == granted[client]["ranks"]
    assert {found["device"] for found in summary["budgets"].values()} == {"a", "b", "c"}
    (cohort,) = events[0]["cohorts"].values()
    assert cohort["clients"] == sorted(granted)
    assert {len(event["ranks"]) for event in granted.values()} == {len(cohort["modules"])}
    pictures = {path.name for path in finished.folder.plots.iterdir()}
    assert pictures >= {"ranks.png", "rank-memory.png"}


def test_a_run_with_fixed_ranks_tells_of_no_budgets(tmp_path):
    finished = run(tmp_path, data={**DATA, "clients_per_task": 1})
    assert "budgets" not in finished.summary
    assert not {"ranks.png", "rank-memory.png"} & {p.name for p in finished.folder.plots.iterdir()}


def test_a_plan_has_the_grants_of_all_clients():
    sets = ["backbone.name=tiny", "data.clients_per_task=1", "fingerprint.sketch=64"]
    found = plan_run("demo", [*sets, "ranks.method=uniform", "ranks.budget=8"])
    assert found["budgets"].keys() == found["clients"].keys()
    for client, entry in found["budgets"].items():
        assert entry["budget"] == 8 * 2**20 and entry["ranks"] == found["ranks"][client]
