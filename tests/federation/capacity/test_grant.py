"""Ranks that memory decides."""

from dataclasses import replace

import pytest

from atlas.build.dealing import deal_devices
from atlas.build.federation import assemble
from atlas.config.plan import MB, PROFILES, RankSettings
from atlas.engines.local import engine as local
from atlas.errors import InputError
from atlas.federation import prepare
from atlas.federation.capacity.block_bytes import LargestBatch
from atlas.federation.capacity.cost import importance_of, loss_norms
from atlas.federation.capacity.grant import grant
from atlas.federation.prepare import make_plan
from atlas.jobs.runner import resume_run, start_run
from atlas.runs.events import ignore
from tests.helpers import make_client, make_config, make_task, stop_after

ALL = ["query", "key", "value", "output", "up", "down"]
DEVICES = {
    "tiny": {"room": 0.1}, "small": {"room": 0.3}, "middle": {"room": 0.6}, "big": {"room": 0.9},
}  # fmt: skip


def clients(count=4, tasks=1):
    names = [make_task(f"task{t}") for t in range(tasks)]
    return [
        make_client(f"{task.name}-{i}", task, train=12, seed=i + 7 * t)
        for t, task in enumerate(names)
        for i in range(count)
    ]


def planned(people=None, **changes):
    """A federation after its plan."""
    settings = {
        "strategy": "atlas",
        "alone": "needed",
        "adapter": {"modules": ALL, "blocks": 2, "rank": 4},
        "ranks": {"method": "importance", "devices": list(DEVICES), "choices": [2, 4, 8, 16]},
        "devices": DEVICES,
    }
    for key, value in changes.items():
        settings[key] = {**settings.get(key, {}), **value} if isinstance(value, dict) else value
    federation = assemble(make_config(**settings), people or clients())
    make_plan(federation.plan, federation.state, federation.engine, ignore)
    return federation


def test_four_devices_give_four_plans_within_their_budgets():
    federation = planned()
    found = federation.state.granted
    assert len({tuple(entry["ranks"]) for entry in found.values()}) == 4
    sums = [sum(found[f"task0-{i}"]["ranks"]) for i in range(4)]
    assert sums == sorted(sums)
    for entry in found.values():
        assert entry["valid"]
        assert entry["used"] <= entry["budget"]
        assert entry["measured"] == pytest.approx(entry["used"], rel=0.1)
    # What was planned is what clients and server hold.
    for client, entry in found.items():
        held = federation.engine.groups[0].arms["held"].take(client)
        sizes = [held[f"lora_a/{m}"].shape[0] for m in federation.plan.sites[client].layout.modules]
        assert sizes == entry["ranks"] == list(federation.ranks[client])


def site_and_need(**changes):
    federation = planned(**changes)
    client = "task0-0"
    site = federation.plan.sites[client]
    return client, site, site.need(LargestBatch((20,) * 4))


def test_half_of_what_adapters_may_use_lowers_ranks():
    client, site, need = site_and_need()
    importance = [1.0] * len(site.layout.modules)
    most = need.total([16] * len(site.layout.modules)) - need.fixed
    sums = []
    for part in (1.0, 0.5, 0.25):
        settings = RankSettings(
            method="importance", choices=[2, 4, 8, 16], budget=(need.fixed + part * most) / MB
        )
        found = grant(client, site, need, settings, importance, 1.0)
        assert found.used <= found.budget
        sums.append(sum(found.ranks))
    assert sums[0] > sums[1] > sums[2]


def test_a_budget_below_the_floor_is_refused_with_the_numbers():
    client, site, need = site_and_need()
    settings = RankSettings(method="importance", budget=0.01)
    with pytest.raises(
        InputError, match=r"task0-0 \(ranks.budget=0.01\): 0.0 MB for training.*weights \d"
    ):
        grant(client, site, need, settings, [1.0] * len(site.layout.modules), 1.0)
    with pytest.raises(InputError, match="takes at least"):
        planned(ranks={"budget": 0.01})


def test_complexity_takes_a_share_but_never_the_floor():
    client, site, need = site_and_need()
    importance = [1.0] * len(site.layout.modules)
    choices = [2, 4, 8, 16]
    budget = (need.total([8] * len(site.layout.modules)) + 64) / MB
    settings = RankSettings(method="importance", choices=choices, budget=budget)
    hard, easy = (grant(client, site, need, settings, importance, c) for c in (1.0, 0.0))
    assert sum(easy.ranks) < sum(hard.ranks)
    off = settings.model_copy(update={"complexity": 0.0})
    assert grant(client, site, need, off, importance, 0.0).ranks == hard.ranks
    least = (need.total([2] * len(site.layout.modules)) + 64) / MB
    poor = settings.model_copy(update={"budget": least, "complexity": 1.0})
    assert set(grant(client, site, need, poor, importance, 0.0).ranks) == {2}


def test_complexity_switched_off_changes_a_whole_plan():
    people = clients(3, tasks=2)
    oracle = {"clusters": {"method": "oracle"}}
    on, off = (planned(people, ranks={"complexity": share}, **oracle).ranks for share in (0.9, 0.0))
    assert on != off


def test_how_hard_the_task_of_a_client_alone_is_changes_its_ranks(monkeypatch):
    people = [*clients(3), make_client("single", make_task("other"), train=12, seed=50)]
    devices = {
        "ranks": {"devices": ["middle"], "complexity": 0.9},
        "clusters": {"method": "oracle"},
    }
    real = prepare.ask_prints

    def scaled(factor):
        def asked(plan, server):
            found = real(plan, server)
            told = found["single"]
            norms = {
                part: {layer: factor * value for layer, value in layers.items()}
                for part, layers in told.norms.items()
            }
            return found | {"single": replace(told, norms=norms)}

        monkeypatch.setattr(prepare, "ask_prints", asked)
        return planned(people, **devices).state.granted["single"]

    easy, hard = scaled(0.05), scaled(3.0)
    assert 0 < easy["complexity"] < hard["complexity"]
    assert sum(easy["ranks"]) < sum(hard["ranks"])


def test_importance_decides_where_ranks_go():
    client, site, need = site_and_need()
    modules = site.layout.modules
    budget = (need.total([4] * len(site.layout.modules)) + 64) / MB
    settings = RankSettings(method="importance", choices=[2, 4, 8, 16], budget=budget)
    plans = []
    for chosen in (modules[0], modules[-1]):
        norms = {"label": {module: 5.0 if module == chosen else 0.1 for module in modules}}
        found = grant(client, site, need, settings, importance_of(norms, modules, 2, 0.0), 1.0)
        assert found.ranks[modules.index(chosen)] == max(found.ranks)
        plans.append(found.ranks)
    assert plans[0] != plans[1]
    uniform = settings.model_copy(update={"method": "uniform"})
    same = grant(client, site, need, uniform, importance_of(norms, modules, 2, 0.0), 1.0)
    assert len(set(same.ranks)) == 1


def test_modules_below_the_fingerprint_count_like_their_nearest_kin():
    _, site, _ = site_and_need()
    modules = site.layout.modules
    top = [m for m in modules if ".1." in m]
    norms = {"label": {m: float(i + 1) for i, m in enumerate(top)} | {"head/x.weight": 99.0}}
    found = importance_of(norms, modules, 2, 0.0)
    half = len(found) // 2
    assert found[:half] == found[half:]
    assert loss_norms({"text": {"a": 1.0}, "label": {"a": 0.0}}) == {"a": 1.0}
    assert set(importance_of(None, modules, 2, 0.0)) == {1.0}


def test_ceilings_are_kept_and_can_be_ignored():
    devices = {"capped": {"room": 1.0, "largest_rank": 4}}
    ranks = {"devices": ["capped"]}
    kept = planned(devices=devices, ranks=ranks).ranks
    assert {rank for own in kept.values() for rank in own} <= {2, 4}
    free = planned(devices=devices, ranks={**ranks, "ceilings": "ignored", "complexity": 0}).ranks
    assert {rank for own in free.values() for rank in own} == {16}


def test_a_built_in_profile_binds_without_its_ceiling():
    people = [make_client("one", train=16)]
    federation = planned(
        people, strategy="local", alone=False, backbone={"name": "minilm", "max_length": 64},
        adapter={"modules": ALL, "blocks": 6}, train={"batch": 16},
        ranks={"devices": ["phone"], "choices": [4, 8, 16, 32, 64], "ceilings": "ignored"},
    )  # fmt: skip
    site = federation.plan.sites["one"]
    need = site.need(LargestBatch((64,) * 16))
    settings = federation.plan.ranks
    found = grant("one", site, need, settings, [1.0] * len(site.layout.modules), 1.0)
    assert found.budget == PROFILES["phone"].memory_mb * MB
    assert (
        need.total([4] * len(site.layout.modules))
        < found.budget
        < need.total([64] * len(site.layout.modules))
    )
    assert 4 < sum(found.ranks) / len(found.ranks) < 64


def test_devices_are_dealt_in_turn_within_a_task():
    config = make_config(ranks={"method": "importance", "devices": ["phone", "laptop"]})
    dealt = deal_devices(config, clients(3, tasks=2))
    assert [c.device for c in dealt] == ["phone", "laptop", "phone"] * 2


def test_unknown_devices_and_missing_budgets_are_told():
    with pytest.raises(InputError, match="unknown device 'phne'; did you mean phone?"):
        planned(ranks={"devices": ["phne"]})
    with pytest.raises(InputError, match="set ranks.budget, ranks.devices or the"):
        planned(ranks={"devices": []})


def test_fedavg_and_local_take_the_same_ranks_as_atlas():
    ranks = [planned(strategy=name).ranks for name in ("atlas", "fedavg", "local")]
    assert ranks[0] == ranks[1] == ranks[2]


def test_a_resumed_run_keeps_its_ranks_and_ends_with_the_same_bits(tmp_path):
    settings = {
        "strategy": "atlas", "alone": "needed", "rounds": 2,
        "ranks": {"method": "importance", "devices": list(DEVICES), "choices": [1, 2, 4, 8]},
        "devices": DEVICES,
        "data": {"tasks": ["sentiment"], "clients_per_task": 4, "train": 12, "validation": 8,
                 "test": 10},
    }  # fmt: skip
    whole = start_run(make_config(**settings), tmp_path / "whole").summary
    assert len({tuple(own) for own in whole["ranks"].values()}) > 1
    stopped = start_run(make_config(**settings), tmp_path / "part", stop_after(1))
    assert stopped.summary is None
    again = resume_run(stopped.folder.path).summary
    assert again["adapters_sha256"] == whole["adapters_sha256"]
    assert again["ranks"] == whole["ranks"]


@pytest.mark.parametrize(
    "told",
    [
        {"lengths": "many", "answers": []},
        {"lengths": [9, -1], "answers": []},
        {"lengths": [9] * 99, "answers": []},
        {"lengths": [10**9], "answers": []},
        {"lengths": [9], "answers": [10]},
        {"lengths": [9, 9], "answers": [1]},
        {"tokens": 9},
    ],
)
def test_a_client_that_tells_nothing_usable_keeps_its_ranks_also_after_a_resume(
    tmp_path, monkeypatch, told
):
    settings = {
        "strategy": "atlas", "alone": "needed", "rounds": 2,
        "adapter": {"modules": ["query", "value"], "blocks": 2, "rank": 3},
        "ranks": {"method": "importance", "devices": list(DEVICES), "choices": [1, 2, 4, 8]},
        "devices": DEVICES,
        "data": {"tasks": ["sentiment"], "clients_per_task": 3, "train": 12, "validation": 8,
                 "test": 10},
    }  # fmt: skip
    real = local.tell_capacity

    def odd(group, client, batch):
        return told if client == "sentiment-2" else real(group, client, batch)

    monkeypatch.setattr(local, "tell_capacity", odd)
    stopped = start_run(make_config(**settings), tmp_path, stop_after(1))
    summary = resume_run(stopped.folder.path).summary
    assert set(summary["ranks"]["sentiment-2"]) == {3}
    assert set(summary["budgets"]) == {"sentiment-1", "sentiment-3"}
    assert [entry["client"] for entry in summary["failures"]] == ["sentiment-2"]
