"""Runs on real data and real small models; skipped without ATLAS_DATA."""

import pytest

from atlas.build.federation import build_federation
from atlas.data.clients import load_clients
from atlas.jobs.runner import start_run
from atlas.report.tables.runs import client_table
from tests.helpers import make_config
from tests.jobs.federation.test_split_runs import shown

SMALL = {"source": "files", "train": 24, "validation": 12, "test": 20}


def test_glue_tasks_from_files(real_data, tmp_path):
    tasks = ["sst2", "mrpc", "cola"]
    data = {**SMALL, "path": str(real_data), "tasks": tasks, "clients_per_task": 2}
    finished = start_run(make_config(data=data, backbone={"max_length": 48}), tmp_path)
    metrics = finished.summary["metrics"]
    assert metrics["cola-1"] == "matthews"
    assert metrics["mrpc-1"] == "balanced_accuracy"
    assert metrics["sst2-1"] == "accuracy"
    assert finished.summary["majority"]["clients"]["cola-1"] == 0.0
    assert not finished.summary["failures"]


def test_mnli_by_genre_and_other_label_counts_side_by_side(real_data):
    data = {**SMALL, "path": str(real_data), "tasks": ["mnli", "sst2"], "clients_per_task": 2}
    config = make_config(data=data)
    federation = build_federation(config)
    labels = {m.id: m.labels for m in federation.engine.groups[0].arms["held"].members}
    assert labels == {"mnli-1": 3, "mnli-2": 3, "sst2-1": 2, "sst2-2": 2}
    only = {**data, "tasks": ["mnli"], "partition": {"method": "field", "field": "genre"}}
    one, two = load_clients(make_config(data=only))
    assert not {e.texts for e in one.train} & {e.texts for e in two.train}


@pytest.mark.parametrize("task", ["csqa", "mnli-choice", "squad", "gsm8k"])
def test_causal_tasks_on_a_model_that_speaks(real_data, tmp_path, task):
    pytest.importorskip("sentencepiece")
    model = real_data.parent / "models" / "stories260K"
    if not model.is_dir():
        pytest.skip(f"needs the model folder {model.name} beside the data")
    data = {"source": "files", "path": str(real_data), "tasks": [task], "clients_per_task": 2,
            "train": 12, "validation": 6, "test": 6}  # fmt: skip
    backbone = {"name": str(model), "max_length": 256, "max_new_tokens": 8}
    losses = []

    def watch(event, fields):
        if event == "fitted":
            losses.append(fields["loss"])

    config = make_config(data=data, backbone=backbone, rounds=3, train={"lr": 0.005})
    finished = start_run(config, tmp_path, watch)
    assert sum(losses[-2:]) < sum(losses[:2]), "training on answers must lower their loss"
    assert not finished.summary["failures"]
    assert 0.0 <= finished.summary["score"]["mean"] <= 1.0
    chance = finished.summary.get("chance", {"clients": {}})["clients"]
    share = {"csqa": 1 / 5, "mnli-choice": 1 / 3}.get(task)
    assert list(chance.values()) == ([] if share is None else [pytest.approx(share)] * 2)
    assert finished.summary["loss"]["mean"] > 0
    text = shown(client_table(finished.summary, {}))
    assert ("chance" in text) == (share is not None)
    assert "mean loss of the answers' tokens" in " ".join(text.split())
