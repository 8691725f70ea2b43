"""Memory of many clients against few: what is run, what is subtracted, what is divided."""

from pathlib import Path

import pytest

from atlas.bench import federation_cases as federation_clients
from atlas.bench.federation_cases import (
    CASE,
    COUNTS,
    adapter_bytes,
    clients_config,
    describe_memory,
    memory_ratio,
    run_clients,
)
from atlas.bench.federation_work import CONFIG
from atlas.bench.peers.atlas_run import RULE
from atlas.bench.processes import Bench
from atlas.build.federation import build_federation
from atlas.config.load import load_resolved_federation
from atlas.federation.strategies.base import STRATEGIES
from tests.helpers import make_config

MB = 2**20


@pytest.mark.parametrize("size", ["quick", "full"])
def test_the_two_runs_differ_in_their_clients_alone(size):
    few, many = (clients_config(size, count) for count in COUNTS)
    assert (few.data.clients_per_task, many.data.clients_per_task) == COUNTS
    data = few.data.model_copy(update={"clients_per_task": COUNTS[1]})
    assert few.model_copy(update={"data": data}) == many
    assert many.data.source == "synthetic"
    assert many.train.prefix_cache_mb is None, "what users get"
    assert not many.train.keep_moments, "moments are counted once, not per arm and round"


def test_the_ratio_is_of_what_is_beyond_adapters():
    rows = [describe_memory(5, 500 * MB, 20 * MB), describe_memory(100, 1000 * MB, 400 * MB)]
    assert [row["peak_mb"] for row in rows] == [500, 1000]
    assert [row["adapters_mb"] for row in rows] == [20.0, 400.0]
    assert [row["beyond_adapters_mb"] for row in rows] == [480.0, 600.0]
    assert memory_ratio(rows) == {CASE: 1.25}


def test_adapters_are_those_that_clients_hold(monkeypatch):
    monkeypatch.setitem(STRATEGIES, RULE.name, RULE)
    config = make_config(strategy=RULE.name, alone=False, adapter={"blocks": 2, "rank": 3})
    (group,) = build_federation(config).engine.groups
    held = sum(value.nbytes for value in group.arms["held"].tensors.values())
    assert adapter_bytes(config) == 3 * held, "an adapter and two moments of its size"
    larger = make_config(strategy=RULE.name, alone=False, adapter={"blocks": 2, "rank": 6})
    assert adapter_bytes(larger) > adapter_bytes(config)


def test_every_run_is_a_process_of_its_own(tmp_path, monkeypatch):
    calls = []

    def pretend(arguments, log, environment, look):
        folder = Path(arguments[2])
        calls.append(load_resolved_federation(folder / CONFIG).data.clients_per_task)
        look()
        return (400 + calls[-1]) * MB

    monkeypatch.setattr(federation_clients, "run_watched", pretend)
    monkeypatch.setattr(federation_clients, "adapter_bytes", lambda config: MB)
    seen = []
    rows = run_clients("quick", tmp_path, lambda *step: seen.append(step))
    assert calls == list(COUNTS)
    assert [row["beyond_adapters_mb"] for row in rows] == [404.0, 499.0]
    assert [what for what, *_ in seen] == [f"{CASE}: 5", f"{CASE}: 100"]
    plain = Bench("federation", rows, memory_ratio(rows)).plain()
    assert plain["ratios"] == {CASE: round(499 / 404, 2)}
    assert [row["case"] for row in plain["rows"]] == [CASE, CASE]
