"""The cost model against what a step really takes."""

from dataclasses import replace

import pytest
import torch

from atlas.build.federation import assemble
from atlas.config.plan import RankSettings
from atlas.engines.local.capacity import take_ranks, tell_capacity, trial_bytes
from atlas.federation.capacity.block_bytes import LargestBatch, StepMeter
from atlas.federation.capacity.cost import client_need
from tests.helpers import make_client, make_config

ALL = ["query", "key", "value", "output", "up", "down"]
PLANS = [
    (["query", "value"], 1, 4),
    (["query", "value"], 2, 8),
    (ALL, 2, 16),
]


def group_of(name, modules, blocks, *, batch=16):
    """One client with rather long texts."""
    settings = make_config(
        strategy="local", alone=False, backbone={"name": name, "max_length": 48},
        adapter={"modules": modules, "blocks": blocks, "rank": 4}, train={"batch": batch},
    )  # fmt: skip
    client = make_client("one", train=24, seed=3)
    long = tuple(replace(e, texts=(" ".join(e.texts * 4),)) for e in client.train)
    return assemble(settings, [replace(client, train=long)]).engine.groups[0], settings


def estimate(group, settings, ranks):
    told = tell_capacity(group, "one", settings.train.batch)
    batch = LargestBatch(tuple(told["lengths"]), told["answers"])
    need = client_need(StepMeter(group.model), group.arms["held"].members[0], batch)
    return need, need.total(ranks)


@pytest.mark.parametrize(("modules", "blocks", "rank"), PLANS)
@pytest.mark.parametrize("name", ["minilm", "tiny-causal"])
def test_a_measured_step_is_within_a_quarter_of_the_estimate(name, modules, blocks, rank):
    group, settings = group_of(name, modules, blocks)
    ranks = [rank] * len(group.model.layout.modules)
    take_ranks(group, {"one": ranks}, seed=0)
    need, total = estimate(group, settings, ranks)
    measured = trial_bytes(group, "one", settings.train, seed=0)
    assert measured == pytest.approx(total, rel=0.25)
    # The frozen weights are known; they must not hide a wrong account of the step itself.
    assert measured - need.weights == pytest.approx(total - need.weights, rel=0.25)


def test_ranks_batch_length_and_blocks_all_cost():
    group, settings = group_of("tiny", ALL, 2)
    modules = len(group.model.layout.modules)
    _, small = estimate(group, settings, [4] * modules)
    _, large = estimate(group, settings, [8] * modules)
    assert large - small == 4 * sum(estimate(group, settings, [4] * modules)[0].units)
    double = settings.model_copy(update={"train": settings.train.model_copy(update={"batch": 32})})
    assert estimate(group, double, [4] * modules)[1] > small
    shallow, _ = group_of("tiny", ALL, 1)
    assert estimate(shallow, settings, [4] * (modules // 2))[1] < small


def test_adapter_bytes_are_two_widths_times_rank_times_four_numbers():
    group, settings = group_of("tiny", ["query", "value"], 2)
    need, _ = estimate(group, settings, [4] * 4)
    width = group.model.backbone.width
    tokens = tell_capacity(group, "one", settings.train.batch)["tokens"]
    assert need.units == (4 * (2 * width * 4 + tokens),) * 4


def test_peak_counts_what_is_held_at_once_and_no_views():
    big = torch.ones(1000, 100)

    def work():
        first = big + 1
        del first
        second = big * 2
        return second.t().contiguous()[:50] + 0

    # second (400 kB), its transposed copy and half of it again
    assert peak_bytes(work, torch.device("cpu")) == 4 * 250_000
    assert peak_bytes(lambda: big.t().view(100, 1000)[:3], torch.device("cpu")) == 0


def test_peak_sees_what_autograd_keeps():
    weight = torch.ones(100, 100, requires_grad=True)
    x = torch.ones(1000, 100)

    def forward(layers):
        hidden = x
        for _ in range(layers):
            hidden = torch.tanh(hidden @ weight)
        hidden.sum().backward()

    one, five = (peak_bytes(lambda n=n: forward(n), torch.device("cpu")) for n in (1, 5))
    assert five - one >= 4 * 400_000 - 400_000


def test_fixed_ranks_need_no_device():
    assert RankSettings().method == "fixed"
    federation = assemble(make_config(), [make_client("one")])
    assert federation.plan.sites == {}
