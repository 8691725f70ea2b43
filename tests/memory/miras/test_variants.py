"""Miras variants: the closed form against a token loop with autograd gradients."""

import itertools
from dataclasses import replace

import pytest
import torch

from atlas.memory.miras.chunked import (
    follow_duals,
    follow_factors,
    follow_matrices,
    run_segment,
    variant_chunked,
)
from atlas.memory.miras.learner import momentum, newton_schulz
from atlas.memory.miras.naive import variant_naive
from atlas.memory.miras.variant import LINEAR, PRESETS, fresh_state, read
from tests.memory.miras.helpers import (
    GATES,
    REGISTRIES,
    assert_twins,
    build,
    make,
    off_by,
    run_with_gradients,
)

TWINS = (variant_chunked, variant_naive)
COMBINATIONS = list(itertools.product(*REGISTRIES))
MOMENTUM = replace(LINEAR, learner=momentum())
CUT = [
    ("l2", "l2", "momentum", "matrix"),
    ("lp", "lq", "descent", "mlp"),
    ("huber", "kl", "momentum", "mlp"),
    ("l2", "elastic_net", "newton_schulz", "matrix"),
]
CHECKED = {**PRESETS, "momentum": MOMENTUM}


@pytest.mark.parametrize("names", COMBINATIONS, ids="-".join)
def test_every_combination_equals_its_token_loop(names):
    variant = build(names, chunk=3)
    tokens, weights = make(variant, 7, step=0.05, batch=1)
    assert_twins(TWINS, variant, tokens, weights, 1e-11, 1e-11)


@pytest.mark.parametrize("length", [1, 63, 64, 77])
@pytest.mark.parametrize("name", sorted(CHECKED))
def test_presets_equal_their_token_loop_in_float64(name, length):
    variant = CHECKED[name]
    tokens, weights = make(variant, length, step=0.1, batch=1)
    assert_twins(TWINS, variant, tokens, weights, 1e-11, 1e-11)


@pytest.mark.parametrize("chunk", [1, 16, 64])
def test_chunk_sizes_of_the_linear_rule(chunk):
    variant = replace(MOMENTUM, chunk=chunk)
    tokens, weights = make(variant, 77)
    assert_twins(TWINS, variant, tokens, weights, 1e-11, 1e-11)


def test_a_long_sequence():
    tokens, weights = make(MOMENTUM, 1000, batch=1)
    assert_twins(TWINS, MOMENTUM, tokens, weights, 1e-11, 1e-11)


@pytest.mark.parametrize("name", sorted(CHECKED))
def test_presets_equal_their_token_loop_in_float32(name):
    variant = CHECKED[name]
    tokens, weights = make(variant, 37, torch.float32, step=0.1, batch=1)
    assert_twins(TWINS, variant, tokens, weights, 1e-5, 1e-4)


def test_newton_schulz_in_float32_is_as_exact_as_its_gain_allows():
    """Five steps multiply a vanishing singular value by 3.4445^5 = 485, rounding included."""
    variant = replace(LINEAR, learner=newton_schulz(), chunk=8)
    tokens, weights = make(variant, 37, torch.float32, batch=1)
    assert_twins(TWINS, variant, tokens, weights, 1e-4, 1e-3)


@pytest.mark.parametrize("names", CUT, ids="-".join)
@pytest.mark.parametrize("cuts", [(1, 4, 8), (5,), tuple(range(1, 11))])
def test_a_sequence_may_be_cut_anywhere(names, cuts):
    variant = build(names, chunk=4)
    tokens, weights = make(variant, 11, step=0.05)
    whole, end = variant_chunked(variant, tokens, fresh_state(weights))
    state, pieces = fresh_state(weights), []
    for start, stop in itertools.pairwise((0, *cuts, 11)):
        piece, state = variant_chunked(variant, tokens.cut(start, stop), state)
        pieces.append(piece)
    assert off_by(torch.cat(pieces, 2), whole) <= 1e-11
    assert state.offset == end.offset == 3
    for group, wanted in zip(state[:4], end[:4], strict=True):
        assert all(off_by(a, b) <= 1e-11 for a, b in zip(group, wanted, strict=True))


@pytest.mark.parametrize("cheaper", [follow_factors, follow_duals])
def test_cheaper_paths_equal_forming_every_matrix(cheaper):
    variant = replace(PRESETS["yaad"], learner=momentum(), chunk=20)
    tokens, weights = make(variant, 9)
    runs = [
        lambda v, t, s, follow=follow: run_segment(v, t, s, follow)
        for follow in (cheaper, follow_matrices)
    ]
    assert_twins(runs, variant, tokens, weights, 1e-12, 1e-11)


@pytest.mark.parametrize("learner", ["descent", "momentum", "newton_schulz"])
def test_gradients_reach_every_gate_that_the_rule_uses(learner):
    variant = build(("huber", "lq", learner, "mlp"), chunk=4)
    tokens, weights = make(variant, 12)
    _, gradients = run_with_gradients(variant_chunked, variant, tokens, weights)
    silent = {name for name, g in gradients.items() if not g.any()}
    assert silent == ({"eta"} if learner == "descent" else set())
    used = set(GATES) - silent
    for gate in used:
        assert (gradients[gate].abs().sum((0, 1)) > 0).sum() >= 6, gate


def test_gates_at_their_ends_stay_finite_and_equal_the_loop():
    tokens, weights = make(MOMENTUM, 12)
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    pattern = ends.repeat(6).expand(2, 2, 12)
    extreme = tokens._replace(alpha=pattern, eta=pattern.flip(-1), theta=tokens.theta * pattern)
    assert_twins(TWINS, MOMENTUM, extreme, weights, 1e-11, 1e-11)


def test_no_step_and_no_forgetting_leave_the_memory_as_it_is():
    zero = torch.zeros(2, 2, 12, dtype=torch.float64)
    for variant in CHECKED.values():
        tokens, weights = make(variant, 12)
        still = tokens._replace(alpha=zero, theta=zero)
        output, state = variant_chunked(variant, still, fresh_state(weights))
        assert all(torch.equal(a, b) for a, b in zip(state.dual, weights, strict=True))
        assert off_by(output, read(variant, fresh_state(weights), tokens.queries)) <= 1e-12


@pytest.mark.parametrize("name", ["moneta", "momentum"])
def test_a_memory_that_starts_at_zero_has_finite_gradients(name):
    variant = replace(CHECKED[name], architecture=LINEAR.architecture)
    tokens, weights = make(variant, 20)
    zero = tuple(torch.zeros_like(w) for w in weights)
    _, gradients = run_with_gradients(variant_chunked, variant, tokens, zero)
    assert all(torch.isfinite(g).all() for g in gradients.values())
    assert gradients["start0"].any()


def test_a_bfloat16_sequence_keeps_a_float32_state():
    tokens, weights = make(MOMENTUM, 20)
    rough = tokens.each(lambda part: part.to(torch.bfloat16))
    start = fresh_state(tuple(w.to(torch.bfloat16) for w in weights))
    output, state = variant_chunked(MOMENTUM, rough, start)
    assert output.dtype == torch.bfloat16
    assert state.dual[0].dtype == state.momentum[0].dtype == torch.float32
    exact, _ = variant_chunked(MOMENTUM, tokens, fresh_state(weights))
    assert off_by(output.double(), exact) < 0.05


def test_an_empty_sequence_changes_nothing():
    tokens, weights = make(MOMENTUM, 5)
    before = variant_chunked(MOMENTUM, tokens, fresh_state(weights))[1]
    for run in TWINS:
        output, state = run(MOMENTUM, tokens.cut(0, 0), before)
        assert output.shape == (2, 2, 0, 3)
        assert state == before


def test_a_detached_state_carries_values_but_no_graph():
    tokens, weights = make(MOMENTUM, 5)
    start = fresh_state(tuple(w.requires_grad_() for w in weights))
    _, state = variant_chunked(MOMENTUM, tokens, start)
    cut = state.detached()
    assert state.dual[0].requires_grad
    assert not any(w.requires_grad for group in cut[:4] for w in group)
    assert torch.equal(cut.dual[0], state.dual[0])
    assert cut.offset == state.offset
