"""Blocks divided between client and server train as undivided ones do."""

import pytest
import torch

from atlas.build.federation import assemble
from atlas.errors import InputError
from atlas.federation.batching.forward import stack_cohorts
from atlas.federation.exchange.message import encode
from atlas.federation.prepare import make_plan
from atlas.federation.rounds import run_rounds
from atlas.federation.training.loop import Clock, Course, fit
from atlas.federation.training.step import Anchor
from atlas.ops.capacity import Division, choose_division
from atlas.runs.events import ignore
from tests.helpers import make_client, make_clients, make_config

EVEN = {"memory": 1.0, "traffic": 1.0, "importance": 1.0, "balance": 0.0}


def settings(**changes):
    base = {
        "strategy": "local", "alone": False, "backbone": {"dtype": "float64"},
        "adapter": {"modules": ["query", "value", "up"], "blocks": 3, "rank": 3},
        "train": {"epochs": 2},
    }  # fmt: skip
    return make_config(**{**base, **changes})


def trained(points, config, anchored=False):
    """All rows of the only group after one fit."""
    group = assemble(config, make_clients()).engine.groups[0]
    clients = sorted(group.holders)
    stack = stack_cohorts([group.arms["held"].select(clients)])
    anchor = None
    if anchored:
        there = {k: v + 0.1 for k, v in stack.tensors.items()}
        anchor = Anchor(there, torch.full((len(clients),), 0.3, dtype=torch.float64))
    lessons = [group.lesson(client) for client in clients]
    course = Course(stack, lessons, anchor=anchor, points=points)
    return fit(group.store, course, config.train, Clock(0, 1, 1))


@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize("name", ["tiny", "tiny-causal"])
def test_a_split_fit_equals_a_whole_one(name, anchored):
    config = settings(backbone={"name": name, "dtype": "float64"})
    whole = trained(None, config, anchored)
    count = len(whole.losses)
    split = trained([1] * count, config, anchored)
    mixed = trained([1 if row % 2 else None for row in range(count)], config, anchored)
    start = trained(None, config.model_copy(update={"train": config.train.model_copy(
        update={"lr": 1e-12})}))  # fmt: skip
    for key, value in whole.stack.tensors.items():
        assert torch.allclose(split.stack.tensors[key], value, atol=1e-10, rtol=0)
        assert torch.allclose(mixed.stack.tensors[key], value, atol=1e-10, rtol=0)
    moved = [(whole.stack.tensors[k] - v).abs().max() for k, v in start.stack.tensors.items()]
    assert max(moved) > 1e-3
    assert torch.allclose(split.losses, whole.losses, atol=1e-10, rtol=0)
    assert split.wire.up
    assert not whole.wire.up


def test_bytes_of_a_step_are_twice_batch_length_width_and_size():
    config = settings(train={"epochs": None, "steps": 1, "batch": 4})
    group = assemble(config, [make_client("one", train=4)]).engine.groups[0]
    stack = stack_cohorts([group.arms["held"]])
    lesson = group.lesson("one")
    found = fit(group.store, Course(stack, [lesson], points=[1]), config.train, Clock(0, 1, 1))
    tokens = int(group.store.lengths_of(lesson.train).sum())
    width = group.model.backbone.width
    # batch * mean length: padding is not sent.
    assert found.wire.payload == 2 * tokens * width * 8
    message = encode({"values": torch.zeros(tokens, width, dtype=torch.float64)}, {})
    assert found.wire.up == found.wire.down == {0: len(message)}


def test_nothing_comes_down_where_the_client_trains_nothing():
    config = settings(adapter={"modules": ["query"], "blocks": 1, "rank": 2})
    group = assemble(config, [make_client("one")]).engine.groups[0]
    stack = stack_cohorts([group.arms["held"]])
    lesson = group.lesson("one")
    points = {None: None, 1: [1]}
    whole, split = (
        fit(group.store, Course(stack, [lesson], points=p), config.train, Clock(0, 1, 1))
        for p in points.values()
    )
    assert split.wire.up[0] > 0
    assert split.wire.down == {}
    for key, value in whole.stack.tensors.items():
        assert torch.allclose(split.stack.tensors[key], value, atol=1e-10, rtol=0)


def played(**changes):
    federation = assemble(settings(strategy="fedavg", **changes), make_clients())
    events = []
    observe = lambda event, fields: events.append((event, fields))  # noqa: E731
    make_plan(federation.plan, federation.state, federation.engine, observe)
    run_rounds(federation.plan, federation.state, federation.engine, observe, lambda state: True)
    return federation, events


def test_a_split_federation_equals_a_whole_one_and_pays_for_it_in_traffic():
    whole, _ = played()
    split, events = played(split={"point": 1})
    for name, cohort in whole.state.cohorts.items():
        for key, value in cohort.tensors.items():
            assert torch.allclose(split.state.cohorts[name].tensors[key], value, atol=1e-10, rtol=0)
    sent = split.state.ledger.split
    assert sent["up"] > 0
    assert sent["down"] > 0
    assert whole.state.ledger.split == {"up": 0, "down": 0}
    for way in ("up", "down"):
        extra = split.state.ledger.total(way) - whole.state.ledger.total(way)
        # Facts of replies are a few bytes longer.
        assert sent[way] <= extra <= sent[way] + 4096
    told = [fields["split"]["up"] for event, fields in events if event == "fitted"]
    assert sum(told) == sent["up"]


def test_a_point_that_leaves_nothing_to_the_server_is_refused():
    with pytest.raises(InputError, match="split.point: 3 given, but tiny has 3 blocks"):
        assemble(settings(split={"point": 3}), make_clients())


def test_auto_splits_a_device_that_cannot_hold_the_whole_model():
    people = [make_client("one", train=8)]
    adapter = {"modules": ["query", "value"], "blocks": 3, "rank": 2}
    common = {"strategy": "local", "alone": False, "adapter": adapter}
    ranks = {"method": "importance", "choices": [2, 4], "budget": 1000}

    def point(budget, **changes):
        given = {"ranks": {**ranks, "budget": budget}, "split": {"point": "auto", **changes}}
        federation = assemble(make_config(**common, **given), people)
        make_plan(federation.plan, federation.state, federation.engine, ignore)
        entry = federation.state.granted["one"]
        assert entry["used"] <= entry["budget"]
        assert federation.engine.groups[0].splits == (
            {"one": entry["point"]} if entry["point"] else {}
        )
        return entry

    whole = point(1000)
    assert whole["point"] is None
    tight = point((whole["used"] - 1) / 2**20 * 0.97)
    assert tight["point"] in (1, 2)
    assert tight["weights"] < whole["weights"]
    assert tight["measured"] == pytest.approx(tight["used"], rel=0.25)
    balanced = {"weights": {"balance": 9.0, "traffic": 0.0, "importance": 0.0, "memory": 0.0}}
    assert point(1000, **balanced)["point"] in (1, 2)
    with pytest.raises(InputError, match="no split helps"):
        point(0.001)


def test_the_choice_of_a_division_weighs_all_four():
    whole = Division(4, 0.9, 0, 1.0)
    half = Division(2, 0.5, 2, 0.4)
    low = Division(1, 0.3, 1, 0.0)
    options = [whole, half, low]
    assert choose_division(options, 4, EVEN) == whole
    assert choose_division(options, 4, {**EVEN, "memory": 9.0}) == low
    assert choose_division(options, 4, {**EVEN, "balance": 9.0}) == half
    assert choose_division([Division(4, 1.1, 0, 1.0), half, low], 4, EVEN) == low
    free = {**EVEN, "traffic": 0.0}
    assert choose_division([Division(4, 1.1, 0, 1.0), half, low], 4, free) == half
    assert choose_division([Division(1, 1.2, 2, 0.0)], 4, EVEN) is None
