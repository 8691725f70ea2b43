"""StableMax, PerpGrad and the two measures, against their formulas in float64."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from atlas.ops.stability import (
    collapse_share,
    make_perpendicular_,
    perpendicular,
    scaling_cosine,
    stablemax_cross_entropy,
    stablemax_log_probabilities,
)


def drawn(*shape, seed=0, scale=1.0):
    draw = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=draw, dtype=torch.float64)


def naive_loss(logits, targets):
    """One number at a time."""
    losses = []
    for row, target in zip(logits, targets, strict=True):
        s = [z + 1 if z >= 0 else 1 / (1 - z) for z in row]
        losses.append(-torch.log(s[int(target)] / sum(s)))
    return torch.stack(losses)


@pytest.mark.parametrize("scale", [0.01, 3.0, 500.0])
def test_stablemax_and_its_gradient_are_those_of_the_formula(scale):
    targets = torch.tensor([0, 4, 6, 2, 2])
    one, two = (drawn(5, 7, scale=scale).requires_grad_() for _ in range(2))
    found = stablemax_cross_entropy(one, targets)
    wanted = naive_loss(two, targets).mean()
    found.backward()
    wanted.backward()
    assert found.item() == pytest.approx(wanted.item(), abs=1e-12, rel=1e-12)
    assert torch.allclose(one.grad, two.grad, atol=1e-14, rtol=1e-10)
    total = stablemax_cross_entropy(one, targets, "sum")
    assert total.item() == pytest.approx(naive_loss(two, targets).sum().item(), abs=1e-10)


def test_stablemax_is_a_distribution_in_float64_also_of_half_precision():
    logits = drawn(4, 9, scale=30).to(torch.bfloat16)
    found = stablemax_log_probabilities(logits)
    assert found.dtype == torch.float64
    assert torch.allclose(found.exp().sum(-1), torch.ones(4, dtype=torch.float64), atol=1e-14)


def test_stablemax_still_learns_where_softmax_has_collapsed():
    targets = torch.zeros(3, dtype=torch.int64)
    logits = torch.zeros(3, 5)
    logits[:, 0] = 200.0
    soft, stable = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    cross_entropy(soft, targets).backward()
    stablemax_cross_entropy(stable, targets).backward()
    assert not soft.grad.any()
    assert stable.grad.abs().sum() > 1e-5
    assert torch.isfinite(stable.grad).all()


@pytest.mark.parametrize("shape", [(4, 7), (5,), (2, 3, 5)])
def test_what_perpgrad_leaves_lies_across_the_weight_and_is_as_long(shape):
    g, w = drawn(*shape, seed=1), drawn(*shape, seed=2)
    found = perpendicular(g, w)
    along = g - (float((w * g).sum()) / float((w * w).sum())) * w
    wanted = along / along.norm() * g.norm()
    assert torch.allclose(found, wanted, atol=1e-13)
    assert abs(float((found * w).sum())) < 1e-12
    assert abs(float(found.norm() - g.norm())) < 1e-12


def test_perpgrad_where_nothing_lies_across():
    w = drawn(3, 4)
    assert not perpendicular(2.5 * w, w).any()
    assert not perpendicular(torch.tensor([3.0]), torch.tensor([0.7])).any()
    assert not perpendicular(torch.zeros(3), torch.ones(3)).any()
    g = drawn(3, 4, seed=5)
    assert torch.allclose(perpendicular(g, torch.zeros(3, 4)), g, atol=1e-14)


def test_perpgrad_keeps_every_tensor_apart_and_the_weights_at_their_norm():
    def trained(between):
        model = torch.nn.Linear(6, 4).double()
        with torch.no_grad():
            model.weight.copy_(drawn(4, 6, seed=3))
            model.bias.copy_(drawn(4, seed=4))
        optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
        x, y = drawn(20, 6, seed=6), torch.arange(20) % 4
        for _ in range(100):
            optimiser.zero_grad()
            cross_entropy(model(x), y).backward()
            between(list(model.parameters()))
            optimiser.step()
        return model.weight.detach()

    start = float(drawn(4, 6, seed=3).norm())
    plain, across = trained(lambda values: None), trained(make_perpendicular_)
    # Off, the norm moves; on, it moves in second order of the step alone.
    assert abs(float(across.norm()) - start) < 1e-3 * abs(float(plain.norm()) - start)


def test_the_share_of_collapsed_rows():
    logits = torch.zeros(4, 3)
    logits[0, 0] = logits[1, 2] = 200.0
    logits[2, 1] = 10.0
    assert collapse_share(logits) == 0.5
    assert collapse_share(logits.double()) == 0.5
    logits[0, 0] = 30.0  # float32 loses exp(-30) beside one, float64 does not
    assert (collapse_share(logits), collapse_share(logits.double())) == (0.5, 0.25)


def test_the_cosine_of_a_step_with_the_weights():
    one, two = drawn(3, 4).requires_grad_(), drawn(5, seed=1).requires_grad_()
    one.grad, two.grad = -0.3 * one.detach(), -0.3 * two.detach()
    assert math.isclose(scaling_cosine([one, two]), 1.0)
    one.grad, two.grad = drawn(3, 4, seed=8), drawn(5, seed=9)
    w = torch.cat([one.detach().flatten(), two.detach()])
    g = torch.cat([one.grad.flatten(), two.grad])
    wanted = float(-(w @ g) / (w.norm() * g.norm()))
    assert math.isclose(scaling_cosine([one, two]), wanted, rel_tol=1e-12)
    make_perpendicular_([one, two])
    assert abs(scaling_cosine([one, two])) < 1e-12
    one.grad = None
    two.grad = torch.zeros(5, dtype=torch.float64)
    assert scaling_cosine([one, two]) == 0.0
