"""The preset `mosaic` in its quick size, on real prompts; skipped without ATLAS_DATA."""

import json

import jsonschema
import pytest

from atlas.config.load import load_config
from atlas.jobs.federation.answer import evaluate_file
from atlas.jobs.runner import start_run
from atlas.runs.folder import schema

CLIENTS = [f"{task}-{i}" for task in ("csqa", "mnli-choice", "squad") for i in (1, 2, 3)]


def test_ten_clients_two_depths_four_kinds_of_prompts(real_data, tmp_path):
    config = load_config("mosaic", ["size=quick", "threads=1", f"data.path={real_data}"])
    steps = []
    finished = start_run(config, tmp_path, progress=lambda *step: steps.append(step))
    summary = finished.summary
    assert sorted(summary["score"]["clients"]) == sorted([*CLIENTS, "gsm8k-1"])
    assert not summary["failures"] and not summary["refused"]
    jsonschema.validate(json.loads(finished.folder.summary.read_text()), schema())
    assert summary["chance"]["clients"]["csqa-1"] == pytest.approx(0.2)
    assert summary["chance"]["clients"]["mnli-choice-3"] == pytest.approx(1 / 3)
    assert "squad-1" not in summary["chance"]["clients"]
    assert summary["metrics"]["squad-1"] == "token_f1" and summary["loss"]["mean"] > 0
    assert set(summary["loss"]["alone"]) == set(summary["score"]["clients"])
    assert {what for what, *_ in steps} >= {"training", "answers"}
    for client, blocks in (("squad-1", 3), ("squad-2", 2)):
        about = json.loads((finished.folder.adapters / client / "atlas.json").read_text())
        assert about["backbone"]["depth"] == blocks
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"premise": "It rains.", "hypothesis": "It is dry.", "label": 2}\n')
    assert evaluate_file(finished.folder, "mnli-choice-2", rows)["examples"] == 1
