"""Continuum memory: levels that learn every C, C^2, ... tokens."""

import itertools

import pytest
import torch

from atlas.memory.layer.continuum import (
    Level,
    continuum,
    continuum_naive,
    fresh_state,
    new_level,
    periods_of,
)
from tests.memory.miras.helpers import off_by

WIDTH, HIDDEN, PERIODS = 4, 6, (3, 9)


def make(length, dtype=torch.float64, batch=2, seed=0):
    draw = torch.Generator().manual_seed(seed)
    levels = []
    for _ in PERIODS:
        level = new_level(WIDTH, HIDDEN, draw)
        gate = torch.randn(WIDTH, generator=draw)
        levels.append(Level(*(part.to(dtype) for part in level._replace(gate=gate))))
    x = torch.randn(batch, length, WIDTH, generator=draw, dtype=torch.float64).to(dtype)
    return levels, x


def run_with_gradients(run, levels, x):
    parts = [part.clone().requires_grad_() for level in levels for part in level]
    x = x.clone().requires_grad_()
    own = [Level(*parts[i : i + 5]) for i in range(0, len(parts), 5)]
    output, state = run(own, PERIODS, x, fresh_state(own, len(x)))
    results = [output, *(w for level in state for group in level[:2] for w in group)]
    draw = torch.Generator().manual_seed(9)
    probes = (torch.randn(r.shape, generator=draw, dtype=torch.float64) for r in results)
    value = sum((r * p.to(r.dtype)).sum() for r, p in zip(results, probes, strict=True))
    return [r.detach() for r in results], torch.autograd.grad(value, [*parts, x])


@pytest.mark.parametrize(
    ("dtype", "tolerance", "gradient_tolerance"),
    [(torch.float64, 1e-11, 1e-11), (torch.float32, 1e-5, 1e-4)],
)
@pytest.mark.parametrize("length", [1, 3, 26, 63])
def test_periods_at_once_equal_the_token_loop(length, dtype, tolerance, gradient_tolerance):
    levels, x = make(length, dtype)
    one, one_grads = run_with_gradients(continuum, levels, x)
    two, two_grads = run_with_gradients(continuum_naive, levels, x)
    for found, wanted in zip(one, two, strict=True):
        assert off_by(found, wanted) <= tolerance
    for found, wanted in zip(one_grads, two_grads, strict=True):
        assert off_by(found, wanted) <= gradient_tolerance


@pytest.mark.parametrize("cuts", [(1, 9, 10), (13,), tuple(range(1, 20))])
def test_a_sequence_may_be_cut_anywhere(cuts):
    levels, x = make(20)
    whole, end = continuum(levels, PERIODS, x, fresh_state(levels, 2))
    state, pieces = fresh_state(levels, 2), []
    for start, stop in itertools.pairwise((0, *cuts, 20)):
        piece, state = continuum(levels, PERIODS, x[:, start:stop], state)
        pieces.append(piece)
    assert off_by(torch.cat(pieces, 1), whole) <= 1e-11
    for own, wanted in zip(state, end, strict=True):
        assert own.offset == wanted.offset
        for a, b in zip(
            (*own.weights, *own.pending), (*wanted.weights, *wanted.pending), strict=True
        ):
            assert off_by(a, b) <= 1e-11


def test_each_level_waits_for_its_own_period():
    levels, x = make(9)
    starts = fresh_state(levels, 2)
    moved = []
    for length in (2, 3, 8, 9):
        _, state = continuum(levels, PERIODS, x[:, :length], starts)
        moved.append(
            [
                not torch.equal(a.weights[0], b.weights[0])
                for a, b in zip(state, starts, strict=True)
            ]
        )
    assert moved == [[False, False], [True, False], [True, False], [True, True]]


def test_one_period_moves_by_the_sum_of_its_steps():
    levels, x = make(3)
    level, start = levels[0], fresh_state(levels[:1], 2)
    _, (state,) = continuum(levels[:1], PERIODS[:1], x, start)
    keys = torch.nn.functional.rms_norm(x, (WIDTH,))
    steps = torch.sigmoid(keys @ level.gate + level.bias) / (3 * WIDTH)
    up, down = level.up.clone().requires_grad_(), level.down.clone().requires_grad_()
    answers = torch.nn.functional.gelu(keys[0] @ up) @ down
    loss = (steps[0] * (answers - keys[0] @ level.value).square().sum(-1) / 2).sum()
    wanted = torch.autograd.grad(loss, (up, down))
    for found, start_weights, step in zip(
        state.weights, (level.up, level.down), wanted, strict=True
    ):
        assert off_by(found[0], start_weights - step) <= 1e-12


def test_shut_gates_make_a_plain_chain_of_perceptrons():
    levels, x = make(20)
    open_output, _ = continuum(levels, PERIODS, x, fresh_state(levels, 2))
    shut = [
        level._replace(gate=torch.zeros_like(level.gate), bias=torch.tensor(-1e4).double())
        for level in levels
    ]
    output, _ = continuum(shut, PERIODS, x, fresh_state(shut, 2))
    plain = x
    for level in levels:
        rows = torch.nn.functional.rms_norm(plain, (WIDTH,))
        plain = plain + torch.nn.functional.gelu(rows @ level.up) @ level.down
    assert off_by(output, plain - x) <= 1e-12
    assert off_by(open_output, output) > 1e-3


def test_what_a_sequence_repeats_is_learned():
    levels, x = make(9)
    again = x.repeat(1, 40, 1)
    state = fresh_state(levels[:1], 2)
    keys = torch.nn.functional.rms_norm(x, (WIDTH,))
    first, _ = continuum(levels[:1], PERIODS[:1], x, state)
    _, state = continuum(levels[:1], PERIODS[:1], again, state)
    later, _ = continuum(levels[:1], PERIODS[:1], x, state)
    wanted = keys @ levels[0].value
    assert (later - wanted).square().mean() < 0.5 * (first - wanted).square().mean()


def test_weights_stay_bounded_with_gates_wide_open():
    levels, x = make(2048, torch.float32, batch=1)
    wide = [level._replace(bias=torch.tensor(20.0)) for level in levels]
    with torch.no_grad():
        _, state = continuum(wide, PERIODS, 10 * x, fresh_state(wide, 1))
    for level, own in zip(levels, state, strict=True):
        for start, now in zip((level.up, level.down), own.weights, strict=True):
            assert float(now.norm()) < 10 * float(start.norm())


def test_gradients_reach_everything_that_is_learned():
    levels, x = make(20)
    _, gradients = run_with_gradients(continuum, levels, x)
    assert all(g.any() for g in gradients)


def test_a_bfloat16_sequence_keeps_a_float32_state():
    levels, x = make(20, torch.bfloat16)
    output, state = continuum(levels, PERIODS, x, fresh_state(levels, 2))
    assert output.dtype == torch.bfloat16
    assert state[0].weights[0].dtype == torch.float32
    assert not state[0].detached().weights[0].requires_grad


def test_periods_are_powers_of_the_first():
    assert periods_of(8, 3) == (8, 64, 512)
    with pytest.raises(ValueError, match="at least 1"):
        periods_of(0, 2)
