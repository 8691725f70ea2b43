"""Random tokens, and a rule's outputs, states and gradients for comparison."""

import torch
from torch.nn.functional import normalize

from atlas.memory.rules.rule import Tokens
from atlas.memory.rules.state import initial_state

BATCH, HEADS, D_K, D_V = 2, 2, 8, 6
NAMES = ("queries", "keys", "values", "alpha", "eta", "theta", "gamma", "memory", "momentum")


def draw(length, window=1, dtype=torch.float64, seed=0):
    """Leaves for one run, in the order of NAMES; gates cover most of (0, 1)."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(BATCH, HEADS, *shape, generator=generator, dtype=torch.float64)

    leaves = (
        normalize(normal(length, D_K), dim=-1),
        normalize(normal(length, D_K), dim=-1),
        normal(length, D_V),
        (normal(length) - 2).sigmoid(),
        (2 * normal(length)).sigmoid(),
        (normal(length) + 1).sigmoid(),
        normal(length, window).sigmoid(),
        0.3 * normal(D_K, D_V),
        0.3 * normal(D_K, D_V),
    )
    return [leaf.to(dtype).requires_grad_() for leaf in leaves]


def run_in_pieces(run, rule, leaves, cuts=()):
    """Outputs and final state of a sequence that is cut after the tokens named."""
    tokens = Tokens(*leaves[:7])
    state = initial_state(leaves[7], rule)._replace(momentum=leaves[8])
    outputs, begin = [], 0
    for end in (*cuts, tokens.length):
        output, state = run(tokens.cut(begin, end), state, rule)
        outputs.append(output)
        begin = end
    return torch.cat(outputs, 2), state


def parts_of(state):
    return {
        name: part
        for name, part in state._asdict().items()
        if torch.is_tensor(part) and part.numel()
    }


def gradients(values, leaves):
    """Gradients of a random sum of all values: everything counts, nothing cancels."""
    generator = torch.Generator().manual_seed(7)
    total = sum(
        (value * torch.randn(value.shape, generator=generator).to(value)).sum() for value in values
    )
    return dict(zip(NAMES, torch.autograd.grad(total, leaves), strict=True))


def off(found, wanted):
    """Largest difference, relative to the largest entry wanted."""
    found, wanted = found.detach(), wanted.detach()
    return float((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30))


def assert_equal_runs(fast, slow, rule, leaves, cuts=(), tolerances=(1e-11, 1e-11)):
    """Outputs, final states and the gradients of every leaf agree."""
    found, found_state = run_in_pieces(fast, rule, leaves, cuts)
    wanted, wanted_state = run_in_pieces(slow, rule, leaves)
    assert found_state[-2:] == wanted_state[-2:]
    found_parts = {"outputs": found, **parts_of(found_state)}
    wanted_parts = {"outputs": wanted, **parts_of(wanted_state)}
    assert found_parts.keys() == wanted_parts.keys()
    for name, part in wanted_parts.items():
        assert off(found_parts[name], part) < tolerances[0], name
    found_gradients = gradients(found_parts.values(), leaves)
    for name, wanted_gradient in gradients(wanted_parts.values(), leaves).items():
        assert off(found_gradients[name], wanted_gradient) < tolerances[1], name
        assert float(wanted_gradient.abs().max()) > 1e-4, f"nothing reaches {name}"
