"""Every registered strategy for many clients: sparse rows give what the matrix of few gives."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from atlas.config.plan import RelationSettings
from atlas.federation import strategies
from atlas.federation.adapters.adapter import Layout, Member
from atlas.federation.adapters.cohort import initial_cohort
from atlas.federation.batching.backbone import HeadLayer
from atlas.federation.mixing.apply import mix_cohort, settle
from atlas.federation.strategies import relations_sparse
from atlas.federation.strategies.base import STRATEGIES, View
from atlas.ops.graph.affinity import unit_rows
from atlas.ops.graph.sparse_rows import LARGEST_DENSE, SharedRows
from atlas.ops.lowrank.factors import delta
from tests.helpers import padding_is_zero

assert strategies.__all__
MANY = LARGEST_DENSE + 26
LABEL_SETS = [("no", "yes"), ("a", "b", "c"), ("x", "y")]
LAYOUT = Layout(
    "law", ("m0", "m1"), ((9, 7), (8, 6)), (HeadLayer("classifier", 5, 0, True, "identity"),), 16.0
)
every_strategy = pytest.mark.parametrize("name", sorted(STRATEGIES))


def make_cohort(n=MANY, seed=0):
    """Adapters of unequal ranks and several label sets, all trained."""
    draw = np.random.default_rng(seed)
    members = [
        Member(f"c{i:03d}", (int(draw.integers(1, 5)), int(draw.integers(1, 4))), LABEL_SETS[i % 3])
        for i in range(n)
    ]
    cohort = initial_cohort(LAYOUT, members, 0, dtype=torch.float64)
    return cohort.put(
        {
            member.id: {
                name: torch.from_numpy(draw.standard_normal(value.shape))
                for name, value in cohort.take(member.id).items()
            }
            for member in members
        }
    )


def make_view(n=MANY):
    draw = np.random.default_rng(1)
    features = unit_rows(torch.from_numpy(draw.standard_normal((n, 4))))
    norms = torch.from_numpy(draw.uniform(0.5, 2.0, n))
    return View(
        clients=tuple(f"c{i:03d}" for i in range(n)),
        examples=torch.from_numpy(draw.integers(1, 60, n).astype(np.float64)),
        tasks=tuple(f"t{i % 4}" for i in range(n)),
        round=1,
        features=features,
        signatures=torch.from_numpy(draw.standard_normal((n, 7))),
        clusters=tuple(i % 5 for i in range(n)),
        norms=lambda: norms,
        # Random features have neighbours at all distances; the smallest shares of a sharp kernel
        # would leave the gauge of a cut mixture, though not its product, to rounding.
        settings=RelationSettings(scale="unit"),
    )


def both_weights(strategy, monkeypatch, reach=None):
    """The settled W of a round from which every third client is absent: rows, and the matrix."""
    view = make_view()
    usable = torch.arange(MANY) % 3 != 0
    present = usable if (reach or strategy.reach) == "present" else None
    rows = settle(strategy.relation(view), usable, present)
    with monkeypatch.context() as patch:
        patch.setattr(relations_sparse, "LARGEST_DENSE", MANY)
        matrix = settle(strategy.relation(view), usable, present)
    assert isinstance(rows, SharedRows) and isinstance(matrix, torch.Tensor)
    return rows, matrix


@every_strategy
@pytest.mark.parametrize("reach", ["all", "present"])
def test_rows_are_the_rows_of_the_matrix(name, reach, monkeypatch):
    rows, matrix = both_weights(STRATEGIES[name], monkeypatch, reach)
    assert torch.allclose(rows.dense(), matrix, atol=1e-12, rtol=0)


def factors_apart(one, two, name):
    """Columns of B and rows of A are known up to their sign where they are singular vectors."""
    dim = 2 if name.startswith("lora_a") else 1
    return torch.minimum((one - two).abs().amax(dim), (one + two).abs().amax(dim)).max()


@every_strategy
@pytest.mark.parametrize("reach", ["all", "present"])
def test_mixtures_are_those_of_the_matrix(name, reach, monkeypatch):
    strategy, cohort = STRATEGIES[name], make_cohort()
    rows, matrix = both_weights(strategy, monkeypatch, reach)
    monkeypatch.setattr(SharedRows, "dense", lambda self: pytest.fail("W became a matrix"))
    found, wanted = (mix_cohort(cohort, w, **strategy.mixing) for w in (rows, matrix))
    assert found.members == wanted.members
    assert padding_is_zero(found)
    for key, value in wanted.tensors.items():
        if strategy.space == "svd" and key.startswith("lora"):
            assert factors_apart(found.tensors[key], value, key) < 1e-12, key
        else:
            assert torch.allclose(found.tensors[key], value, atol=1e-12, rtol=1e-12), key
    for i, module in enumerate(LAYOUT.modules):
        one, two = (
            delta(c.tensors[f"lora_a/{module}"], c.tensors[f"lora_b/{module}"], c.scales(i))
            for c in (found, wanted)
        )
        assert torch.allclose(one, two, atol=1e-12, rtol=1e-12)


@every_strategy
def test_whoever_keeps_its_own_does_so_bit_for_bit(name, monkeypatch):
    strategy, cohort = STRATEGIES[name], make_cohort()
    rows, _ = both_weights(strategy, monkeypatch, "present")
    mixed = mix_cohort(cohort, rows, **strategy.mixing)
    for client in cohort.clients[::3]:
        own, got = cohort.take(client), mixed.take(client)
        assert all(torch.equal(own[key], got[key]) for key in own)


def test_norms_of_nothing_are_shares_of_the_data():
    view = replace(make_view(), norms=lambda: torch.zeros(MANY, dtype=torch.float64))
    weights = relations_sparse.scaled_norm_shares(view)
    assert torch.equal(weights.dense(), relations_sparse.scaled_data_shares(view).dense())


PEAK = """
import os, sys, torch
from atlas.bench.processes import high_water
from atlas.federation.mixing.apply import mix_cohort, settle
from atlas.federation.strategies.base import STRATEGIES
from tests.laws.test_many_clients import make_cohort, make_view
n, strategy = int(sys.argv[1]), STRATEGIES[sys.argv[2]]
cohort, view = make_cohort(n), make_view(n)
weights = settle(strategy.relation(view), torch.arange(n) % 3 != 0, None)
mix_cohort(cohort, weights, **strategy.mixing)
print(high_water(os.getpid()))
"""


LARGE = ["fedavg", "hetlora"]
LARGE += [pytest.param(name, marks=pytest.mark.slow) for name in ("local", "oracle", "flora")]


@pytest.mark.parametrize("name", LARGE)
def test_ten_thousand_clients_make_no_matrix_of_all_pairs(name):
    """The whole process, torch and all, is smaller than one such matrix, which is 800 MB."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, "10000", name], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout) < 600e6
