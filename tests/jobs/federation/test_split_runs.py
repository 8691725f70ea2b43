"""Split training from the settings to the summary."""

import io
import json

import jsonschema
from rich.console import Console

from atlas.jobs.federation.plan import plan_run
from atlas.jobs.runner import resume_run, start_run
from atlas.report.tables.plan import plan_view
from atlas.report.tables.runs import client_table
from atlas.runs.folder import schema
from tests.helpers import make_config, stop_after

DATA = {"tasks": ["sentiment"], "clients_per_task": 3, "train": 12, "validation": 8, "test": 10}
SPLIT = {
    "strategy": "atlas", "alone": "needed", "rounds": 2, "data": DATA,
    "adapter": {"modules": ["query", "value"], "blocks": 3, "rank": 2},
    "split": {"point": 1},
}  # fmt: skip


def shown(view):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(view)
    return console.export_text()


def test_a_split_run_tells_what_it_sent_and_resumes_to_the_same_bits(tmp_path):
    whole = start_run(make_config(**SPLIT), tmp_path / "whole").summary
    jsonschema.validate(whole, schema())
    sent = whole["bytes"]["split"]
    assert 0 < sent["up"] < whole["bytes"]["up"]
    assert 0 < sent["down"] < whole["bytes"]["down"]
    text = " ".join(shown(client_table(whole, {})).split())
    assert "splitting saves memory, not traffic" in text
    stopped = start_run(make_config(**SPLIT), tmp_path / "part", stop_after(1))
    again = resume_run(stopped.folder.path).summary
    assert again["adapters_sha256"] == whole["adapters_sha256"]
    assert again["bytes"]["split"] == sent
    plain = start_run(make_config(**{**SPLIT, "split": {}}), tmp_path / "plain").summary
    assert "split" not in plain["bytes"]
    assert "splitting" not in shown(client_table(plain, {}))


def test_the_plan_shows_split_points(tmp_path):
    settings = {
        **SPLIT, "split": {"point": "auto"}, "devices": {"big": {"memory_mb": 100}},
        "ranks": {"method": "importance", "choices": [1, 2, 4], "devices": ["big", "small"]},
    }  # fmt: skip

    def planned(small):
        given = {**settings, "devices": {**settings["devices"], "small": {"memory_mb": small}}}
        path = tmp_path / "federation.json"
        path.write_text(make_config(**given).model_dump_json())
        source = tmp_path / "federation.yaml"
        source.write_text(json.dumps(json.loads(path.read_text())))
        return plan_run(str(source), [])

    budgets = planned(100)["budgets"]
    assert all(entry["point"] is None for entry in budgets.values())
    tight = planned(0.9 * budgets["sentiment-2"]["used"] / 2**20)
    points = {client: entry["point"] for client, entry in tight["budgets"].items()}
    assert points["sentiment-1"] is None
    assert points["sentiment-2"] in (1, 2)
    text = shown(plan_view(tight))
    assert "blocks" in text
    assert " all" in text
