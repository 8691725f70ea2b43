"""A newcomer joins a finished run on the tiny backbone."""

import hashlib
import json
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file

from atlas import cli
from atlas.backbones.export import load_adapter
from atlas.build.federation import assemble
from atlas.config.federation import DataSettings
from atlas.data.clients import load_clients
from atlas.data.synthetic import synthetic_clients
from atlas.errors import InputError
from atlas.federation.adapters.adapter import Layout, Member, initial_adapter
from atlas.federation.prepare import ask_prints
from atlas.federation.server import Server
from atlas.jobs.federation.answer import evaluate_file, export_client, predict_texts
from atlas.jobs.join import finished_run as joins
from atlas.jobs.join.join import join_run
from atlas.jobs.join.newcomer import Newcomer, newcomer_config
from atlas.jobs.runner import start_run
from atlas.runs.folder import RunFolder
from tests.helpers import make_config

DATA = {"train": 32, "validation": 8, "test": 12, "tasks": ["paraphrase", "sentiment"]}
CLUSTERS = {"k": 2, "resamples": 2}
MOODS = ("bad", "so-so", "good")


def config(**changes):
    settings = {"strategy": "atlas", "data": DATA, "clusters": CLUSTERS, **changes}
    return make_config(adapter={"ranks": {"paraphrase-2": 5}}, train={"lr": 0.05}, **settings)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return start_run(config(), tmp_path_factory.mktemp("runs"))


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of the run of its own for every test."""
    shutil.copytree(finished.folder.path, tmp_path / "run")
    return RunFolder.open(tmp_path / "run")


def records(task, count, seed=7):
    """Labelled texts that the run's clients do not have."""
    settings = DataSettings(tasks=[task], train=count, validation=1, test=1, clients_per_task=1)
    (client,) = synthetic_clients(settings, seed)
    fields = client.task.text
    return [
        {**dict(zip(fields, e.texts, strict=True)), "label": client.task.labels[e.label]}
        for e in client.train
    ]


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def pairs(tmp_path):
    return write(tmp_path / "shop.jsonl", records("paraphrase", 60))


def tree(folder):
    """Every file of a run but its lock, by hash."""
    return {
        str(path.relative_to(folder.path)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.path.rglob("*"))
        if path.is_file() and path.name != ".lock"
    } | {str(p.relative_to(folder.path)): "" for p in folder.path.rglob("*") if p.is_dir()}


def join(folder, file, *, solo=False, **asked):
    return join_run(folder, Newcomer(file, **asked), solo=solo)


def test_a_newcomer_is_placed_with_its_kind(folder, finished, pairs):
    before = tree(folder)
    found = join(folder, pairs)
    labels = finished.summary["clusters"]["labels"]
    kind = {client for client in labels if client.startswith("paraphrase")}
    assert {labels[client] for client in kind} == {found["cluster"]}
    assert set(found["affinities"]) == {"0", "1"}
    assert max(found["affinities"], key=found["affinities"].get) == str(found["cluster"])
    assert set(found["neighbours"]) <= kind
    assert sum(found["neighbours"].values()) == pytest.approx(1.0, abs=1e-12)
    assert (found["client"], found["task"]) == ("shop", "paraphrase"), "both guessed"
    assert found["examples"] == {"train": 32, "validation": 8, "test": 12}
    assert found["scores"]["alone"] is None

    after = tree(folder)
    assert json.loads((folder.path / "joins" / "shop.json").read_text()) == found
    assert {name: after[name] for name in before} == before, "nobody else's file changed"
    added = {name for name in after if name not in before and after[name]}
    adapter = {"README.md", "adapter_config.json", "adapter_model.safetensors", "atlas.json"}
    kept = {"joins/shop.json", "joins/shop.safetensors"}
    assert added == kept | {f"adapters/shop/{name}" for name in adapter}
    sketches = load_file(folder.path / "joins" / "shop.safetensors")
    assert set(sketches) == {"text", "label", "text/head", "label/head"}


def test_a_newcomer_is_fingerprinted_as_the_runs_clients_were(folder):
    """The same client with the same data, alone, sends what it sent among all the others."""
    run = joins.open_finished(folder)
    crowd = joins.planned_crowd(run, folder)
    (data,) = [c for c in load_clients(config()) if c.id == "sentiment-1"]
    plain = newcomer_config(run.config, Newcomer(folder.path), data.id, data.task)
    guest = assemble(plain, [data])
    observe = Server(guest.state, guest.engine, lambda event, fields: None, round=0)
    (told,) = ask_prints(guest.plan, observe).values()
    again = told.sketches
    kept = crowd.state.planned["tiny"].sketches["sentiment-1"]
    assert set(again) == set(kept)
    for name, value in again.items():
        assert torch.allclose(value, kept[name], atol=1e-5), name


def test_the_first_adapter_is_the_naive_mixture_cut_to_rank(folder, pairs):
    found = join(folder, pairs)
    given = load_adapter(folder.adapters / "shop")
    shares = found["neighbours"]
    others = {client: load_adapter(folder.adapters / client) for client in shares}
    assert {a.shape[0] for other in others.values() for a, _ in other.layers.values()} == {3, 5}
    for module, (a, b) in given.layers.items():
        assert a.shape[0] == 3
        wanted = torch.zeros(b.shape[0], a.shape[1], dtype=torch.float64)
        for client, share in shares.items():
            down, up = others[client].layers[module]
            scale = others[client].alpha / down.shape[0]
            wanted += share * scale * up.double() @ down.double()
        u, s, vh = torch.linalg.svd(wanted)
        best = u[:, :3] * s[:3] @ vh[:3]
        assert s[3] > 1e-3 * s[0], "the cut must cut something"
        made = given.alpha / 3 * b.double() @ a.double()
        assert torch.allclose(made, best, atol=1e-6 * float(s[0]))
    for name, value in given.head.items():
        wanted = sum(share * others[client].head[name].double() for client, share in shares.items())
        assert torch.allclose(value.double(), wanted, atol=1e-6)


def test_a_newcomer_answers_like_any_client(folder, pairs, tmp_path):
    join(folder, pairs, client="shop-2")
    answer = predict_texts(folder, "shop-2", ["The tea is warm.", "The tea is hot."])
    assert answer["answer"] in {"different", "same"}
    assert evaluate_file(folder, "shop-2", pairs)["examples"] == 60
    export_client(folder, "shop-2", tmp_path / "mine")
    assert (tmp_path / "mine" / "adapter_config.json").exists()


def test_training_alone_is_what_the_run_would_have_made_of_one_client(folder, pairs, tmp_path):
    found = join(folder, pairs, solo=True)
    assert found["warnings"] == ["8 rows not used: beyond data.train or data.test"]
    own = [{"id": "shop", "task": "paraphrase", "data": pairs}]
    twin = make_config(
        strategy="local", keep_best=True, train={"lr": 0.05},
        data={**DATA, "tasks": []}, clients=own,
    )  # fmt: skip
    summary = start_run(twin, tmp_path / "twin").summary
    assert found["scores"]["alone"] == summary["score"]["clients"]["shop"]
    assert found["scores"]["majority"] == summary["majority"]["clients"]["shop"]


def test_a_task_with_other_labels_starts_with_the_shared_head(folder, tmp_path):
    lines = [{"text": f"it was {MOODS[i % 3]} {i}", "label": MOODS[i % 3]} for i in range(30)]
    settings = folder.config.read_text()
    mood = "tasks:\n  mood:\n    text: [text]\n    labels: [bad, so-so, good]\n"
    assert "tasks: {}\n" in settings
    folder.config.write_text(settings.replace("tasks: {}\n", mood))
    found = join(folder, write(tmp_path / "moods.jsonl", lines), task="mood")
    assert any("bad, so-so, good" in warning for warning in found["warnings"])
    given = load_adapter(folder.adapters / "moods")
    from atlas.backbones.load import load_backbone

    backbone = load_backbone("tiny")
    layout = Layout(backbone.name, (), (), backbone.head_layers, 16.0)
    start = initial_adapter(layout, Member("x", (), MOODS), seed=0)
    assert {f"head/{name}" for name in given.head} == set(start)
    for name, value in given.head.items():
        assert torch.equal(value, start[f"head/{name}"].to(value))


def test_texts_the_run_has_trained_on_are_no_test(folder, tmp_path):
    (client,) = [c for c in load_clients(config()) if c.id == "sentiment-1"]
    known = [{"sentence": e.texts[0], "label": e.label} for e in client.train]
    file = write(tmp_path / "shop.jsonl", [*known, *records("sentiment", 30)])
    found = join(folder, file, task="sentiment")
    left = DATA["test"] - found["examples"]["test"]
    assert left > 0
    assert any(w.startswith(f"{left} test examples left out") for w in found["warnings"])
    (folder.path / "joins" / "shop.json").unlink()
    shutil.rmtree(folder.adapters / "shop")
    with pytest.raises(InputError, match="among what the run's clients trained on"):
        join(folder, write(file, known), task="sentiment")


def test_fewer_training_examples_on_request(folder, pairs):
    assert join(folder, pairs, train=10)["examples"]["train"] == 10


def test_without_clusters_the_graph_decides(tmp_path, pairs):
    data = {**DATA, "clients_per_task": 2}
    run = start_run(config(strategy="mira", rounds=1, data=data), tmp_path / "runs")
    found = join(run.folder, pairs)
    assert found["cluster"] is None
    assert found["affinities"] == {}
    assert {c.partition("-")[0] for c in found["neighbours"]} == {"paraphrase", "sentiment"}
    assert sum(found["neighbours"].values()) == pytest.approx(1.0, abs=1e-12)


def test_an_id_is_taken_once(folder, pairs):
    join(folder, pairs)
    before = tree(folder)
    with pytest.raises(InputError, match="--client shop: the run has a client of this id"):
        join(folder, pairs)
    with pytest.raises(InputError, match="--client sentiment-1"):
        join(folder, pairs, client="sentiment-1")
    assert tree(folder) == before
    assert join(folder, pairs, client="shop-2")["client"] == "shop-2"


@pytest.mark.parametrize("step", ["write_bytes_atomic", "export_adapter", "write_text_atomic"])
def test_a_join_that_fails_leaves_nothing(folder, pairs, monkeypatch, step):
    before = tree(folder)
    real = getattr(joins, step)

    def break_down(*given, **named):
        real(*given, **named)
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(joins, step, break_down)
        with pytest.raises(OSError, match="disk is full"):
            join(folder, pairs)
    assert tree(folder) == before
    assert join(folder, pairs)["client"] == "shop"


def test_what_a_killed_join_left_is_replaced(folder, pairs):
    found = join(folder, pairs)
    whole = tree(folder)
    (folder.path / "joins" / "shop.json").unlink()
    again = join(folder, pairs)
    assert {**again, "seconds": 0} == {**found, "seconds": 0}
    whole.pop("joins/shop.json")
    assert {name: tree(folder)[name] for name in whole} == whole


def spoil(folder, what):
    if what == "unfinished":
        folder.summary.unlink()
    elif what == "no plan":
        shutil.rmtree(folder.plan)
    elif what == "damaged plan":
        (folder.plan / "0000" / "state.safetensors").write_bytes(b"nothing")
    elif what == "no fingerprints":
        text = folder.config.read_text()
        folder.config.write_text(text.replace("strategy: atlas", "strategy: fedavg"))
    elif what == "other layers":
        lines = [json.loads(line) for line in folder.events.read_text().splitlines()]
        for line in lines:
            if line["event"] == "fingerprinted" and line["client"] == "sentiment-2":
                line["norms"]["text"]["head/classifier.bias"] = 1.0
        folder.events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    elif what == "lost adapter":
        shutil.rmtree(folder.adapters / "sentiment-2")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("unfinished", ["not finished", "atlas resume"]),
        ("no plan", ["plan", "missing or damaged"]),
        ("damaged plan", ["plan", "state.safetensors is not as it was written"]),
        ("no fingerprints", ["'fedavg'", "atlas, cluster, mira"]),
        ("lost adapter", ["sentiment-2"]),
        ("other layers", ["sentiment-2", "head/classifier.bias", "run it again"]),
    ],
)
def test_runs_that_cannot_be_joined(folder, pairs, what, words):
    spoil(folder, what)
    before = tree(folder)
    with pytest.raises(InputError) as caught:
        join(folder, pairs)
    for word in words:
        assert word in str(caught.value)
    assert tree(folder) == before


BAD = {
    "unknown task": ({"task": "paraphras"}, 40, ["paraphras", "tasks of the run", "sst2"]),
    "bad id": ({"client": "../shop"}, 40, ["--client", "../shop"]),
    "too small": ({}, 5, ["shop", "5 different examples"]),
    "wrong task": ({"task": "sentiment"}, 40, ["sentence", "sentiment", "shop.jsonl:1"]),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_newcomers_that_cannot_join(folder, tmp_path, case):
    asked, count, words = BAD[case]
    before = tree(folder)
    with pytest.raises(InputError) as caught:
        join(folder, write(tmp_path / "shop.jsonl", records("paraphrase", count)), **asked)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert tree(folder) == before


def test_the_task_is_guessed_only_where_one_fits(folder, tmp_path):
    both = [{"sentence": f"a {i}", "sentence1": f"b {i}", "sentence2": "c", "label": i % 2}
            for i in range(20)]  # fmt: skip
    with pytest.raises(InputError, match=r"fits several .*: paraphrase, sentiment; .* --task"):
        join(folder, write(tmp_path / "both.jsonl", both))
    neither = write(tmp_path / "neither.jsonl", [{"text": "a", "label": 1}])
    with pytest.raises(InputError, match=r"(?s)fits no task of the run.*paraphrase: .*sentence1"):
        join(folder, neither)
    with pytest.raises(InputError, match="no client id"):
        join(folder, write(tmp_path / "my shop.jsonl", both), task="sentiment")
    with pytest.raises(InputError, match="gone"):
        join(folder, tmp_path / "gone.jsonl")
    assert not (folder.path / "joins").exists()


def test_a_run_is_locked_meanwhile(folder, pairs):
    with folder.lock(), pytest.raises(InputError, match="being run by"):
        join(folder, pairs)


@pytest.mark.parametrize("as_json", [True, False])
def test_the_verb(folder, pairs, monkeypatch, capsys, as_json):
    words = ["atlas", "join", str(folder.path), str(pairs), "--train", "12"]
    monkeypatch.setattr(sys, "argv", [*words, "--json"] if as_json else words)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    shown = capsys.readouterr()
    found = json.loads((folder.path / "joins" / "shop.json").read_text())
    if as_json:
        assert json.loads(shown.out) == found
        assert "round 2/2" in shown.err
        return
    assert f"shop joined cluster {found['cluster']}: 12 train" in shown.out
    rows = [line.split() for line in shown.out.splitlines()]
    assert ["task", "majority", "start", "alone"] in rows
    scores = [f"{100 * found['scores'][name]:.1f}" for name in ("majority", "start", "alone")]
    assert ["paraphrase", *scores] in rows
    assert [f"*{found['cluster']}", f"{found['affinities'][str(found['cluster'])]:.2f}"] in rows
    assert shown.out.rstrip().endswith(f"adapter: {folder.adapters / 'shop'}")


def test_the_verb_exits_with_2(folder, pairs, monkeypatch, capsys):
    argv = ["atlas", "join", str(folder.path), str(pairs), "--client", "order 1"]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert "order 1" in capsys.readouterr().err
