"""Ranks that are lowered until a trial step fits."""

import math
from dataclasses import replace

import pytest
from rich.console import Console

from atlas.build.federation import assemble
from atlas.config.plan import MB, DeviceSettings, RankSettings
from atlas.engines.local import engine as local
from atlas.federation import prepare
from atlas.federation.capacity.block_bytes import LargestBatch
from atlas.federation.capacity.grant import MOST_LOWERINGS, grant, least_ranks, lower
from atlas.federation.capacity.points import fewer_blocks
from atlas.federation.prepare import make_plan
from atlas.jobs.runner import resume_run, start_run
from atlas.jobs.show import describe_run
from atlas.ops.capacity import worth
from atlas.report.live import live_display
from atlas.report.words.ending import run_view
from atlas.report.words.english import listed
from atlas.runs.events import ignore
from tests.helpers import make_client, make_config, make_task, stop_after

CHOICES = [1, 2, 4, 8, 16]
ROOMS = {"tiny": 0.15, "small": 0.3, "middle": 0.6, "big": 0.9}
DEVICES = {name: {"room": room} for name, room in ROOMS.items()}
RANKS = {"method": "importance", "devices": list(DEVICES), "choices": CHOICES, "complexity": 0.0}


def federation_of(count=4, **ranks):
    task = make_task("task")
    people = [make_client(f"c{i:02}", task, train=4 + i % 9, seed=i) for i in range(count)]
    settings = {"strategy": "fedavg", "alone": "needed", "devices": DEVICES}
    settings["adapter"] = {"modules": ["query", "value"], "blocks": 2, "rank": 4}
    return assemble(make_config(**settings, ranks={**RANKS, **ranks}), people)


def planned(count=4, **ranks):
    federation = federation_of(count, **ranks)
    make_plan(federation.plan, federation.state, federation.engine, ignore)
    return federation


def taking_more(monkeypatch, extra):
    """Trial steps take so much more than they do: `extra` of the client and of what it took."""
    trials = []
    real = local.trial_bytes

    def trial(group, client, settings, seed):
        trials.append(client)
        return int(extra(client, real(group, client, settings, seed)))

    monkeypatch.setattr(local, "trial_bytes", trial)
    return trials


def site_and_need(**ranks):
    site = federation_of(**ranks).plan.sites["c00"]
    return site, site.need(LargestBatch((20,) * 4))


def settle(site, need, settings, importance, took):
    """Grants, tries and lowers as a plan does, where a step takes what `took` says."""
    found = grant("c00", site, need, settings, importance, 1.0)
    costs = []
    while True:
        found = found.__class__(**{**vars(found), "measured": took(found.used)})
        costs.append(found.used)
        if found.valid or (less := lower("c00", site, settings, found)) is None:
            assert costs == sorted(set(costs), reverse=True)  # cheaper every time
            assert len(costs) <= MOST_LOWERINGS + 2
            return found
        found = less


def budgets_between(site, need):
    least, most = (need.total([rank] * len(site.layout.modules)) for rank in (1, 16))
    return [least + (most - least) * part // 24 for part in range(1, 25)]


IMPORTANCE = [0.3, 1.9, 0.7, 1.1]


@pytest.mark.parametrize("method", ["importance", "uniform", "exhaustive"])
def test_a_larger_budget_is_worth_no_less_whatever_the_model_leaves_out(method):
    site, need = site_and_need()
    left_out = (need.total([16] * 4) - need.total([1] * 4)) // 10
    found = []
    for budget in budgets_between(site, need):
        settings = RankSettings(
            method=method, choices=CHOICES, budget=(budget + left_out) / MB, complexity=0.0
        )
        done = settle(site, need, settings, IMPORTANCE, lambda used: used + left_out)
        assert done.valid and done.measured <= done.budget
        # As if the model had known: the very ranks of a budget that is so much smaller.
        known = settings.model_copy(update={"budget": budget / MB})
        best = grant("c00", site, need, known, IMPORTANCE, 1.0)
        assert worth(IMPORTANCE, done.ranks) >= worth(IMPORTANCE, best.ranks) - 1e-9
        found.append(worth(IMPORTANCE, done.ranks))
    if method != "importance":  # greedy is near the best, and not always nearer with more
        assert found == sorted(found)
    assert found[-1] > found[0]


@pytest.mark.parametrize("factor", [1.001, 1.02, 1.3])
def test_what_grows_with_the_step_is_met_too_or_the_smallest_ranks_do_not_fit(factor):
    site, need = site_and_need()
    for budget in budgets_between(site, need):
        settings = RankSettings(
            method="importance", choices=CHOICES, budget=budget / MB, complexity=0.0
        )
        done = settle(site, need, settings, IMPORTANCE, lambda used: int(factor * used))
        if not done.valid:
            assert set(done.ranks) == {1}
            assert factor * need.total([1] * 4) > done.budget


def test_thirty_unequal_clients_all_fit_after_few_trials(monkeypatch):
    def extra(client, took):
        return took * (1 + 0.002 * (int(client[1:]) % 4)) + 700 * (int(client[1:]) % 5)

    trials = taking_more(monkeypatch, extra)
    found = planned(30).state.granted
    assert len(found) == 30 and len({tuple(entry["ranks"]) for entry in found.values()}) > 3
    for client, entry in found.items():
        assert entry["measured"] <= entry["budget"] and entry["valid"]
        assert trials.count(client) == entry["lowered"] + 1 <= MOST_LOWERINGS + 2
    assert any(entry["lowered"] for entry in found.values())


def test_without_lowering_a_plan_exceeds_its_budget(monkeypatch):
    taking_more(monkeypatch, lambda client, took: took * 1.03)
    with monkeypatch.context() as off:
        off.setattr(prepare, "lower", lambda *given: None)
        loose = planned().state.granted
    assert any(entry["measured"] > entry["budget"] for entry in loose.values())
    # `valid` is said of what was measured, not of what the model says.
    for entry in loose.values():
        assert entry["valid"] == (entry["measured"] <= entry["budget"])
        assert entry["used"] <= entry["budget"]
    kept = planned().state.granted
    assert all(entry["measured"] <= entry["budget"] for entry in kept.values())
    for client, entry in kept.items():
        assert sum(entry["ranks"]) < sum(loose[client]["ranks"]) or loose[client]["valid"]


def test_clients_and_server_hold_the_lowered_ranks(monkeypatch):
    taking_more(monkeypatch, lambda client, took: took * 1.03)
    federation = planned()
    held = federation.engine.groups[0].arms["held"]
    for client, entry in federation.state.granted.items():
        assert list(federation.ranks[client]) == entry["ranks"]
        sizes = [a.shape[0] for a, _ in held.take(client).layers.values()]
        assert sizes == entry["ranks"]


def test_a_client_that_fits_under_no_ranks_is_told_and_stops_nobody(monkeypatch):
    taking_more(monkeypatch, lambda client, took: took * (2 if client == "c01" else 1))
    found = planned().state.granted
    assert not found["c01"]["valid"] and set(found["c01"]["ranks"]) == {1}
    assert all(entry["valid"] for client, entry in found.items() if client != "c01")


def test_a_run_says_who_was_lowered_and_who_does_not_fit(tmp_path, monkeypatch, capsys):
    taking_more(monkeypatch, lambda client, took: took * (1.3 if client == "sentiment-1" else 1.02))
    data = {"tasks": ["sentiment"], "clients_per_task": 3, "train": 12, "validation": 8, "test": 10}
    config = make_config(
        strategy="fedavg", alone="needed", rounds=1, ranks=RANKS, devices=DEVICES, data=data
    )
    with live_display(Console(width=200)) as display:
        finished = start_run(config, tmp_path, display.event)
    found = finished.summary["budgets"]
    share = math.ceil(100 * found["sentiment-1"]["measured"] / found["sentiment-1"]["budget"])
    less = [client for client, entry in found.items() if entry["lowered"]]
    assert not found["sentiment-1"]["valid"] and share > 100 and len(less) > 1
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "ranks " in line)
    assert f"to {share} % of budget; lowered: {listed(less)}; does not fit: sentiment-1" in line
    shown = Console(width=200)
    shown.print(run_view(finished.folder, describe_run(finished.folder)))
    told = " ".join(capsys.readouterr().out.split())
    assert f"so less was granted: {listed(less)}." in told
    assert f"the memory of sentiment-1: a step takes {share} % of the budget; give more" in told


@pytest.mark.parametrize("point", [None, 2])
def test_a_second_adapter_of_the_device_is_in_the_trial_and_a_shadow_is_not(point):
    task = make_task("task")
    adapter = {"modules": ["query", "value"], "blocks": 3, "rank": 4}
    ranks = {"method": "uniform", "choices": [4], "budget": 8}

    def took(strategy, alone):
        people = [make_client(f"c{i:02}", task, seed=i) for i in range(2)]
        config = make_config(
            strategy=strategy, alone=alone, ranks=ranks, split={"point": point}, adapter=adapter
        )
        federation = assemble(config, people)
        make_plan(federation.plan, federation.state, federation.engine, ignore)
        group = federation.groups[0]
        weights = federation.state.granted["c00"]["weights"]
        return set(group.arms), federation.state.granted["c00"]["measured"] - weights

    one, plain = took("fedavg", "needed")
    with_shadow, same = took("fedavg", True)
    two, both = took("ditto", "needed")
    assert (one, with_shadow, two) == ({"held"}, {"held", "shadow"}, {"held", "personal"})
    assert same == pytest.approx(plain, rel=0.02)
    assert both == pytest.approx(2 * plain, rel=0.1)


def divided(point, slack):
    """A plan of four clients, each with what the smallest ranks of the largest take, and more."""
    task = make_task("task")
    people = [make_client(f"c{i:02}", task, train=4 + i % 9, seed=i) for i in range(4)]
    ranks = {"method": "importance", "choices": CHOICES, "complexity": 0.0}
    adapter = {"modules": ["query", "value"], "blocks": 3, "rank": 4}

    def made(budget):
        return assemble(
            make_config(
                strategy="fedavg", alone="needed", adapter=adapter, split={"point": point},
                ranks={**ranks, "budget": budget / MB},
            ),
            people,
        )  # fmt: skip

    site = made(MB).plan.sites["c00"]
    federation = made(slack * site.need(LargestBatch((32,) * 4)).total([1] * 6))
    make_plan(federation.plan, federation.state, federation.engine, ignore)
    return federation


def test_a_split_moves_down_where_the_smallest_ranks_take_too_much(monkeypatch):
    taking_more(monkeypatch, lambda client, took: took * 1.3)
    whole = divided(None, 1.2).state.granted
    federation = divided("auto", 1.2)
    depth = federation.groups[0].model.backbone.depth
    moved = federation.state.granted
    assert not all(entry["valid"] for entry in whole.values())
    for client, entry in moved.items():
        assert entry["valid"] and entry["measured"] <= entry["budget"]
        if not whole[client]["valid"]:
            assert 1 <= entry["point"] < depth and entry["lowered"]
            assert federation.engine.groups[0].splits[client] == entry["point"]
            assert list(federation.ranks[client]) == entry["ranks"]


def test_what_fits_at_no_point_ends_on_one_block(monkeypatch):
    trials = taking_more(monkeypatch, lambda client, took: took * 40)
    federation = divided("auto", 1.2)
    found, depth = federation.state.granted, federation.groups[0].model.backbone.depth
    for client, entry in found.items():
        assert not entry["valid"] and entry["point"] == 1
        assert trials.count(client) <= MOST_LOWERINGS + 2 + depth


def test_without_a_measurement_valid_is_by_the_model(monkeypatch):
    monkeypatch.setattr(local, "trial_bytes", lambda *given: None)
    for entry in planned().state.granted.values():
        assert entry["measured"] is None and entry["valid"] and not entry["lowered"]


def test_a_resumed_run_keeps_lowered_ranks_and_tries_nothing_again(tmp_path, monkeypatch):
    trials = taking_more(monkeypatch, lambda client, took: took * 1.03)
    settings = {
        "strategy": "fedavg", "alone": "needed", "rounds": 2, "ranks": RANKS, "devices": DEVICES,
        "data": {"tasks": ["sentiment"], "clients_per_task": 4, "train": 12, "validation": 8,
                 "test": 10},
    }  # fmt: skip
    whole = start_run(make_config(**settings), tmp_path / "whole").summary
    stopped = start_run(make_config(**settings), tmp_path / "part", stop_after(1))
    monkeypatch.undo()  # what a step takes may be told otherwise by then
    before = len(trials)
    again = resume_run(stopped.folder.path).summary
    assert len(trials) == before
    assert again["ranks"] == whole["ranks"] and again["budgets"] == whole["budgets"]
    assert again["adapters_sha256"] == whole["adapters_sha256"]


def test_a_budget_that_hangs_on_the_need_does_not_shrink_with_the_blocks():
    """A device with `room` for a quarter of all ranks, whose step takes a third more than these."""
    plain, need = site_and_need()
    site = replace(plain, limits=DeviceSettings(room=0.25))
    ranks = RankSettings(method="importance", choices=CHOICES, complexity=0.0)
    found = grant("c00", site, need, ranks, [1.0] * len(site.layout.modules), 1.0)
    beyond = (found.budget - need.total(least_ranks(site, ranks))) // 3
    over = replace(found, measured=found.budget + beyond)
    less = fewer_blocks("c00", site, ranks, LargestBatch((20,) * 4), over)
    assert less.budget == found.budget and less.used <= found.budget
    assert less.point == site.depth - 1 and less.lowered == 1
