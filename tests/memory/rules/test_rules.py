"""The chunked form is the token loop: outputs, final state, and the gradient of every input."""

from dataclasses import replace

import pytest
import torch

from atlas.errors import InputError
from atlas.memory.kernels.chunked import run_chunked
from atlas.memory.rules.naive import run_naive
from atlas.memory.rules.rule import Rule, Tokens
from atlas.memory.rules.state import initial_state
from atlas.ops.newton_schulz import newton_schulz
from tests.memory.rules.helpers import assert_equal_runs, draw, gradients, off, run_in_pieces

EXACT = [(1, 64), (63, 16), (64, 64), (77, 64), (77, 16), (63, 1), (1000, 64)]
START = [(1, 16), (63, 16), (64, 64), (77, 64), (77, 16), (63, 1), (300, 128), (250, 100)]


def descend(leaves, window, damp_step, damp_added, parts=None):
    """The rule from its loss alone: 1/2 the mean over the window of gamma |k M - v|^2.

    The mean is the sum over so many parts; None: as many as the window has tokens.
    """
    _, keys, values, alpha, eta, theta, gamma, memory, momentum = (x.detach() for x in leaves)
    for t in range(keys.shape[2]):
        weights = memory.clone().requires_grad_()
        loss = torch.zeros((), dtype=torch.float64)
        for i in range(max(0, t - window + 1), t + 1):
            missed = (keys[:, :, i, None] @ weights)[:, :, 0] - values[:, :, i]
            share = gamma[:, :, t, i - t + window - 1] / (parts or window)
            loss = loss + (share * missed.square().sum(-1)).sum() / 2
        (gradient,) = torch.autograd.grad(loss, weights)
        keep, carry, step = (x[:, :, t, None, None] for x in (1 - alpha, eta, theta))
        momentum = carry * momentum - step * (1 - carry) ** damp_step * gradient
        memory = keep * memory + (1 - carry) ** damp_added * momentum
    return memory, momentum


@pytest.mark.parametrize("window", [1, 4])
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


@pytest.mark.parametrize("window", [1, 4, 8])
def test_the_omega_sum_is_the_mean_times_the_window(window):
    """As ATLAS prints it: nothing is divided by c."""
    leaves = draw(13, window)
    rule = Rule(window=window, window_errors="sum", chunk=5)
    for run in (run_naive, run_chunked):
        _, state = run_in_pieces(run, rule, leaves)
        memory, momentum = descend(leaves, window, 0, 1, parts=1)
        assert off(state.memory, memory) < 1e-11
        assert off(state.momentum, momentum) < 1e-11
    mean = run_in_pieces(run_naive, Rule(window=window), leaves)[1].memory
    assert (off(state.memory, mean) > 1e-2) == (window > 1)


@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("gradient", ["exact", "chunk-start"])
def test_a_constant_momentum_takes_the_place_of_the_gate(window, gradient):
    leaves = draw(21, window)
    same = [leaf.detach() for leaf in leaves]
    same[4] = torch.full_like(same[4], 0.9)
    options = {"gradient": gradient, "chunk": 8, "window": window}
    wanted, _ = run_in_pieces(run_naive, Rule(**options), same)
    for run in (run_naive, run_chunked):
        found, _ = run_in_pieces(run, Rule(**options, momentum=0.9), leaves)
        assert off(found, wanted) < 1e-11
    assert off(run_in_pieces(run_naive, Rule(**options), leaves)[0], wanted) > 1e-2


def orthogonalised(leaves, rule):
    """M after T tokens of the Newton-Schulz rule, from its formulas: steps of size theta."""
    _, keys, values, alpha, eta, theta, gamma, memory, momentum = (x.detach() for x in leaves)
    measured = memory
    for t in range(keys.shape[2]):
        if t % rule.chunk == 0:
            measured = memory
        gradient = torch.zeros_like(memory)
        for i in range(max(0, t - rule.window + 1), t + 1):
            k, v = keys[:, :, i, None], values[:, :, i, None]
            weight = gamma[:, :, t, i - t + rule.window - 1, None, None]
            gradient = gradient + weight * k.mT @ (k @ measured - v)
        keep, carry, step = (x[:, :, t, None, None] for x in (1 - alpha, eta, theta))
        # The division by c is of no account: what is added has lost its size.
        momentum = carry * momentum - gradient / rule.window
        memory = keep * memory + step * newton_schulz(momentum)
    return memory


@pytest.mark.parametrize("window", [1, 4, 8])
@pytest.mark.parametrize("run", [run_naive, run_chunked])
def test_newton_schulz_takes_steps_of_size_theta_whatever_the_window(run, window):
    leaves = [leaf.detach() for leaf in draw(11, window)]
    rule = Rule("chunk-start", 4, window, learner="newton-schulz", weighting="none")
    _, state = run_in_pieces(run, rule, leaves)
    assert off(state.memory, orthogonalised(leaves, rule)) < 1e-11
    # One token from nothing: what is added has the direction of the gradient and the size theta.
    one = [leaf[:, :, 10:] if i < 7 else 0 * leaf for i, leaf in enumerate(leaves)]
    _, first = run_in_pieces(run, rule, one)
    sizes = first.memory.norm(dim=(-2, -1)) / one[5][..., 0]
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


@pytest.mark.parametrize(("window", "errors"), [(1, "mean"), (4, "mean"), (4, "sum"), (8, "mean")])
@pytest.mark.parametrize(("length", "chunk"), [(1, 16), (33, 16), (50, 20), (10, 1)])
def test_newton_schulz_rule(length, chunk, window, errors):
    rule = Rule("chunk-start", chunk, window, learner="newton-schulz", window_errors=errors)
    assert_equal_runs(run_chunked, run_naive, rule, draw(length, window))


@pytest.mark.parametrize("gradient", ["exact", "chunk-start"])
@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize(
    "options",
    [
        {"read": "before"},
        {"weighting": "step"},
        {"weighting": "none"},
        {"weighting": "both"},
        {"queries": "projected"},
        {"window_errors": "sum"},
    ],
    ids=str,
)
def test_options_of_a_rule(gradient, window, options):
    rule = Rule(gradient, chunk=16, window=window, **options)
    assert_equal_runs(run_chunked, run_naive, rule, draw(37, window))


def test_newton_schulz_rule_that_reads_before_it_writes():
    options = {"learner": "newton-schulz", "read": "before", "weighting": "none"}
    assert_equal_runs(run_chunked, run_naive, Rule("chunk-start", 16, 4, **options), draw(21, 4))


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


@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("run", [run_naive, run_chunked])
def test_half_precision_is_computed_in_single(run, window):
    rule, leaves = Rule(chunk=16, window=window), draw(40, window)
    half = [leaf.detach().to(torch.bfloat16) for leaf in leaves]
    exact = [leaf.to(torch.float32) for leaf in half]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs, state = run_in_pieces(run, rule, half)
    wanted, wanted_state = run_in_pieces(run, rule, exact)
    assert outputs.dtype == torch.bfloat16
    assert state.memory.dtype == torch.float32
    assert off(state.memory, wanted_state.memory) < 1e-6
    assert off(outputs.float(), wanted) < 2**-8


@pytest.mark.parametrize("rule", [Rule(chunk=16), Rule("chunk-start", 16), Rule(window=4)], ids=str)
def test_gradients_within_autocast_are_not_rounded(rule):
    leaves = draw(40, rule.window, dtype=torch.float32)
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
        {"window": 1},
        {"weighting": "step"},
        {"weighting": "none"},
        {"weighting": "both"},
        {"read": "before"},
        {"learner": "newton-schulz"},
        {"queries": "projected"},
        {"window_errors": "sum"},
        {"momentum": 0.9},
    ],
    ids=str,
)
def test_every_option_changes_the_outcome(change):
    leaves = draw(40, 4)

    def outputs(rule):
        own = [*leaves[:6], leaves[6][..., : rule.window], *leaves[7:]]
        return run_in_pieces(run_chunked, rule, own)[0]

    base = Rule("chunk-start", 16, 4)
    assert off(outputs(replace(base, **change)), outputs(base)) > 1e-2


@pytest.mark.parametrize("window", [1, 4])
def test_exact_rule_does_not_depend_on_the_chunk_and_the_other_does(window):
    leaves = draw(77, window)

    def outputs(gradient, chunk):
        return run_in_pieces(run_chunked, Rule(gradient, chunk, window), leaves)[0]

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
        ({"momentum": 1.0}, "momentum: 1.0; allowed: a number >= 0 and < 1, or null"),
        ({"window_errors": "max"}, "window_errors.*allowed: mean, sum"),
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
