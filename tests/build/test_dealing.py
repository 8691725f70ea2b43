"""Several backbones in one federation of dealt data."""

import pytest

from atlas.build.dealing import backbone_names, deal_backbones
from atlas.build.federation import build_federation
from atlas.config.load import load_config
from atlas.data.clients import client_ids, load_clients
from atlas.errors import InputError
from atlas.jobs.federation.answer import evaluate_file, export_client, predict_texts
from atlas.jobs.runner import resume_run, start_run
from tests.helpers import make_client, make_config, make_task, stop_after

DATA = {"train": 8, "validation": 6, "test": 6, "clients_of": {"order": 1, "sentiment": 11}}
DEAL = {"name": "tiny", "deal": ["tiny", "tiny@2"]}


def test_every_task_has_a_mixture_and_names_of_its_own_stay():
    tasks = [make_task("a"), make_task("b")]
    clients = [make_client(f"{task.name}-{i}", task) for task in tasks for i in range(3)]
    clients[1] = make_client("a-1", tasks[0], backbone="minilm")
    dealt = deal_backbones(make_config(backbone=DEAL), clients)
    assert [c.backbone for c in dealt] == ["tiny", "minilm", "tiny", "tiny", "tiny@2", "tiny"]
    alike = deal_backbones(make_config(), clients)
    assert [c.backbone for c in alike] == ["tiny", "minilm", "tiny", "tiny", "tiny", "tiny"]


def test_settings_alone_tell_what_the_federation_has():
    config = make_config(backbone=DEAL, data=DATA)
    clients = load_clients(config)
    assert client_ids(config) == {c.id: c.task.name for c in clients}
    assert len(clients) == 3 + 1 + 11
    wanted = {c.id: c.backbone for c in deal_backbones(config, clients)}
    assert backbone_names(config) == wanted
    assert wanted["order-1"] == "tiny" and wanted["sentiment-10"] == "tiny@2"


def test_own_clients_are_dealt_to_by_task(tmp_path):
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"t {i},0\n" for i in range(9)))
    tasks = {"mood": {"text": ["text"], "labels": ["no", "yes"]}}
    rows = {"task": "mood", "data": str(tmp_path / "rows.csv")}
    own = [{"id": name, **rows} for name in ("c", "b", "a")]
    own[0]["backbone"] = "tiny@1"
    config = make_config(backbone=DEAL, tasks=tasks, clients=own)
    assert backbone_names(config) == {"a": "tiny", "b": "tiny@2", "c": "tiny@1"}
    with pytest.raises(InputError, match=r"data\.clients_of: mood given, but there are `clients`"):
        load_clients(make_config(tasks=tasks, clients=own, data={"clients_of": {"mood": 2}}))


def test_a_task_that_takes_no_part_is_told():
    with pytest.raises(InputError, match=r'data\.clients_of\.odor: "odor" is not among data\.task'):
        load_clients(make_config(data={**DATA, "clients_of": {"odor": 2}}))


def test_paths_among_them_become_absolute(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    config = load_config("demo", ["backbone.deal=[mine, mine@2, tiny]"])
    assert config.backbone.deal == [f"{tmp_path}/mine", f"{tmp_path}/mine@2", "tiny"]


def test_each_depth_is_a_cohort_and_bits_survive_a_stop(tmp_path):
    data = {"train": 8, "validation": 6, "test": 6, "tasks": ["order", "sentiment"]}
    settings = {"backbone": DEAL, "data": {**data, "clients_per_task": 2}, "strategy": "fedavg"}
    federation = build_federation(make_config(**settings))
    assert {n: c.clients for n, c in federation.state.cohorts.items()} == {
        "tiny": ("order-1", "sentiment-1"),
        "tiny@2": ("order-2", "sentiment-2"),
    }
    whole = start_run(make_config(**settings), tmp_path / "whole")
    stopped = start_run(make_config(**settings), tmp_path / "parts", stop_after(1))
    assert stopped.summary is None
    again = resume_run(stopped.folder.path)
    assert again.summary["adapters_sha256"] == whole.summary["adapters_sha256"]
    rows = tmp_path / "rows.csv"
    rows.write_text("sentence,label\na fine day,positive\n")
    for client in ("sentiment-1", "sentiment-2"):
        assert predict_texts(whole.folder, client, ["a fine day"])["client"] == client
        assert evaluate_file(whole.folder, client, rows)["examples"] == 1
        export_client(whole.folder, client, tmp_path / client)
