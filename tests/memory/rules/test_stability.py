"""The state stays bounded over 8,192 tokens under any of these gates; two controls diverge.

The bound, set beforehand: a memory that answers d_k orthonormal keys with values of length |v| has
Frobenius norm sqrt(d_k) |v|, and no memory that has learned its keys needs more. Errors that are
measured late (momentum, chunk starts) overshoot; a correction that is off by its own size at each
of two levels makes at most four times that. So: 4 sqrt(d_k) |v|, here 4 * 4 * 4 = 64.
"""

import pytest
import torch
from torch.nn.functional import normalize

from atlas.memory.kernels.chunked import run_chunked
from atlas.memory.rules.rule import Rule, Tokens
from atlas.memory.rules.state import initial_state

LENGTH, HEADS, D = 8192, 2, 16
BOUND = 4 * D**0.5 * D**0.5
DIVERGED = 1e6


def gates(kind):
    """(alpha, eta, theta) [1, H, T]; the hardest step, one, where the kind leaves it open."""
    draw = torch.Generator().manual_seed(1)
    uniform = torch.rand(3, HEADS, LENGTH, generator=draw)
    at = torch.arange(LENGTH).expand(HEADS, LENGTH)
    little, one = torch.full((HEADS, LENGTH), 0.0025), torch.ones(HEADS, LENGTH)
    quiet = at // 64 % 2 == 0
    made = {
        "random": (0.01 * uniform[0], uniform[1], uniform[2]),
        "alternating": (little, torch.where(at // 3 % 2 == 0, 0.1, 0.95), one),
        "bursty": (little, torch.where(quiet, 0.99, 0.05), torch.where(quiet, 0.05, 1.0)),
        "extreme": (torch.where(uniform[0] < 0.999, 0.0, 1.0), (uniform[1] < 0.5).float(), one),
        "two-valued": (little, torch.where(uniform[1] < 0.5, 0.02, 0.98), one),
        "resonant": (little, torch.where(at % 101 < 100, 0.999, 0.5), one),
    }
    return [part[None] for part in made[kind]]


def largest_norm(rule, kind, distinct_keys=LENGTH):
    """Largest norm of M and S met, looking every 256 tokens; stops once it has diverged."""
    draw = torch.Generator().manual_seed(0)
    keys = normalize(torch.randn(1, HEADS, distinct_keys, D, generator=draw), dim=-1)
    order = torch.randint(0, distinct_keys, (LENGTH,), generator=draw)
    keys = keys[:, :, order]
    values = normalize(torch.randn(1, HEADS, LENGTH, D, generator=draw), dim=-1) * D**0.5
    tokens = Tokens(keys, keys, values, *gates(kind))
    state, largest = initial_state(torch.zeros(1, HEADS, D, D), rule), 0.0
    for begin in range(0, LENGTH, 256):
        outputs, state = run_chunked(tokens.cut(begin, begin + 256), state, rule)
        norms = torch.stack([state.memory, state.momentum]).norm(dim=(-2, -1))
        largest = max(largest, float(norms.max()))
        if not largest < DIVERGED:
            break
        assert bool(torch.isfinite(outputs).all())
    return largest


@pytest.mark.parametrize("kind", ["random", "alternating", "bursty", "extreme", "two-valued"])
@pytest.mark.parametrize(
    "rule", [Rule(), Rule(window=4), Rule("chunk-start", 8), Rule(weighting="both")], ids=str
)
def test_state_stays_bounded(rule, kind):
    largest = largest_norm(rule, kind)
    assert 1 < largest < BOUND


@pytest.mark.parametrize("weighting", ["none", "step"])
@pytest.mark.parametrize("kind", ["alternating", "extreme", "two-valued"])
def test_without_the_weight_it_diverges(weighting, kind):
    assert not largest_norm(Rule(weighting=weighting), kind) < DIVERGED


def test_gates_in_resonance_need_both_weights():
    """Three keys over and over, and an eta that gathers for 100 tokens and then lets go."""
    assert not largest_norm(Rule(), "resonant", distinct_keys=3) < DIVERGED
    assert largest_norm(Rule(weighting="both"), "resonant", distinct_keys=3) < BOUND


def test_chunks_longer_than_the_key_diverge_at_full_step():
    """A chunk's errors are all measured at its start: C / d_k of them correct the same mistake."""
    assert not largest_norm(Rule("chunk-start", 64), "alternating") < DIVERGED
