"""A run in Python: its tables, weights, pictures and models are what its folder holds."""

import sys

import pytest
import torch

import atlas
from atlas.errors import InputError
from atlas.jobs.federation.answer import open_client, predict_texts
from atlas.jobs.progress import in_notebook, shown
from atlas.report.read.rows import arm_rows, round_rows
from tests.test_doctests import TINY

TEXTS = ["The plot was thin, but the music saved it.", "Nothing worked.", "We went home smiling."]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    settings = {**TINY, "data": {"train": 16, "validation": 8, "test": 8}}
    return atlas.run("demo", "train.lr=0.02", out=tmp_path_factory.mktemp("runs"), **settings)


def test_the_table_is_the_summary(run):
    table, summary = run.table(), run.summary
    assert table["score"].to_dict() == summary["score"]["clients"]
    assert table["gain"].mean() == pytest.approx(summary["gain"]["mean"])
    assert table["cluster"].to_dict() == summary["clusters"]["labels"]
    assert set(table["task"]) == {"sentiment", "paraphrase", "order"}
    assert table["up"].sum() == summary["bytes"]["up"]
    assert run.client("order-1").scores["score"] == summary["score"]["clients"]["order-1"]


def test_rounds_are_the_events(run):
    by_round, by_client = run.rounds(), run.rounds("client")
    assert by_round.index.tolist() == [1, 2] and len(by_client) == 18
    assert by_round["loss"].iloc[0] == pytest.approx(by_client.loc[1]["loss"].mean())
    assert by_round["alone"].iloc[0] == pytest.approx(by_client.loc[1]["alone"].mean())
    solo = [e["alone"] for e in run.events() if e["event"] == "validated" and e["round"] == 2]
    told = {client: scores["score"] for own in solo for client, scores in own.items()}
    assert by_client.loc[2]["alone"].to_dict() == told
    finished = [e for e in run.events() if e["event"] == "round_finished"]
    assert by_round["up"].tolist() == [event["up"] for event in finished]
    with pytest.raises(InputError, match="allowed: round, client"):
        run.rounds("cluster")


def test_weights_are_those_of_the_round(run):
    mixed = {e["round"]: e for e in run.events() if e["event"] == "mixed"}
    for number in (1, 2):
        found = run.weights(number)
        assert found.to_numpy().tolist() == mixed[number]["weights"]
        assert found.index.tolist() == found.columns.tolist() == mixed[number]["clients"]
    assert run.weights().equals(run.weights(2))
    with pytest.raises(InputError, match="no W of round 9; there are rounds 1 to 2"):
        run.weights(9)
    with pytest.raises(InputError, match="no cohort 'other'"):
        run.weights(cohort="other")


def test_pictures_show_themselves(run):
    picture = run.plot("affinity")
    assert picture._repr_png_().startswith(b"\x89PNG") and picture.path.parent == run.path / "plots"
    with pytest.raises(InputError, match="did you mean affinity"):
        run.plot("afinity")


def test_a_report_is_one_file_where_it_is_wanted(run, tmp_path):
    (run.path / "report.html").unlink(missing_ok=True)
    assert run.report() == run.path / "report.html"
    page = run.report(str(tmp_path / "new" / "page.html"))
    assert page.read_bytes() == (run.path / "report.html").read_bytes()
    assert "sentiment-1" in page.read_text("utf-8")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        run.report(tmp_path / "file" / "page.html")


def test_a_model_is_plain_peft_with_the_clients_logits(run):
    client = run.client("sentiment-1")
    model = client.model()
    assert type(model).__module__.startswith("peft.")
    chosen = open_client(run.folder, "sentiment-1")
    inputs = chosen.model.backbone.tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        shares = model(**inputs).logits.softmax(-1)
    for text, share, told in zip(TEXTS, shares, client.predict(TEXTS), strict=True):
        assert list(told["probabilities"].values()) == pytest.approx(share.tolist(), abs=1e-5)
        alone = predict_texts(run.folder, "sentiment-1", [text])
        assert alone["probabilities"] == pytest.approx(told["probabilities"], abs=1e-6)
    before = [p.clone() for p in chosen.model.backbone.model.parameters()]
    model.merge_and_unload()
    after = chosen.model.backbone.model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_pairs_and_mistakes_in_texts_are_told(run):
    pairs = run.client("paraphrase-1").predict([("a b", "a b"), ("a", "c")])
    assert len(pairs) == 2
    with pytest.raises(InputError, match="1 texts given, but task 'paraphrase' reads 2"):
        run.client("paraphrase-1").predict("alone")
    with pytest.raises(InputError, match="text 2: sentence empty"):
        run.client("order-1").predict(["fine", " "])
    with pytest.raises(InputError, match="clients: order-1"):
        run.client("nobody")


def test_a_run_under_way_has_rounds_but_no_table(run, tmp_path):
    for name in ("config.yaml", "events.jsonl"):
        (tmp_path / name).write_bytes((run.path / name).read_bytes())
    half = atlas.open_run(tmp_path)
    assert len(half.rounds()) == 2
    with pytest.raises(InputError, match="not finished"):
        half.table()


def test_without_pandas_an_error_says_what_to_do(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        run.table()
    assert run.summary["score"]["clients"]


def test_progress_is_shown_where_it_is_asked_for(capsys, monkeypatch):
    assert not in_notebook()
    with shown(None, None, None) as (watch, progress):
        assert watch is None and progress is None
    seen = []
    with shown(True, lambda event, fields: seen.append(event), None) as (watch, progress):
        watch("started", {"rounds": 1})
        watch("round_finished", {"round": 1, "up": 0, "down": 0, "seconds": 1.0})
        progress("fit", 1, 2)
    assert seen == ["started", "round_finished"] and "round 1/1" in capsys.readouterr().out
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", type("M", (), {"get_ipython": lambda: shell}))
    assert in_notebook()
    with shown(None, None, None) as (watch, progress):
        assert watch is not None and progress is not None


def test_results_of_a_memory_run_are_by_arm():
    arms = {"memory": {"accuracy": 0.5, "best": {"step": 3}}, "window": {"accuracy": 0.1}}
    first, second = arm_rows({"arms": arms})
    assert first == {"arm": "memory", "accuracy": 0.5} and second["accuracy"] == 0.1
    event = {"event": "round_finished", "round": 1, "accuracy": {"memory": 0.5}, "seconds": 2.0}
    assert round_rows([event]) == [{"round": 1, "accuracy:memory": 0.5, "seconds": 2.0}]
