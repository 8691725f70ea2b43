"""Data from memory runs as the same data from files does, and resumes without the program."""

import json

import datasets
import numpy as np
import pandas
import pytest

import atlas
from atlas.errors import InputError
from tests.helpers import stop_after

SMALL = {
    "backbone": {"name": "tiny", "max_length": 24},
    "strategy": "fedavg",
    "rounds": 2,
    "threads": 1,
    "adapter": {"blocks": 1, "rank": 2},
}
SHOPS = ("shop-1", "shop-2", "shop-3")


def rows(shop, count=24):
    """Texts and labels of a shop."""
    words = {"praise": "lovely", "complaint": "awful"}
    names = list(words)
    return [(f"{words[names[i % 2]]} {shop} {i}", names[i % 2]) for i in range(count)]


def forms():
    """The same three clients, each in another form."""
    first, second, third = (rows(shop) for shop in SHOPS)
    table = pandas.DataFrame(second, columns=["text", "label"])
    listed = datasets.Dataset.from_dict(
        {"text": [t for t, _ in third], "label": [label for _, label in third]}
    )
    return {
        "shop-1": tuple(list(column) for column in zip(*first, strict=True)),
        "shop-2": table,
        "shop-3": listed,
    }


def timeless(summary):
    return {key: value for key, value in summary.items() if key not in ("seconds", "data")}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return atlas.federate(
        forms(), task="mood", name="shops", out=tmp_path_factory.mktemp("runs"), **SMALL
    )


def test_every_form_gives_what_files_give(run, tmp_path):
    clients = []
    for shop in SHOPS:
        file = tmp_path / f"{shop}.jsonl"
        lines = [json.dumps({"text": text, "label": label}) for text, label in rows(shop)]
        file.write_text("\n".join(lines))
        clients.append({"id": shop, "task": "mood", "data": str(file)})
    tasks = {"mood": {"text": ["text"], "labels": ["complaint", "praise"]}}
    config = tmp_path / "own.yaml"
    config.write_text(json.dumps({**SMALL, "name": "own", "tasks": tasks, "clients": clients}))
    there = atlas.run(config, out=tmp_path / "runs")
    assert timeless(run.summary) == timeless(there.summary)
    assert run.summary["data"] == there.summary["data"], "the same counts and warnings"
    assert run.path.name == "shops" and run.clients == list(SHOPS)


def test_a_stopped_run_goes_on_elsewhere_to_the_same_bits(run, tmp_path):
    half = atlas.federate(
        forms(), task="mood", name="shops", out=tmp_path / "a", watch=stop_after(1), **SMALL
    )
    assert half.summary is None
    moved = tmp_path / "moved"
    half.path.rename(moved)
    done = atlas.open_run(moved).resume()
    assert done.summary["adapters_sha256"] == run.summary["adapters_sha256"]
    longer = done.resume(rounds=3)
    assert longer.summary["rounds"] == 3


def test_labels_of_every_kind_are_found(tmp_path):
    texts = [f"tea {i}" for i in range(20)]
    number = pandas.DataFrame({"text": texts, "label": [1.0, 2.0] * 9 + [np.nan, 1.0]})
    run = atlas.federate({"a": number, "b": (texts, np.array([1, 2] * 10))}, out=tmp_path, **SMALL)
    assert run.client("a").task.labels == ("1", "2")
    assert run.summary["data"]["a"]["unlabelled"] == 1
    names = datasets.ClassLabel(names=["cold", "hot"])
    features = datasets.Features({"text": datasets.Value("string"), "label": names})
    given = datasets.Dataset.from_dict({"text": texts, "label": [0, 1] * 10}, features=features)
    run = atlas.federate({"a": given}, "rounds=1", out=tmp_path, **SMALL)
    assert run.client("a").task.labels == ("cold", "hot")
    truth = (texts, [True, False] * 10)
    run = atlas.federate({"a": truth}, "rounds=1", out=tmp_path, **SMALL)
    assert run.client("a").task.labels == ("false", "true")


def test_pairs_of_texts_and_tasks_by_client(tmp_path):
    pairs = [(f"tea {i}", f"tea {i + i % 2}") for i in range(20)]
    clients = {
        "a": (pairs, ["same", "other"] * 10),
        "b": [{"sentence": f"tea {i}", "label": i % 2, "note": object()} for i in range(20)],
    }
    run = atlas.federate(
        clients, "rounds=1", task={"a": "alike", "b": "sst2"}, out=tmp_path, **SMALL
    )
    assert run.client("a").task.text == ("text1", "text2")
    assert run.client("b").task.labels == ("negative", "positive")
    assert len(run.client("a").predict([("tea", "tea"), ("tea", "milk")])) == 2


@pytest.mark.parametrize(
    ("clients", "more", "message"),
    [
        ({}, {}, "no clients"),
        ({"a b": (["x"], [1])}, {}, "client id 'a b'"),
        ({"a": 3}, {}, "client a: a int of no length; allowed: \\(texts, labels\\)"),
        ({"a": (["x", "y"], [1])}, {}, "2 texts and 1 labels"),
        ({"a": [{"words": "x", "label": 1}] * 9}, {"task": "sst2"}, "client a, row 1: no field"),
        ({"a": pandas.DataFrame({"x": [1], "y": [2]})}, {}, "columns x, y"),
        (
            {"a": ([f"t{i}" for i in range(9)] + [7], [0, 1] * 5)},
            {},
            "client a, row 10: text must be",
        ),
        ({"a": (["x", "y"] * 9, [object()] * 18)}, {}, "client a, row 1: label"),
        ({"a": ([f"t{i}" for i in range(99)], [f"w{i}" for i in range(99)])}, {}, "kind"),
        ({"a": (["x", "y"], [0, 1])}, {}, "what client a was given has 2 different examples"),
        ({"a": (["x"], [0])}, {"task": {"b": "t"}}, "a has none"),
        ({"a": ([f"t{i}" for i in range(20)], [0, 1] * 10)}, {"strateg": 1}, "strateg"),
    ],
)
def test_bad_data_is_named_and_leaves_no_folder(tmp_path, clients, more, message):
    with pytest.raises(InputError, match=message):
        atlas.federate(clients, out=tmp_path / "runs", **{**SMALL, **more})
    assert not list((tmp_path / "runs").glob("*"))
