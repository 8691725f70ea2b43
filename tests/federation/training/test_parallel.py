"""Training and scoring on two cores: what one core gives, the same bits every time."""

import pytest
import torch

from atlas.backbones.load import load_backbone
from atlas.engines.local.groups import ClientGroup
from atlas.federation.batching import store
from atlas.federation.batching.forward import adapters_active, stack_cohorts
from atlas.federation.exchange.message import encode
from atlas.federation.exchange.transport import Failure
from atlas.federation.training import parallel as fitting
from atlas.federation.training.evaluate import predict_rows
from atlas.federation.training.loop import Clock, Course, fit
from atlas.federation.training.parallel import fit_on_cores
from atlas.federation.training.step import Anchor, fresh_moments
from atlas.runs.cores import side_by_side
from tests.federation.training.test_split import assemble, settings
from tests.helpers import make_client

CLOCK = Clock(0, 1, 2)


@pytest.fixture
def shared(monkeypatch):
    """How many pieces were divided among cores, each time that any were."""
    found = []

    def watched(jobs, halted=None):
        found.append(len(jobs))
        return side_by_side(jobs, halted)

    monkeypatch.setattr(store, "side_by_side", watched)
    return found


def make_group(name="tiny", **train) -> tuple[ClientGroup, object]:
    config = settings(backbone={"name": name, "dtype": "float64"}, train=train)
    clients = [make_client(f"c{i}", train=6 + 3 * i, seed=i) for i in range(5)]
    return assemble(config, clients).engine.groups[0], config.train


def full_course(group):
    """Rows that differ in all that a course can say of a row."""
    stack = stack_cohorts([group.arms["held"]])
    count = len(stack.labels)
    draw = torch.Generator().manual_seed(3)
    far = {
        name: torch.randn(value.shape, generator=draw, dtype=value.dtype)
        for name, value in stack.tensors.items()
    }
    moments = {name: (0.1 * far[name], 0.1 * far[name].square()) for name in fresh_moments(stack)}
    return Course(
        stack,
        [group.lesson(client) for client in group.holders],
        (moments, torch.arange(count)),
        Anchor(far, torch.linspace(0, 0.4, count, dtype=torch.float64)),
        [1 if row % 2 else None for row in range(count)],
    )


def close(one, other):
    return torch.allclose(one, other, atol=1e-10, rtol=0)


@pytest.mark.parametrize("patience", [None, 1])
@pytest.mark.parametrize("name", ["tiny", "tiny-causal"])
def test_rows_trained_on_two_cores_equal_those_of_one(two_cores, shared, name, patience):
    stop = {"early_stop": {"patience": patience}} if patience else {}
    group, train = make_group(name, epochs=3, batch=4, **stop)
    course = full_course(group)
    found = fit_on_cores(group.store, course, train, CLOCK)
    assert shared, "nothing was divided"
    torch.set_num_threads(1)
    wanted = fit(group.store, course, train, CLOCK)
    for key, value in wanted.stack.tensors.items():
        assert not close(value, course.stack.tensors[key]), "nothing was trained"
        assert close(found.stack.tensors[key], value), key
        for one, other in zip(found.moments[key], wanted.moments[key], strict=True):
            assert close(one, other), key
    assert close(found.losses, wanted.losses)
    assert torch.equal(found.steps, wanted.steps) and torch.equal(found.made, wanted.made)
    assert found.wire == wanted.wire
    assert sorted(found.wire.up) == [1, 3]


@pytest.mark.parametrize("count", [2, 3])
def test_rows_that_are_trained_after_the_shared_ones_are_not_mixed_up(
    two_cores, shared, monkeypatch, count
):
    monkeypatch.setattr(fitting, "shared_first", lambda *_: count)
    group, train = make_group(epochs=1, batch=4)
    course = full_course(group)
    found = fit_on_cores(group.store, course, train, CLOCK)
    first, *steps = shared
    assert first == count
    assert steps and set(steps) == {2}, "texts of the other rows' steps are divided"
    torch.set_num_threads(1)
    wanted = fit(group.store, course, train, CLOCK)
    assert all(close(found.stack.tensors[k], v) for k, v in wanted.stack.tensors.items())
    assert close(found.losses, wanted.losses)
    assert found.wire == wanted.wire


def test_divided_work_gives_the_same_bits_again(two_cores, shared):
    group, train = make_group(epochs=2, batch=4)
    course = full_course(group)
    first, again = (fit_on_cores(group.store, course, train, CLOCK) for _ in range(2))
    assert shared[0] >= 3 and shared[: len(shared) // 2] == shared[len(shared) // 2 :]
    for key, value in first.stack.tensors.items():
        assert torch.equal(again.stack.tensors[key], value)


def test_one_core_divides_nothing(shared):
    group, train = make_group(epochs=1, batch=4)
    fit_on_cores(group.store, full_course(group), train, CLOCK)
    assert not shared


def test_a_group_that_fails_halts_the_others(two_cores, monkeypatch):
    group, train = make_group(epochs=50, batch=4)
    course, steps = full_course(group), []

    def broken(store, part, settings, clock, progress):
        if part.lessons[0].client == "c4":
            raise RuntimeError("out of memory")
        return fit(store, part, settings, clock, progress)

    monkeypatch.setattr(fitting, "fit", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        fit_on_cores(group.store, course, train, CLOCK, lambda *now: steps.append(now))
    assert len(steps) < 100, "fifty epochs were to be made by every group"
    monkeypatch.setattr(fitting, "fit", fit)
    fit_on_cores(group.store, course, train.model_copy(update={"epochs": 1}), CLOCK)


def test_clients_that_fail_on_two_cores_are_found_one_by_one(two_cores, monkeypatch):
    config = settings(train={"epochs": None, "steps": 1, "batch": 4})
    federation = assemble(config, [make_client(f"c{i}", seed=i) for i in range(5)])

    def broken(store, part, *rest):
        if any(lesson.client == "c2" for lesson in part.lessons):
            raise RuntimeError("out of memory")
        return fit(store, part, *rest)

    monkeypatch.setattr(fitting, "fit", broken)
    asked = dict.fromkeys(federation.holders, encode({}, {"round": 1}))
    replies = federation.engine.ask("fit", asked)
    assert [client for client, reply in replies.items() if isinstance(reply, Failure)] == ["c2"]


def test_progress_counts_the_steps_of_all(two_cores):
    group, train = make_group(epochs=2, batch=4)
    told = []
    fit_on_cores(group.store, full_course(group), train, CLOCK, lambda *now: told.append(now))
    total = told[0][1]
    assert told == [(step, total) for step in range(1, total + 1)]
    assert total >= 2 * 2 * -(-18 // 4)


def test_predictions_on_two_cores_equal_those_of_one(two_cores, shared, monkeypatch):
    group, _ = make_group()
    monkeypatch.setattr("atlas.federation.batching.store.PASS_TOKENS", 40)
    stack = stack_cohorts([group.arms["held"]])
    picks = [group.store.rows(f"{client}/train") for client in group.holders]
    found = predict_rows(group.store, stack, picks)
    assert shared, "nothing was divided"
    torch.set_num_threads(1)
    wanted = predict_rows(group.store, stack, picks)
    for one, other, pick in zip(found[0], wanted[0], picks, strict=True):
        assert len(one) == len(pick)
        assert abs(one - other).max() < 1e-10
    assert [row.tolist() for row in found[1]] == [row.tolist() for row in wanted[1]]


@pytest.mark.parametrize("name", ["tiny", "tiny-causal", "minilm"])
def test_a_twin_shares_weights_but_not_hooks(name):
    backbone = load_backbone(name)
    first, twin = backbone.twins(2)
    assert first is backbone and backbone.twins(2)[1] is twin and twin.twins(1) == [twin]
    own, other = dict(backbone.model.named_parameters()), dict(twin.model.named_parameters())
    assert own.keys() == other.keys()
    assert all(other[key].data_ptr() == value.data_ptr() for key, value in own.items())
    assert twin.tokenizer is backbone.tokenizer
    for block in range(backbone.depth):
        mine, its = backbone.linears(block), twin.linears(block)
        assert mine.keys() == its.keys()
        assert all(its[key] is not module for key, module in mine.items())


def test_adapters_of_one_twin_do_not_act_in_the_other():
    group, _ = make_group()
    _, twin = group.model.twins(2)
    stack = stack_cohorts([group.arms["held"]])
    with adapters_active(twin, stack):
        hooks = [len(m._forward_hooks) for m in group.model.backbone.linears(1).values()]
        others = [len(m._forward_hooks) for m in twin.backbone.linears(1).values()]
    assert sum(hooks) == 0 and sum(others) > 0
