"""Local and global retention are one forgetting gate and one step."""

import torch

from atlas.memory.miras.retention import one_gate
from atlas.memory.rules.naive import run_naive
from atlas.memory.rules.rule import Rule, Tokens
from atlas.memory.rules.state import initial_state
from tests.memory.rules.helpers import draw, off


def minimise(memory, gradient, local, everywhere):
    """The trade-off itself, by plain gradient descent."""
    w = memory.clone()
    rate = 0.9 / (1 / local + 1 / everywhere)
    for _ in range(60):
        w = w - rate * (gradient + (w - memory) / local + w / everywhere)
    return w


def test_the_best_trade_off_is_one_gated_step():
    draw = torch.Generator().manual_seed(0)
    memory, gradient = torch.randn(2, 5, 4, generator=draw, dtype=torch.float64)
    for local, everywhere in ((0.5, 3.0), (2.0, 0.7), (0.01, 100.0)):
        gate = one_gate(*(torch.tensor(x, dtype=torch.float64) for x in (local, everywhere)))
        found = (1 - gate.alpha) * memory - gate.theta * gradient
        assert off(found, minimise(memory, gradient, local, everywhere)) < 1e-12


def test_a_rule_with_that_gate_follows_the_trade_off():
    leaves = [leaf.detach() for leaf in draw(12)]
    local, everywhere = leaves[5], 5 * leaves[4] + 1
    gate = one_gate(local, everywhere)
    tokens = Tokens(*leaves[:3], gate.alpha, torch.zeros_like(gate.alpha), gate.theta)
    outputs, state = run_naive(tokens, initial_state(leaves[7], Rule()), Rule())
    memory = leaves[7]
    for t in range(12):
        key, value = leaves[1][:, :, t, None], leaves[2][:, :, t, None]
        gradient = key.mT @ (key @ memory - value)
        factors = (part[:, :, t, None, None] for part in (local, everywhere))
        memory = minimise(memory, gradient, *factors)
    assert off(state.memory, memory) < 1e-11
    assert off(outputs[:, :, -1:], leaves[0][:, :, -1:] @ memory) < 1e-11


def test_limits():
    one = torch.ones(())
    assert float(one_gate(one, 1e12 * one).alpha) < 1e-11
    assert abs(float(one_gate(one, 1e12 * one).theta) - 1) < 1e-11
    assert float(one_gate(1e12 * one, one).alpha) > 1 - 1e-11
    assert abs(float(one_gate(1e12 * one, one).theta) - 1) < 1e-11
