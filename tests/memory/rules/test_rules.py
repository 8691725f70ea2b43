"""The chunked form is the token loop: outputs, final state, and the gradient of every input."""

from dataclasses import replace

import pytest
import torch

from atlas.errors import InputError
from atlas.memory.kernels.chunked import run_chunked
from atlas.memory.rules.naive import run_naive
from atlas.memory.rules.rule import Rule, Tokens
from atlas.memory.rules.state import initial_state
from tests.memory.rules.helpers import assert_equal_runs, draw, gradients, off, run_in_pieces

EXACT = [(1, 64), (63, 16), (64, 64), (77, 64), (77, 16), (63, 1), (1000, 64)]
START = [(1, 16), (63, 16), (64, 64), (77, 64), (77, 16), (63, 1), (300, 128), (250, 100)]


def descend(leaves, window, damp_step, damp_added):
    """The rule from its loss alone: 1/2 the mean over the window of gamma |k M - v|^2."""
    _, keys, values, alpha, eta, theta, gamma, memory, momentum = (x.detach() for x in leaves)
    for t in range(keys.shape[2]):
        weights = memory.clone().requires_grad_()
        loss = torch.zeros((), dtype=torch.float64)
        for i in range(max(0, t - window + 1), t + 1):
            missed = (keys[:, :, i, None] @ weights)[:, :, 0] - values[:, :, i]
            share = gamma[:, :, t, i - t + window - 1] / window
            loss = loss + (share * missed.square().sum(-1)).sum() / 2
        (gradient,) = torch.autograd.grad(loss, weights)
        keep, carry, step = (x[:, :, t, None, None] for x in (1 - alpha, eta, theta))
        momentum = carry * momentum - step * (1 - carry) ** damp_step * gradient
        memory = keep * memory + (1 - carry) ** damp_added * momentum
    return memory, momentum


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize(
    ("weighting", "damp_step", "damp_added"),
    [("added", 0, 1), ("step", 1, 0), ("both", 1, 1), ("none", 0, 0)],
)
def test_the_loop_descends_the_loss(window, weighting, damp_step, damp_added):
    leaves = draw(9, window)
    _, state = run_in_pieces(run_naive, Rule(window=window, weighting=weighting), leaves)
    memory, momentum = descend(leaves, window, damp_step, damp_added)
    assert off(state.memory, memory) < 1e-12
    assert off(state.momentum, momentum) < 1e-12


def test_newton_schulz_takes_steps_of_size_theta():
    """One token, no momentum before it: what is added has the direction of the gradient alone."""
    leaves = [leaf.detach() for leaf in draw(1)]
    rule = Rule("chunk-start", learner="newton-schulz", weighting="none")
    tokens, zero = Tokens(*leaves[:7]), torch.zeros_like(leaves[3])
    state = initial_state(leaves[7], rule)
    _, one = run_naive(tokens._replace(alpha=zero), state, rule)
    _, two = run_naive(tokens._replace(alpha=zero, theta=2 * leaves[5]), state, rule)
    assert off(two.memory - leaves[7], 2 * (one.memory - leaves[7])) < 1e-12
    sizes = (one.memory - leaves[7]).norm(dim=(-2, -1)) / leaves[5][..., 0]
    assert bool(((sizes > 0.6) & (sizes < 1.2)).all())


@pytest.mark.parametrize(("length", "chunk"), EXACT)
def test_exact_rule(length, chunk):
    assert_equal_runs(run_chunked, run_naive, Rule(chunk=chunk), draw(length))


@pytest.mark.parametrize(("length", "chunk"), [*START, (1000, 16)])
def test_chunk_start_rule(length, chunk):
    assert_equal_runs(run_chunked, run_naive, Rule("chunk-start", chunk), draw(length))


@pytest.mark.parametrize("window", [2, 5])
@pytest.mark.parametrize(("length", "chunk"), [(1, 16), (3, 16), (63, 16), (77, 64), (64, 1)])
def test_exact_omega_rule(length, chunk, window):
    rule = Rule(chunk=chunk, window=window)
    assert_equal_runs(run_chunked, run_naive, rule, draw(length, window))


@pytest.mark.parametrize("window", [2, 5])
@pytest.mark.parametrize(("length", "chunk"), [(1, 16), (3, 16), (77, 16), (63, 1), (250, 100)])
def test_chunk_start_omega_rule(length, chunk, window):
    rule = Rule("chunk-start", chunk, window)
    assert_equal_runs(run_chunked, run_naive, rule, draw(length, window))


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize(("length", "chunk"), [(1, 16), (33, 16), (50, 20), (10, 1)])
def test_newton_schulz_rule(length, chunk, window):
    rule = Rule("chunk-start", chunk, window, learner="newton-schulz")
    assert_equal_runs(run_chunked, run_naive, rule, draw(length, window))


@pytest.mark.parametrize("gradient", ["exact", "chunk-start"])
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"read": "before"},
        {"weighting": "step"},
        {"weighting": "none"},
        {"weighting": "both"},
        {"queries": "projected"},
    ],
    ids=str,
)
def test_options_of_a_rule(gradient, window, options):
    rule = Rule(gradient, chunk=16, window=window, **options)
    assert_equal_runs(run_chunked, run_naive, rule, draw(37, window))


def test_newton_schulz_rule_that_reads_before_it_writes():
    rule = Rule("chunk-start", 16, learner="newton-schulz", read="before", weighting="none")
    assert_equal_runs(run_chunked, run_naive, rule, draw(21))


@pytest.mark.parametrize("rule", [Rule(), Rule("chunk-start", 16), Rule(window=3)], ids=str)
def test_gates_of_exactly_zero_and_one(rule):
    leaves = draw(77, rule.window)
    coin = torch.Generator().manual_seed(3)
    for place in (3, 4, 5):
        sides = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
        chosen = torch.randint(0, 3, leaves[place].shape, generator=coin)
        leaves[place] = sides[chosen].requires_grad_()
    assert_equal_runs(run_chunked, run_naive, rule, leaves)


@pytest.mark.parametrize(
    ("rule", "length"),
    [
        (Rule(), 77),
        (Rule(), 1000),
        (Rule("chunk-start", 16), 77),
        (Rule(window=4), 63),
        (Rule("chunk-start", 64, 4), 77),
    ],
    ids=str,
)
def test_single_precision(rule, length):
    leaves = draw(length, rule.window, torch.float32)
    assert_equal_runs(run_chunked, run_naive, rule, leaves, tolerances=(1e-5, 1e-4))


@pytest.mark.parametrize("run", [run_naive, run_chunked])
def test_half_precision_is_computed_in_single(run):
    rule, leaves = Rule(chunk=16), draw(40)
    half = [leaf.detach().to(torch.bfloat16) for leaf in leaves]
    exact = [leaf.to(torch.float32) for leaf in half]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs, state = run_in_pieces(run, rule, half)
    wanted, wanted_state = run_in_pieces(run, rule, exact)
    assert outputs.dtype == torch.bfloat16
    assert state.memory.dtype == torch.float32
    assert off(state.memory, wanted_state.memory) < 1e-6
    assert off(outputs.float(), wanted) < 2**-8


@pytest.mark.parametrize("rule", [Rule(chunk=16), Rule("chunk-start", 16)], ids=str)
def test_gradients_within_autocast_are_not_rounded(rule):
    leaves = draw(40, dtype=torch.float32)
    wanted = gradients([run_in_pieces(run_chunked, rule, leaves)[0]], leaves)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = gradients([run_in_pieces(run_chunked, rule, leaves)[0]], leaves)
    for name, gradient in wanted.items():
        assert off(found[name], gradient) < 1e-6, name


def test_a_window_of_one_is_the_delta_rule():
    leaves = draw(40)
    leaves[6] = torch.ones_like(leaves[6])
    tokens, rule = Tokens(*leaves[:7]), Rule(chunk=16)
    state = initial_state(leaves[7], rule)
    omega, _ = run_chunked(tokens, state, rule)
    delta, _ = run_chunked(tokens._replace(gamma=None), state, rule)
    assert torch.equal(omega, delta)


def test_delta_rule_by_hand():
    """Without momentum and forgetting, a step of one writes the value at its unit key."""
    leaves = [leaf.detach() for leaf in draw(1)]
    ones, zeros = torch.ones_like(leaves[3]), torch.zeros_like(leaves[3])
    tokens = Tokens(leaves[1], leaves[1], leaves[2], zeros, zeros, ones)
    outputs, state = run_chunked(tokens, initial_state(leaves[7], Rule()), Rule())
    assert off(outputs, leaves[2]) < 1e-12
    other = leaves[7] - leaves[1].mT @ (leaves[1] @ leaves[7] - leaves[2])
    assert off(state.memory, other) < 1e-12


@pytest.mark.parametrize(
    "change",
    [
        {"gradient": "exact"},
        {"chunk": 8},
        {"window": 3},
        {"weighting": "step"},
        {"weighting": "none"},
        {"weighting": "both"},
        {"read": "before"},
        {"learner": "newton-schulz"},
        {"queries": "projected"},
    ],
    ids=str,
)
def test_every_option_changes_the_outcome(change):
    leaves = draw(40, 3)

    def outputs(rule):
        own = [*leaves[:6], leaves[6][..., : rule.window], *leaves[7:]]
        return run_in_pieces(run_chunked, rule, own)[0]

    base = Rule("chunk-start", 16)
    assert off(outputs(replace(base, **change)), outputs(base)) > 1e-2


def test_exact_rule_does_not_depend_on_the_chunk_and_the_other_does():
    leaves = draw(77)

    def outputs(gradient, chunk):
        return run_in_pieces(run_chunked, Rule(gradient, chunk), leaves)[0]

    assert off(outputs("exact", 7), outputs("exact", 64)) < 1e-12
    assert off(outputs("chunk-start", 7), outputs("chunk-start", 64)) > 1e-2
    assert off(outputs("chunk-start", 1), outputs("exact", 64)) < 1e-12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient": "late"}, "gradient.*allowed: exact, chunk-start"),
        ({"weighting": "twice"}, "weighting.*added"),
        ({"chunk": 0}, "chunk: 0"),
        ({"window": 0}, "window: 0"),
        ({"learner": "newton-schulz"}, "chunk-start only"),
    ],
)
def test_what_is_no_rule_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        Rule(**options)


def test_a_state_of_another_rule_is_refused():
    leaves = draw(5, 2)
    tokens = Tokens(*leaves[:7])
    for made_for, rule in [
        (Rule(), Rule(window=2)),
        (Rule(window=2), Rule("chunk-start", window=2)),
        (Rule(window=2), Rule(window=2, queries="projected")),
        (Rule(window=3), Rule(window=3)),
    ]:
        with pytest.raises(ValueError, match="state|window"):
            run_chunked(tokens, initial_state(leaves[7], made_for), rule)
    with pytest.raises(ValueError, match="at least one"):
        run_chunked(tokens.cut(0, 0), initial_state(leaves[7], Rule(window=2)), Rule(window=2))
