"""Halves of batches, against loops that know each gradient; no bit of training moves."""

import numpy as np
import pytest
import torch

from atlas.federation.adapters.adapter import Layout
from atlas.federation.batching.forward import stack_cohorts
from atlas.federation.training import loop
from atlas.federation.training.halves import Followed, Halves, plan_halves
from atlas.federation.training.loop import Course, fit
from atlas.federation.training.parallel import fit_on_cores
from atlas.ops.optim import BETA1, BETA2, EPSILON, Columns, adamw_, gradient_weights
from tests.federation.training.test_parallel import CLOCK, make_group


def course_of(group, measure):
    stack = stack_cohorts([group.arms["held"]])
    return Course(stack, [group.lesson(c) for c in group.holders], measure=measure)


@pytest.mark.parametrize(
    "how", [{"epochs": 2}, {"steps": 1, "epochs": None}, {"early_stop": {"patience": 1}}]
)
def test_no_bit_of_training_changes(how):
    group, settings = make_group(**how)
    with_it, without = (fit(group.store, course_of(group, m), settings, CLOCK)
                        for m in ("noise", None))  # fmt: skip
    for name, value in without.stack.tensors.items():
        assert torch.equal(value, with_it.stack.tensors[name])
    assert without.noise is None
    # Rows of 6 to 18 examples in batches of 4; one step has no halves.
    assert bool(with_it.noise.isfinite().all()) == ("steps" not in how)


def test_rows_on_several_cores_have_their_noise_in_their_places():
    group, settings = make_group(epochs=2)
    one = fit(group.store, course_of(group, "noise"), settings, CLOCK)
    two = fit_on_cores(group.store, course_of(group, "noise"), settings, CLOCK)
    assert torch.allclose(one.noise, two.noise, rtol=1e-8)
    assert float(one.noise[:, 0].std()) > 0


@pytest.mark.parametrize("made", [0, 7])
def test_weights_are_what_single_gradients_move(made):
    rates = np.linspace(1.0, 0.3, 9)
    found = gradient_weights(rates, made)
    for which in range(len(rates)):
        moment = moved = 0.0
        for step, rate in enumerate(rates):
            moment = BETA1 * moment + (1 - BETA1) * (step == which)
            moved += rate * moment / (1 - BETA1 ** (made + step + 1))
        assert found[which] == pytest.approx(moved, rel=1e-12)


@pytest.mark.parametrize("steps", [2, 6, 9, 40])
def test_the_factor_makes_independent_gradients_noise_unbiased(steps):
    """Linear twin: changes are weighted sums of drawn gradients; a common gradient counts not."""
    rates = np.linspace(1.0, 0.5, steps)
    plan, weights = plan_halves(rates.tolist(), steps, 0), gradient_weights(rates, 0)
    draw = np.random.default_rng(0)
    gradients = 5.0 + draw.standard_normal((20000, steps))
    measured = plan.factor * ((gradients * plan.signs * weights).sum(1) ** 2).mean()
    real = ((gradients - 5.0) * weights).sum(1).var()
    assert measured == pytest.approx(real, rel=0.05)
    assert plan.passes == 1.0


@pytest.mark.parametrize("passes", [2, 3])
def test_passes_say_how_much_more_noise_examples_have_that_come_back(passes):
    batches = 4
    rates = [1.0] * (passes * batches)
    plan, weights = plan_halves(rates, batches, 0), gradient_weights(np.array(rates), 0)
    draw = np.random.default_rng(1)
    moved, apart = [], []
    for _ in range(20000):
        examples = draw.standard_normal(batches)
        order = np.concatenate([draw.permutation(batches) for _ in range(passes)])
        moved.append((examples[order] * weights).sum())
        apart.append((examples[order] * plan.signs * weights).sum() ** 2)
    # With one example a batch halves of a pass share nothing; what passes share is in `passes`.
    assert plan.factor * np.mean(apart) * plan.passes == pytest.approx(np.var(moved), rel=0.2)
    assert 1.0 < plan.passes <= passes


@pytest.mark.parametrize("best", [1, 2, 3])
def test_who_stops_early_tells_the_noise_of_the_epochs_it_keeps(best, monkeypatch):
    """The same as if no more epochs had been planned than those up to its best one."""
    losses = iter([1.0 - epoch if epoch < best else 9.0 for epoch in range(3)])
    monkeypatch.setattr(loop, "mean_losses", lambda store, stack, rows: [next(losses)] * len(rows))
    group, stopping = make_group(epochs=3, early_stop={"patience": 3})
    row = [group.lesson("c2")]
    stack = stack_cohorts([group.arms["held"]]).rows(torch.tensor([2]))
    course = Course(stack, row, measure="noise")
    _, planned = make_group(epochs=best)
    found, wanted = (fit(group.store, course, how, CLOCK) for how in (stopping, planned))
    for name, value in wanted.stack.tensors.items():
        assert torch.equal(found.stack.tensors[name], value)
    assert torch.allclose(found.noise, wanted.noise, rtol=1e-9)
    assert 0 < float(found.noise[0, 2]) <= best
    # Rows of which no epoch is kept have moved nowhere, and say nothing.
    monkeypatch.setattr(loop, "mean_losses", lambda store, stack, rows: [np.nan] * len(rows))
    assert bool(fit(group.store, course, stopping, CLOCK).noise.isnan().all())


def test_a_gradient_that_never_changes_is_no_noise_of_the_epochs_that_are_kept():
    plan = plan_halves(np.linspace(1.0, 0.1, 12).tolist(), 4, 0)
    for steps in (4, 8, 12):
        weights, first = gradient_weights(np.array(plan.rates[:steps]), 0), plan.signs[:steps] > 0
        one, two = (torch.tensor([weights[which].sum()]) for which in (first, ~first))
        change = plan.signs[0] * one + plan.signs[1] * two
        shorter = plan.until(steps)
        assert float(plan.rebalanced(shorter, change, one + two)) == pytest.approx(0, abs=1e-12)
        assert (abs(float(change)) < 1e-12) == (steps == 12)


def test_too_few_batches_have_no_halves():
    assert plan_halves([1.0], 5, 0) is None
    assert plan_halves([1.0, 1.0], 1, 0) is None
    assert plan_halves([1.0, 1.0], 2, 0) is not None
    assert plan_halves([1.0] * 2, 8, 0).passes == 0.25


def follow(gradients, rates, signs):
    """AdamW on numbers [n, P], with the momentum of signed gradients followed by a plain loop."""
    steps, n, width = gradients.shape
    value = torch.zeros(n, width, dtype=torch.float64)
    moments = (torch.zeros_like(value), torch.zeros_like(value))
    plain = torch.zeros_like(value)
    second, moment = torch.zeros_like(value), torch.zeros_like(value)
    plans = [plan_halves(rates, steps, 0)] * n
    halves = Halves.of(plans, value)
    for step in range(steps):
        count = torch.full((n,), step + 1)
        rate = torch.full((n, 1), rates[step], dtype=torch.float64)
        grad = gradients[step].clone()
        halves.read(range(n), None, grad)
        adamw_(value, grad, moments, steps=count, rates=rate, weight_decay=0.0)
        halves.follow(None, moments[1], count, rate)
        second = BETA2 * second + (1 - BETA2) * gradients[step] ** 2
        moment = BETA1 * moment + (1 - BETA1) * gradients[step] * signs[step]
        size = (second / (1 - BETA2 ** (step + 1))).sqrt() + EPSILON
        plain -= rates[step] * moment / (1 - BETA1 ** (step + 1)) / size
    return value, halves, plain


def test_what_halves_moved_is_what_a_loop_finds_and_the_whole_is_the_update():
    draw = torch.Generator().manual_seed(0)
    gradients = torch.randn(7, 3, 11, generator=draw, dtype=torch.float64)
    rates = np.linspace(0.1, 0.05, 7).tolist()
    signs = plan_halves(rates, 7, 0).signs
    _, halves, plain = follow(gradients, rates, signs)
    assert torch.allclose(halves.signed.change, plain, atol=1e-12)
    value, _, whole = follow(gradients, rates, np.ones(7))
    assert torch.allclose(value, whole, atol=1e-12)


def test_noise_is_that_of_dense_products_for_unequal_ranks():
    """The change of each product, its first half minus its second, formed densely."""
    group, settings = make_group(epochs=2)
    fitted = fit(group.store, course_of(group, "noise"), settings, CLOCK)
    before = course_of(group, None).stack
    columns = Columns.of(before.tensors)
    draw = torch.Generator().manual_seed(0)
    flat = torch.randn(columns.join(before.tensors).shape, generator=draw, dtype=torch.float64)
    plans = [plan_halves([1.0] * 4, 2, 0)] * len(flat)
    halves = Halves(plans, Followed(flat, flat), [4] * len(flat))
    layout: Layout = group.model.layout
    found = halves.noise(layout, before, fitted.stack, columns)
    gaps = columns.views(flat)
    wanted = torch.zeros(len(flat), dtype=torch.float64)
    for i in range(len(layout.modules)):
        a, b = layout.parts(i)
        mean_a, mean_b = ((before.tensors[x] + fitted.stack.tensors[x]) / 2 for x in (a, b))
        dense = gaps[b] @ mean_a + mean_b @ gaps[a]
        wanted += (dense * before.scales[i][:, None, None]).square().sum((1, 2))
        change = fitted.stack.tensors[b] @ fitted.stack.tensors[a]
        change = change - before.tensors[b] @ before.tensors[a]
        d_a, d_b = (fitted.stack.tensors[x] - before.tensors[x] for x in (a, b))
        assert torch.allclose(d_b @ mean_a + mean_b @ d_a, change, atol=1e-12)
    assert torch.allclose(found[:, 0], plans[0].factor * wanted, rtol=1e-9)
    heads = [v.square().flatten(1).sum(1) for k, v in gaps.items() if k.startswith("head/")]
    assert torch.allclose(found[:, 1], plans[0].factor * torch.stack(heads).sum(0))
