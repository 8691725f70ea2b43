"""Local and global retention are one forgetting gate and one step."""

import pytest
import torch

from atlas.memory.kernels.chunked import run_chunked
from atlas.memory.rules.naive import run_naive
from atlas.memory.rules.rule import Rule, Tokens, join_retentions
from atlas.memory.rules.state import initial_state
from tests.memory.rules.helpers import assert_equal_runs, draw, off


def minimise(memory, gradient, local, everywhere):
    """The trade-off itself, by plain gradient descent."""
    w = memory.clone()
    rate = 0.9 / (1 / local + 1 / everywhere)
    for _ in range(60):
        w = w - rate * (gradient + (w - memory) / local + w / everywhere)
    return w


def one_gate(local, everywhere):
    """(alpha, theta) of the joint gate, from both retentions rather than from gates."""
    return join_retentions(1 / (1 + everywhere), local)


def test_the_best_trade_off_is_one_gated_step():
    draw = torch.Generator().manual_seed(0)
    memory, gradient = torch.randn(2, 5, 4, generator=draw, dtype=torch.float64)
    for local, everywhere in ((0.5, 3.0), (2.0, 0.7), (0.01, 100.0)):
        alpha, theta = one_gate(
            *(torch.tensor(x, dtype=torch.float64) for x in (local, everywhere))
        )
        found = (1 - alpha) * memory - theta * gradient
        assert off(found, minimise(memory, gradient, local, everywhere)) < 1e-12


def test_distributions_have_the_same_gate_by_their_logs():
    """KL to the weights before over l, and the negative entropy over g: a step of the logs."""
    draw = torch.Generator().manual_seed(1)
    logs, gradient = torch.randn(2, 6, 3, generator=draw, dtype=torch.float64)
    before, local, everywhere = logs.log_softmax(0), 0.5, 3.0
    free = before.clone().requires_grad_()
    for _ in range(300):
        w = free.softmax(0)
        change = (w * (w.log() - before)).sum() / local
        cost = (w * gradient).sum() + change + (w * w.log()).sum() / everywhere
        free = (free - 0.4 * torch.autograd.grad(cost, free)[0] / w.detach()).detach()
        free.requires_grad_()
    alpha, theta = one_gate(torch.tensor(local).double(), torch.tensor(everywhere).double())
    found = ((1 - alpha) * before - theta * gradient).softmax(0)
    assert off(found, free.softmax(0)) < 1e-10


@pytest.mark.parametrize("run", [run_naive, run_chunked])
def test_a_rule_with_that_gate_follows_the_trade_off(run):
    leaves = [leaf.detach() for leaf in draw(13)]
    local, everywhere = leaves[5], 5 * leaves[4] + 1
    zero = torch.zeros_like(local)
    tokens = Tokens(*leaves[:3], 1 / (1 + everywhere), zero, local)
    rule = Rule(chunk=5, forgetting="local-global")
    outputs, state = run(tokens, initial_state(leaves[7], rule), rule)
    memory = leaves[7]
    for t in range(13):
        key, value = leaves[1][:, :, t, None], leaves[2][:, :, t, None]
        gradient = key.mT @ (key @ memory - value)
        factors = (part[:, :, t, None, None] for part in (local, everywhere))
        memory = minimise(memory, gradient, *factors)
    assert off(state.memory, memory) < 1e-11
    assert off(outputs[:, :, -1:], leaves[0][:, :, -1:] @ memory) < 1e-11


@pytest.mark.parametrize("window", [1, 4])
def test_its_chunks_are_its_loop(window):
    rule = Rule(chunk=16, window=window, forgetting="local-global")
    assert_equal_runs(run_chunked, run_naive, rule, draw(37, window))


def test_limits():
    one, zero = torch.ones(()), torch.zeros(())
    alpha, theta = join_retentions(zero, one)
    assert (float(alpha), float(theta)) == (0, 1), "nothing is too large: nothing is forgotten"
    alpha, theta = join_retentions(one, one)
    assert (float(alpha), float(theta)) == (1, 0), "anything is too large"
    for shut in (zero, one):  # no step, as at padding: nothing changes
        assert [float(gate) for gate in join_retentions(shut, zero)] == [0, 0]
    alpha, theta = one_gate(1e12 * one.double(), one.double())
    assert float(alpha) > 1 - 1e-11
    assert abs(float(theta) - 1) < 1e-11
