"""The cost model against what a step really takes."""

from dataclasses import replace

import pytest

from atlas.build.federation import assemble
from atlas.config.plan import RankSettings
from atlas.engines.local.capacity import take_ranks, take_split, tell_capacity, trial_bytes
from atlas.federation.capacity.block_bytes import LargestBatch, StepMeter
from atlas.federation.capacity.cost import client_need
from atlas.federation.clients import ClientData, Example
from tests.engines.local import test_causal as causal
from tests.helpers import make_client, make_config

ALL = ["query", "key", "value", "output", "up", "down"]
PLANS = [
    (["query", "value"], 1, 4),
    (["query", "value"], 2, 8),
    (ALL, 2, 16),
]


def group_of(name, modules, blocks, *, batch=16, strategy="local"):
    """One client with rather long texts."""
    settings = make_config(
        strategy=strategy, alone=False, backbone={"name": name, "max_length": 48},
        adapter={"modules": modules, "blocks": blocks, "rank": 4}, train={"batch": batch},
    )  # fmt: skip
    client = make_client("one", train=24, seed=3)
    long = tuple(replace(e, texts=(" ".join(e.texts * 4),)) for e in client.train)
    return assemble(settings, [replace(client, train=long)]).engine.groups[0], settings


def estimate(group, settings, ranks, point=None):
    told = tell_capacity(group, "one", settings.train.batch)
    batch = LargestBatch(tuple(told["lengths"]), tuple(told["answers"]))
    need = client_need(StepMeter(group.model), group.arms["held"].members[0], batch, point)
    return need, need.total(ranks)


@pytest.mark.parametrize(("modules", "blocks", "rank"), PLANS)
@pytest.mark.parametrize("name", ["minilm", "tiny-causal"])
def test_a_measured_step_is_within_a_twentieth_of_the_estimate(name, modules, blocks, rank):
    group, settings = group_of(name, modules, blocks)
    ranks = [rank] * len(group.model.layout.modules)
    take_ranks(group, {"one": ranks}, seed=0)
    need, total = estimate(group, settings, ranks)
    measured = trial_bytes(group, "one", settings.train, seed=0)
    # The frozen weights are known; they must not hide a wrong account of the step itself.
    assert measured - need.weights == pytest.approx(total - need.weights, rel=0.05)


@pytest.mark.parametrize(("modules", "blocks", "rank"), PLANS)
@pytest.mark.parametrize("name", ["minilm", "tiny-causal"])
def test_what_stands_beside_adapters_is_in_the_estimate(name, modules, blocks, rank):
    group, settings = group_of(name, modules, blocks, strategy="simgrad")
    plain, _ = group_of(name, modules, blocks)
    ranks = [rank] * len(group.model.layout.modules)
    take_ranks(group, {"one": ranks}, seed=0)
    need, total = estimate(group, settings, ranks)
    assert total > estimate(plain, settings, ranks)[1]
    measured = trial_bytes(group, "one", settings.train, seed=0)
    assert measured - need.weights == pytest.approx(total - need.weights, rel=0.05)


@pytest.mark.parametrize("point", [1, 2])
def test_a_split_step_is_within_a_tenth_of_the_estimate(point):
    group, settings = group_of("tiny", ALL, 3)
    modules = len(group.model.layout.modules)
    # Adapters above the split are the server's, however large.
    ranks = [8 if ".0." in m or ".1." in m else 16 for m in group.model.layout.modules]
    take_ranks(group, {"one": ranks}, seed=0)
    take_split(group, "one", point)
    need, total = estimate(group, settings, ranks, point)
    measured = trial_bytes(group, "one", settings.train, seed=0)
    assert measured - need.weights == pytest.approx(total - need.weights, rel=0.1)
    assert total < estimate(group, settings, [8] * modules)[1]


def test_large_ranks_and_few_tokens_take_most_when_training_ends():
    group, settings = group_of("minilm", ["query", "value"], 1, batch=1)
    need, total = estimate(group, settings, [256, 256])
    assert total == need.moments[-1].total([256, 256]) > need.moments[-2].total([256, 256])
    take_ranks(group, {"one": [256, 256]}, seed=0)
    measured = trial_bytes(group, "one", settings.train, seed=0)
    assert measured - need.weights == pytest.approx(total - need.weights, rel=0.05)


def test_blocks_are_measured_once_for_a_shape_and_alike_every_time():
    group, settings = group_of("tiny", ALL, 2)
    told = tell_capacity(group, "one", settings.train.batch)
    batch = LargestBatch(tuple(told["lengths"]), tuple(told["answers"]))
    member = group.arms["held"].members[0]
    first, second = StepMeter(group.model), StepMeter(group.model)
    assert first.measure(batch, member) == second.measure(batch, member)
    assert first.measure(batch, member) is first.measure(batch, member)
    found = first.measure(batch, member)
    assert found.topmost(3) - found.topmost(2) == found.reading(3) - found.reading(2) == found.each
    assert found.each > 0


def test_ranks_batch_length_and_blocks_all_cost():
    group, settings = group_of("tiny", ALL, 2)
    modules = len(group.model.layout.modules)
    _, small = estimate(group, settings, [4] * modules)
    _, large = estimate(group, settings, [8] * modules)
    need = estimate(group, settings, [4] * modules)[0]
    highest = max(need.moments, key=lambda moment: moment.total([4] * modules))
    assert large - small == 4 * sum(highest.units)
    double = settings.model_copy(update={"train": settings.train.model_copy(update={"batch": 32})})
    assert estimate(group, double, [4] * modules)[1] > small
    shallow, _ = group_of("tiny", ALL, 1)
    assert estimate(shallow, settings, [4] * (modules // 2))[1] < small


def test_a_rank_costs_four_copies_of_its_numbers_and_what_it_keeps_of_a_step():
    group, settings = group_of("tiny", ["query", "value"], 2)
    need, _ = estimate(group, settings, [4] * 4)
    width = group.model.backbone.width
    lengths = tell_capacity(group, "one", settings.train.batch)["lengths"]
    kept = width + -(-sum(lengths) // 16) * 16
    below, reading, ended, topmost = (moment.units for moment in need.moments)
    assert below == (4 * 4 * 2 * width,) * 4
    assert reading[:2] == (4 * (4 * 2 * width + kept),) * 2
    assert reading[2:] > below[2:]
    assert ended == (4 * 7 * 2 * width,) * 4
    # Gradients of the last block are there when the one below it takes its most.
    assert topmost == (4 * (4 * 2 * width + kept),) * 2 + (4 * 5 * 2 * width,) * 2


def test_fixed_ranks_need_no_device():
    assert RankSettings().method == "fixed"
    federation = assemble(make_config(), [make_client("one")])
    assert federation.plan.sites == {}


def answering_group(longest):
    """A client whose texts are long and whose answers are short, but for one."""
    words = [" ab" * longest, *[" ab"] * 23]
    examples = tuple(Example((f"Q: {'cd ' * 12}A:",), -1, answer=word) for word in words)
    settings = make_config(
        strategy="local", alone=False, backbone={"name": "tiny-causal", "max_length": 96},
        adapter={"modules": ["query", "value"], "blocks": 1, "rank": 4}, train={"batch": 8},
    )  # fmt: skip
    people = [ClientData("one", causal.ECHO, examples, examples[:4], examples[:4], "echo")]
    return assemble(settings, people).engine.groups[0], settings


def test_a_long_answer_among_short_ones_counts_once():
    group, settings = answering_group(12)
    told = tell_capacity(group, "one", 8)
    assert len(told["answers"]) == 8 and told["answers"][0] > 3 * told["answers"][1]
    need, total = estimate(group, settings, [4, 4])
    measured = trial_bytes(group, "one", settings.train, seed=0)
    assert measured - need.weights == pytest.approx(total - need.weights, rel=0.1)
    everywhere = LargestBatch(tuple(told["lengths"]), (told["answers"][0],) * 8)
    member = group.arms["held"].members[0]
    assert client_need(StepMeter(group.model), member, everywhere).total([4, 4]) > 1.1 * total
