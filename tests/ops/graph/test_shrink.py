"""Estimated steps against the closed form: quadratic clients over many rounds."""

import math
from dataclasses import replace

import pytest
import torch

from atlas.ops.graph.shrink import (
    Deviation,
    Neighbour,
    RoundNoise,
    compared,
    final_share,
    left_of_pulls,
    step_share,
    trained,
)

WIDTH = 4000


class World:
    """Clients that each aim at a place of their own, which their data tells up to noise."""

    def __init__(self, n, difference, noise, rho, seed=0, halves=True):
        draw = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(*shape, generator=draw, dtype=torch.float64) / WIDTH**0.5

        noises = torch.as_tensor(noise, dtype=torch.float64).expand(n)
        common = 3 * normal(WIDTH)
        self.truth = common + difference**0.5 * normal(n, WIDTH)
        parts = [(2 * noises[:, None]) ** 0.5 * normal(n, WIDTH) for _ in range(2)]
        self.aim = self.truth + (parts[0] + parts[1]) / 2
        quarter = (parts[0] - parts[1]).square().sum(1) / 4
        # What many small steps pull, some of it back: the way itself, for one step that covers it.
        pulls = -math.log1p(-min(rho, 0.95))
        self.noise = [RoundNoise(float(pulls**2 * q), 1.0) for q in quarter]
        self.rho, self.n = rho, n
        self.at = torch.zeros(n, WIDTH, dtype=torch.float64)

    def train(self):
        self.at = self.at + self.rho * (self.aim - self.at)

    def mix(self, shares):
        s = torch.tensor(shares, dtype=torch.float64)[:, None]
        self.at = s * self.at + (1 - s) * self.at.mean(0)

    def left(self):
        """What is left of each client's deviation from the mean, of the full one."""
        here, full = (v - v.mean(0) for v in (self.at, self.aim))
        return ((here * full).sum(1) / full.square().sum(1)).tolist()

    def error(self):
        return float((self.at - self.truth).square().sum(1).mean())


def run(world, rounds, fixed=None, estimator=None):
    """Train and mix; with what is estimated, or with fixed shares."""
    known = [Deviation() for _ in range(world.n)]
    for _ in range(rounds):
        world.train()
        if fixed is None:
            known = [trained(k, noise) for k, noise in zip(known, world.noise, strict=True)]
            known = [
                compared(known[k], world.noise[k], *near(world, known, k)) for k in range(world.n)
            ]
            shares = [(estimator or Deviation.share.fget)(one) for one in known]
            known = [replace(one, kept=s) for one, s in zip(known, shares, strict=True)]
        world.mix(shares if fixed is None else [fixed] * world.n)
    return known


def near(world, known, k):
    others = [j for j in range(world.n) if j != k]
    square = float((world.at[k] - world.at[others].mean(0)).square().sum())
    return [Neighbour(1 / len(others), known[j]) for j in others], square


@pytest.mark.parametrize("c", [0.05, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("rho", [0.1, 0.4, 1.0])
def test_the_step_of_each_round_leaves_the_share_that_is_wanted_in_the_end(c, rho):
    world = World(3, 1.0, 1.0, rho)
    run(world, 300, fixed=step_share(c, rho))
    assert world.left() == pytest.approx([c] * 3, abs=1e-9)
    assert final_share(step_share(c, rho), rho) == pytest.approx(c)


def test_the_share_taken_as_each_rounds_step_leaves_far_too_little():
    world = World(3, 1.0, 1.0, 0.1)
    run(world, 300, fixed=0.5)
    assert world.left() == pytest.approx([0.0909] * 3, abs=1e-3)


@pytest.mark.parametrize("n", [2, 3, 30])
@pytest.mark.parametrize("rho", [0.1, 0.5])
@pytest.mark.parametrize(("difference", "noise"), [(1.0, 1.0), (1.0, 4.0), (4.0, 1.0)])
def test_what_is_estimated_ends_at_the_closed_form(n, rho, difference, noise):
    world = World(n, difference, noise, rho)
    known = run(world, 150)
    wanted = difference / (difference + noise)
    assert sum(world.left()) / n == pytest.approx(wanted, abs=0.06)
    assert sum(one.rho for one in known) / n == pytest.approx(rho, abs=0.1 * rho + 0.01)
    assert sum(one.c for one in known) / n == pytest.approx(wanted, abs=0.06)


@pytest.mark.parametrize("n", [2, 3, 30])
def test_alike_clients_meet(n):
    world = World(n, 0.0, 1.0, 0.2)
    run(world, 60)
    assert max(abs(left) for left in world.left()) < 0.12


@pytest.mark.parametrize("n", [2, 3, 30])
def test_clients_without_noise_keep_what_is_theirs(n):
    world = World(n, 1.0, 1e-6, 0.2)
    run(world, 60)
    assert min(world.left()) > 0.98


@pytest.mark.parametrize("n", [3, 31])
def test_a_client_in_the_middle_of_two_that_differ_keeps_nothing(n):
    world = World(n, 0.0, 0.3, 0.2)
    side = torch.linspace(-1, 1, n, dtype=torch.float64)[:, None]
    apart = 3 * side * torch.ones(WIDTH, dtype=torch.float64) / WIDTH**0.5
    world.truth, world.aim = world.truth + apart, world.aim + apart
    known = run(world, 60)
    assert known[n // 2].c < 0.15
    assert min(known[0].c, known[-1].c) > 0.8


def test_a_client_of_more_noise_keeps_less():
    world = World(30, 1.0, [0.2, 1.0, 5.0] * 10, 0.3)
    left = run(world, 150) and torch.tensor(world.left()).reshape(10, 3).mean(0)
    assert left[0] > left[1] + 0.15
    assert left[1] > left[2] + 0.15


@pytest.mark.parametrize(("difference", "noise"), [(1.0, 1.0), (0.3, 1.0), (0.0, 1.0), (3.0, 1.0)])
def test_estimated_steps_end_nearer_the_truth_than_a_mean_and_than_nothing(difference, noise):
    errors = {}
    for name, fixed in {"even": 0.0, "local": 1.0, "shrink": None, "naive": None}.items():
        world = World(6, difference, noise, 0.1)
        naive = Deviation.c.fget if name == "naive" else None
        run(world, 200, fixed=fixed, estimator=naive)
        errors[name] = world.error()
    best = min(errors["even"], errors["local"])
    assert errors["shrink"] < best * 1.02
    if difference > 0:
        assert errors["shrink"] < best - 0.03
        assert errors["shrink"] < errors["naive"]


def test_in_several_passes_halves_share_examples_and_a_part_of_one_is_drawn_again():
    whole = trained(Deviation(), RoundNoise(1.0, 1.0))
    twice = trained(Deviation(), RoundNoise(0.5, 2.0))
    part = trained(Deviation(), RoundNoise(4.0, 0.25))
    assert (whole.data, whole.fresh) == pytest.approx((1.0, 0.0))
    assert (twice.data, twice.fresh) == pytest.approx((1.0, 0.0))
    assert (part.data, part.pulls) == pytest.approx((1.0, 4.0))


@pytest.mark.parametrize("rho", [0.1, 0.5, 0.9])
def test_what_is_left_of_pulls_is_that_of_many_small_steps(rho):
    """The noise of a path's end against that of its pulls, for two paths of other data."""
    steps, at, pulled = 20000, 0.0, 0.0
    each = 1 - (1 - rho) ** (1 / steps)
    for _ in range(steps):
        # The difference of two clients whose aims are 1 apart; pulls are told as if from the start.
        pulled += each
        at += each * (1.0 - at)
    assert at / pulled == pytest.approx(left_of_pulls(rho), rel=1e-3)


def test_equal_clients_have_nothing_to_keep_and_nothing_known_is_nothing_kept():
    one, noise = Neighbour(1.0, Deviation()), RoundNoise(1.0, 1.0)
    same = compared(trained(Deviation(), noise), noise, [one], 0.0)
    assert same.share == Deviation().share == 0.0
    assert step_share(0.0, 0.0) == 0.0
