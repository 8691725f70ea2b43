"""Strategies whose clients send nothing: no tensors travel, and clients end as they would."""

from dataclasses import replace

import pytest

from atlas.build.federation import assemble
from atlas.federation.exchange.message import decode
from atlas.federation.strategies.base import STRATEGIES, Strategy
from atlas.federation.strategies.laws import check_strategy
from atlas.federation.strategies.relations_sparse import scaled_data_shares
from atlas.jobs.federation.run import FederationJob
from atlas.jobs.runner import carry_on, new_folder
from atlas.runs.events import read_events
from tests.helpers import make_client, make_clients, make_config

HEADERS = 1000
"""More bytes than the facts of one message."""


def run(folder, monkeypatch, strategy, sends, clients=make_clients, **changes):
    monkeypatch.setitem(STRATEGIES, strategy, replace(STRATEGIES[strategy], sends=sends))
    config = make_config(strategy=strategy, **changes)
    job = FederationJob(assemble(config, clients()))
    return carry_on(job, new_folder(config, folder / sends, 1), None)


def many():
    return [make_client(f"c{i:03d}", train=4, validation=2, test=2, seed=i) for i in range(70)]


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        ("local", {}),
        ("local", {"clients": many, "alone": False, "sample": 0.2}),
        ("local", {"keep_best": True, "sample": 0.5}),
        ("pooled", {}),
    ],
    ids=["few", "many", "choosing", "pooled"],
)
def test_nothing_is_sent_and_nothing_else_changes(tmp_path, monkeypatch, strategy, changes):
    before = run(tmp_path, monkeypatch, strategy, "adapters", **changes).summary
    after = run(tmp_path, monkeypatch, strategy, "nothing", **changes).summary
    same = ("adapters_sha256", "score", "refused", "failures", "ranks")
    assert {key: before[key] for key in same} == {key: after[key] for key in same}
    for both in after["bytes"]["clients"].values():
        # Two rounds, in each a message of `fit` and one of `deliver`, and one of validation.
        assert 0 < both["up"] < 6 * HEADERS and 0 < both["down"] < 6 * HEADERS
    assert after["bytes"]["up"] < before["bytes"]["up"] / 3


def test_ours_that_mix_nothing_send_nothing():
    assert {name for name, own in STRATEGIES.items() if own.sends == "nothing"} == {
        "local",
        "pooled",
    }
    assert not any(STRATEGIES["local"].travels(name) for name in ("lora_a/m", "head/c.bias"))


def test_what_the_server_does_not_have_is_not_described(tmp_path, monkeypatch):
    done = run(tmp_path, monkeypatch, "local", "nothing")
    mixed = [e for e in read_events(done.folder.events) if e["event"] == "mixed"]
    assert mixed and all("error" not in e and "distance" not in e for e in mixed)
    assert all(e["weights"] for e in mixed)


def test_a_refused_client_keeps_what_it_has(tmp_path, monkeypatch):
    """The server has no last good adapter to give back."""
    config = make_config(strategy="local")
    job = FederationJob(assemble(config, make_clients()))
    ask, sent = job.federation.engine.ask, []

    def lying(task, payloads):
        replies = ask(task, payloads)
        if task == "fit":
            replies["a1"] = replies["a1"][:-1]
        if task == "deliver":
            sent.append(len(decode(payloads["a1"]).tensors))
        return replies

    job.federation.engine.ask = lying
    done = carry_on(job, new_folder(config, tmp_path, 1), None)
    assert {entry["client"] for entry in done.summary["refused"]} == {"a1"}
    assert sent == [0, 0]
    whole = run(tmp_path, monkeypatch, "local", "nothing")
    assert done.summary["adapters_sha256"] == whole.summary["adapters_sha256"]


def test_a_strategy_that_sends_nothing_cannot_mix():
    wrong = Strategy(name="wrong", relation=scaled_data_shares, sends="nothing")
    with pytest.raises(AssertionError, match=r"sends is `nothing`, but W is not I"):
        check_strategy(wrong)
    check_strategy(STRATEGIES["local"])
