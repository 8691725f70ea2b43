"""Polynomial features: their inner product is the polynomial, and keys keep length one."""

import math

import pytest
import torch

from atlas.memory.kernels.chunked import run_chunked
from atlas.memory.layer.features import feature_size, features, initial_amplitudes, unit_features
from atlas.memory.rules.rule import Rule, Tokens
from atlas.memory.rules.state import initial_state
from tests.memory.rules.helpers import draw, off


def vectors(d, seed):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(5, 7, d, generator=draw, dtype=torch.float64)


@pytest.mark.parametrize(("d", "degree"), [(3, 1), (5, 2), (4, 3), (2, 5)])
def test_inner_product_is_the_polynomial(d, degree):
    q, k = vectors(d, 0), vectors(d, 1)
    draw = torch.Generator().manual_seed(2)
    amplitudes = torch.randn(degree + 1, generator=draw, dtype=torch.float64)
    product = (features(q, amplitudes) * features(k, amplitudes)).sum(-1)
    dot = (q * k).sum(-1)
    wanted = sum(amplitudes[i] ** 2 * dot**i for i in range(degree + 1))
    assert off(product, wanted) < 1e-12


def test_learning_starts_at_the_exponential():
    q, k = 0.1 * vectors(4, 0), 0.1 * vectors(4, 1)
    amplitudes = initial_amplitudes(6).double()
    assert torch.allclose(amplitudes**2, 1 / torch.tensor([1.0, 1, 2, 6, 24, 120, 720]).double())
    product = (features(q, amplitudes) * features(k, amplitudes)).sum(-1)
    assert off(product, (q * k).sum(-1).exp()) < 1e-7


@pytest.mark.parametrize(("d", "degree", "size"), [(16, 2, 153), (16, 3, 969), (64, 2, 2145)])
def test_no_monomial_occurs_twice(d, degree, size):
    assert feature_size(d, degree) == size == math.comb(d + degree, degree)
    found = features(vectors(d, 0)[:1, :1], initial_amplitudes(degree).double())
    assert found.shape == (1, 1, size)
    assert len(set(found.flatten().tolist())) == size


def test_keys_have_length_one_and_amplitudes_learn():
    amplitudes = initial_amplitudes(3).double().requires_grad_()
    keys = unit_features(vectors(4, 0), amplitudes)
    assert torch.allclose(keys.norm(dim=-1), torch.ones(5, 7, dtype=torch.float64))
    (keys * torch.randn_like(keys)).sum().backward()
    assert bool((amplitudes.grad.abs() > 1e-6).all())


def test_what_was_written_is_read_back_at_its_own_length():
    """One write of step one at a key, read with the same query: the value times |phi(q)|."""
    leaves = [leaf.detach() for leaf in draw(1)]
    amplitudes = torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64).rsqrt()
    keys, queries = unit_features(leaves[1], amplitudes), features(leaves[1], amplitudes)
    ones, zeros = torch.ones_like(leaves[3]), torch.zeros_like(leaves[3])
    memory = torch.zeros(2, 2, keys.shape[-1], leaves[2].shape[-1], dtype=torch.float64)
    tokens = Tokens(queries, keys, leaves[2], zeros, zeros, ones)
    outputs, _ = run_chunked(tokens, initial_state(memory, Rule()), Rule())
    assert off(outputs, leaves[2] * math.sqrt(2.5)) < 1e-12


def test_more_pairs_than_dimensions_are_held_with_features_alone():
    """Ten keys of four dimensions: a plain memory cannot tell them apart, features can."""
    draw = torch.Generator().manual_seed(0)
    keys = torch.nn.functional.normalize(
        torch.randn(1, 1, 10, 4, generator=draw, dtype=torch.float64), dim=-1
    )
    values = torch.randn(1, 1, 10, 4, generator=draw, dtype=torch.float64)
    amplitudes = initial_amplitudes(2).double()

    def misses(written, read):
        gate = torch.zeros(1, 1, 10 * 60, dtype=torch.float64)
        often = (part.repeat(1, 1, 60, 1) for part in (read, written, values))
        tokens = Tokens(*often, gate, gate, gate + 1)
        memory = torch.zeros(1, 1, written.shape[-1], 4, dtype=torch.float64)
        _, state = run_chunked(tokens, initial_state(memory, Rule()), Rule())
        return off(written @ state.memory, values)

    plain = misses(keys, keys)
    lifted = unit_features(keys, amplitudes)
    assert misses(lifted, lifted) < 0.2 < 0.4 < plain
