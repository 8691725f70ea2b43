"""Cores are mixed as they are, across backbones, few clients and many."""

import pytest
import torch

from atlas.federation.adapters.adapter import Layout, Member
from atlas.federation.adapters.cohort import initial_cohort
from atlas.federation.mixing.apply import mix_cohort
from atlas.federation.mixing.deliver import cluster_distance
from atlas.federation.state.mapped import OnDisk
from atlas.ops.graph.sparse_rows import share_rows

PLACES = ("0.query", "0.value", "1.query")


def make_cohort(n, place=None):
    layout = Layout("core", PLACES, ((3, 3),) * 3, (), 16.0, cores=PLACES)
    members = [Member(f"c{i:03}", (3, 3, 3)) for i in range(n)]
    cohort = initial_cohort(layout, members, 0, dtype=torch.float64, place=place)
    filled = {}
    for row, member in enumerate(members):
        draw = torch.Generator().manual_seed(row)
        filled[member.id] = {
            name: torch.randn(value.shape, generator=draw, dtype=torch.float64)
            for name, value in cohort.take(member.id).items()
        }
    return cohort.put(filled)


def make_weights(n, seed=0):
    draw = torch.Generator().manual_seed(seed)
    found = torch.rand(n, n, generator=draw, dtype=torch.float64)
    found.fill_diagonal_(0.0)
    found[n // 2] = torch.eye(n, dtype=torch.float64)[n // 2]
    return found / found.sum(1, keepdim=True)


@pytest.mark.parametrize("n", [2, 30, 70])
def test_mixed_cores_equal_a_double_loop(n):
    import scipy

    cohort, weights = make_cohort(n), make_weights(n)
    mixed = mix_cohort(cohort, weights, space="core", heads="personal")
    sparse = share_rows(scipy.sparse.csr_array(weights.numpy()))
    also = mix_cohort(cohort, sparse, space="core", heads="personal")
    for name, value in cohort.tensors.items():
        for k in range(n):
            wanted = sum(weights[k, j] * value[j] for j in range(n))
            assert torch.allclose(mixed.tensors[name][k], wanted, atol=1e-10)
            assert torch.allclose(also.tensors[name][k], wanted, atol=1e-10)
        own = n // 2
        assert torch.equal(mixed.tensors[name][own], value[own])
        assert torch.equal(also.tensors[name][own], value[own])


def test_cores_on_disk_are_mixed_to_the_same_bits():
    weights = make_weights(30)
    here = mix_cohort(make_cohort(30), weights, space="core", heads="personal")
    there = mix_cohort(make_cohort(30, OnDisk()), weights, space="core", heads="personal")
    assert all(torch.equal(v, there.tensors[k]) for k, v in here.tensors.items())


def test_distances_between_cores_are_told():
    cohort = make_cohort(4)
    apart = cluster_distance(cohort, None)
    mean = torch.full((4, 4), 0.25, dtype=torch.float64)
    together = cluster_distance(mix_cohort(cohort, mean, space="core", heads="personal"), None)
    assert apart > 1.0
    assert together < 1e-10
