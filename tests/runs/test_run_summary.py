"""Summaries against their schema, and machine facts."""

from __future__ import annotations

import copy
import getpass
import json
import math
import socket

import jsonschema
import pytest

from atlas.errors import InputError
from atlas.runs.folder import read_summary, schema, write_summary
from atlas.runs.process import machine_facts

SCORES = {"mean": 0.6, "spread": 0.1, "worst": 0.5, "clients": {"a": 0.5, "b": 0.7}}
MINIMAL = {
    "kind": "federation",
    "strategy": "fedavg",
    "rounds": 3,
    "seed": 0,
    "seconds": 1.5,
    "score": SCORES,
    "metrics": {"a": "accuracy", "b": "matthews"},
    "accuracy": SCORES,
    "majority": {"clients": {"a": 0.5, "b": 0.5}},
    "bytes": {"up": 3, "down": 4, "clients": {"a": {"up": 3, "down": 4}}},
    "ranks": {"a": [2, 4], "b": [8, 8]},
    "refused": [{"round": 1, "client": "a", "reason": "norm 1e9 is above 100"}],
    "failures": [],
    "adapters_sha256": "0" * 64,
}
FULL = MINIMAL | {
    "alone": {"mean": 0.5, "clients": {"a": 0.4, "b": 0.6}},
    "gain": {"mean": 0.1, "worst": 0.1},
    "chance": {"clients": {"a": 0.2}},
    "loss": {"mean": None, "clients": {"a": 1.5, "b": None}, "alone": {"a": 1.4, "b": 2}},
    "clusters": {"k": 1, "silhouette": None, "purity": 1, "ari": 0, "labels": {"a": 0, "b": 0}},
    "budgets": {
        "a": {"device": "phone", "budget": 90, "used": 80, "valid": True, "measured": 85}
        | {"lowered": 1},
        "b": {"device": "", "budget": 90, "used": 80, "valid": True, "measured": None},
    },
}


def is_valid(summary):
    return jsonschema.Draft202012Validator(schema()).is_valid(summary)


def test_the_schema_is_one_and_takes_whole_summaries():
    jsonschema.Draft202012Validator.check_schema(schema())
    assert is_valid(MINIMAL) and is_valid(FULL)


@pytest.mark.parametrize("key", sorted(FULL))
def test_every_key_has_its_form(key):
    broken = copy.deepcopy(FULL)
    broken[key] = {"surprise": 1}
    assert not is_valid(broken)
    del broken[key]
    free = ("clusters", "budgets", "chance", "loss")
    assert is_valid(broken) == (key in free), "only these may be left out by themselves"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("extra", 1),
        ("score.extra", 1),
        ("score.clients.a", "good"),
        ("score.clients.a b", 1),
        ("score.mean", None),
        ("bytes.up", -1),
        ("bytes.clients.a.up", 1.5),
        ("ranks.a", [-1]),
        ("adapters_sha256", "x"),
        ("clusters.silhouette", 2),
        ("metrics.a", ""),
    ],
)
def test_bad_values_are_not_valid(path, value):
    broken = copy.deepcopy(FULL)
    *parents, last = path.split(".")
    holder = broken
    for parent in parents:
        holder = holder[parent]
    holder[last] = value
    assert not is_valid(broken)


def test_a_summary_reads_back_with_sorted_keys(tmp_path):
    path = tmp_path / "summary.json"
    write_summary(path, FULL)
    assert read_summary(path) == FULL
    assert list(read_summary(path)) == sorted(FULL)
    write_summary(path, FULL | {"clusters": FULL["clusters"] | {"silhouette": math.nan}})
    assert read_summary(path) == FULL


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "expected a JSON object"),
        (b'{"kind": "federation"}', "strategy, rounds, .* missing"),
        (b'{"kind": "federation', "not JSON.*; write it again with: atlas resume"),
    ],
)
def test_a_malformed_summary_is_bad_input(tmp_path, data, message):
    path = tmp_path / "summary.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_summary(path)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("score.clients.a", "good", "score.clients.a: expected number, found string"),
        ("score", {}, "score: mean, spread, worst, clients missing"),
        ("loss.clients.a", [], "loss.clients.a: expected number or null, found array"),
        ("rounds", True, "rounds: expected integer, found boolean"),
        ("ranks.a", [2, None], "ranks.a.1: expected integer, found null"),
        ("budgets.b.measured", {}, "budgets.b.measured: expected integer or null, found object"),
        ("steps", {"a": 1}, "steps.a: expected object, found number"),
    ],
)
def test_a_value_of_another_type_is_named(tmp_path, path, value, told):
    broken = json.loads(json.dumps(FULL))
    *parents, last = path.split(".")
    holder = broken
    for parent in parents:
        holder = holder[parent]
    holder[last] = value
    assert not is_valid(broken)
    file = tmp_path / "summary.json"
    write_summary(file, broken)
    with pytest.raises(InputError, match=f"summary.json: not a whole summary: {told};"):
        read_summary(file)


def test_what_other_versions_write_is_read(tmp_path):
    path = tmp_path / "summary.json"
    free = {"a": {"noise": 1, "difference": 0, "rho": 0, "keep": 1, "eta": 0}, "b": None}
    other = FULL | {"later": 1, "steps": free, "seconds": 2, "rounds": 3.0}
    write_summary(path, other)
    assert read_summary(path) == other


def test_a_missing_summary_is_bad_input(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_summary(tmp_path / "summary.json")


def test_machine_facts_name_versions_and_nobody():
    facts = machine_facts(threads=2)
    assert facts["threads"] == 2 and "threads" not in machine_facts()
    assert set(facts["versions"]) == {"torch", "transformers", "peft", "safetensors", "numpy"}
    assert all(isinstance(version, str) for version in facts["versions"].values())
    assert facts["cpus"] >= 1 and facts["memory_bytes"] > 2**20
    values = [value for value in json.loads(json.dumps(facts)).values() if isinstance(value, str)]
    assert socket.gethostname() not in values and getpass.getuser() not in values
    assert not any("/" in value for value in values)
