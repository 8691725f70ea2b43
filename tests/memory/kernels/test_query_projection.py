"""The Q-K projection is a causal sum of projectors, in blocks or token by token."""

import pytest
import torch

from atlas.memory.kernels.query_projection import project
from tests.memory.rules.helpers import off


def drawn(length, seed=0):
    draw = torch.Generator().manual_seed(seed)
    shape = (2, 3, length, 5)
    queries, keys = torch.randn(2, *shape, generator=draw, dtype=torch.float64)
    prefix = torch.randn(2, 3, 5, 5, generator=draw, dtype=torch.float64)
    return queries, keys, prefix


def project_naive(queries, keys, prefix):
    """q'_t = q_t P_0 + sum of k (k . q_t) / |k|^2 over the keys up to t."""
    rows = []
    for t in range(queries.shape[2]):
        row = (queries[:, :, t, None] @ prefix)[:, :, 0]
        for tau in range(t + 1):
            key = keys[:, :, tau]
            dot = (key * queries[:, :, t]).sum(-1, keepdim=True)
            row = row + key * dot / key.square().sum(-1, keepdim=True)
        rows.append(row)
    return torch.stack(rows, 2)


@pytest.mark.parametrize("length", [1, 63, 64, 77])
def test_blocks_equal_the_sum(length):
    queries, keys, prefix = drawn(length)
    found, after = project(queries, keys, prefix)
    assert off(found, project_naive(queries, keys, prefix)) < 1e-12
    unit = keys / keys.norm(dim=-1, keepdim=True)
    assert off(after, prefix + unit.mT @ unit) < 1e-12


def test_split_equals_whole():
    queries, keys, prefix = drawn(100)
    whole, last = project(queries, keys, prefix)
    first, between = project(queries[:, :, :37], keys[:, :, :37], prefix)
    second, after = project(queries[:, :, 37:], keys[:, :, 37:], between)
    assert off(torch.cat([first, second], 2), whole) < 1e-12
    assert off(after, last) < 1e-12


def test_no_query_sees_a_later_key():
    queries, keys, prefix = drawn(80)
    other = keys.clone()
    other[:, :, 70:] = 1.0
    one, two = project(queries, keys, prefix)[0], project(queries, other, prefix)[0]
    assert torch.equal(one[:, :, :70], two[:, :, :70])
    assert off(two[:, :, 70:], one[:, :, 70:]) > 1e-2
