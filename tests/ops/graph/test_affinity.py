"""Laws of affinities, against naive double loops in float64."""

import math

import pytest
import torch

from atlas.ops.graph.affinity import (
    connect_singletons,
    cosine,
    even_steps,
    group_shares,
    lazy,
    nearest,
    rbf,
    row_normalise,
    symmetrise,
    unit_rows,
    within,
    without_self,
)
from atlas.ops.lowrank.mixing import check_mixing, mix_rows

N = 6
LABELS = ["x", "y", "x", "z", "y", "x"]


def features(seed=0, n=N):
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loop(function):
    return torch.tensor([[function(k, j) for j in range(N)] for k in range(N)], dtype=torch.float64)


def test_rbf_and_cosine_equal_double_loops():
    f = features()
    unit = [[float(v) / math.sqrt(sum(float(u) ** 2 for u in row)) for v in row] for row in f]

    def gap(k, j):
        return sum((a - b) ** 2 for a, b in zip(unit[k], unit[j], strict=True))

    def dot(k, j):
        return sum(a * b for a, b in zip(unit[k], unit[j], strict=True))

    assert torch.allclose(rbf(f, 0.7), loop(lambda k, j: math.exp(-0.7 * gap(k, j))), atol=1e-12)
    assert torch.allclose(cosine(f), loop(lambda k, j: min(1, max(0.0, dot(k, j)))), atol=1e-12)


def test_alpha_changes_the_graph_and_length_does_not():
    f = features()
    assert not torch.allclose(rbf(f, 0.5), rbf(f, 2.0))
    assert torch.allclose(rbf(f, 1.0), rbf(3.0 * f, 1.0))
    assert not unit_rows(torch.zeros(2, 3)).any()


def test_nearest_keeps_the_largest_and_breaks_ties_by_order():
    a = without_self(rbf(features(), 1.0))
    kept = nearest(a, 2)
    for k in range(N):
        top = sorted(range(N), key=lambda j: (-float(a[k, j]), j))[:2]
        assert torch.nonzero(kept[k]).flatten().tolist() == sorted(top)
    ties = nearest(torch.ones(3, 3, dtype=torch.float64), 1)
    assert ties[:, 0].tolist() == [1.0, 1.0, 1.0]


def test_within_cuts_and_weakens_edges_across():
    a = without_self(rbf(features(), 1.0))
    for cross in (0.0, 0.1):
        wanted = loop(lambda k, j, c=cross: float(a[k, j]) * (1 if LABELS[k] == LABELS[j] else c))
        assert torch.allclose(within(a, LABELS, cross), wanted)


def test_singletons_are_connected_to_their_nearest():
    whole = without_self(rbf(features(), 1.0))
    cut = within(whole, LABELS)
    assert not cut[3].any()
    joined = connect_singletons(cut, whole)
    other = int(whole[3].argmax())
    assert joined[3].nonzero().flatten().tolist() == [other]
    assert joined[3, other] == joined[other, 3] == whole[3, other]
    others = [k for k in range(N) if k not in (3, other)]
    assert torch.equal(joined[others][:, others], cut[others][:, others])


def chain(f, eta, alpha=1.0):
    graph = nearest(within(without_self(rbf(f, alpha)), LABELS), 3)
    return lazy(row_normalise(symmetrise(graph)), eta)


@pytest.mark.parametrize("eta", [0.0, 0.1, 0.5, 1.0])
def test_the_usual_chain_is_row_stochastic(eta):
    weights = chain(features(), eta)
    check_mixing(weights)
    assert (weights[3] == torch.eye(N, dtype=torch.float64)[3]).all(), "no neighbours: its own"


def test_eta_zero_is_the_identity_bit_for_bit():
    assert torch.equal(chain(features(), 0.0), torch.eye(N, dtype=torch.float64))


def test_client_order_is_irrelevant():
    f, order = features(), torch.tensor([3, 1, 5, 0, 4, 2])
    graph = lazy(row_normalise(symmetrise(nearest(without_self(rbf(f, 1.0)), 3))), 0.5)
    turned = lazy(row_normalise(symmetrise(nearest(without_self(rbf(f[order], 1.0)), 3))), 0.5)
    assert torch.allclose(turned, graph[order][:, order])


def laplacian(affinity):
    return torch.diag(affinity.sum(1)) - affinity


def test_laplacian_is_psd_with_one_null_vector_per_component():
    graph = symmetrise(within(without_self(rbf(features(), 1.0)), LABELS))
    values = torch.linalg.eigvalsh(laplacian(graph))
    assert float(values.min()) > -1e-12
    assert int((values < 1e-10).sum()) == 3


def test_lazy_is_a_step_of_diffusion():
    graph = symmetrise(without_self(rbf(features(), 1.0)))
    shares = row_normalise(graph)
    degree = torch.diag(1 / graph.sum(1))
    step = torch.eye(N, dtype=torch.float64) - 0.3 * degree @ laplacian(graph)
    assert torch.allclose(lazy(shares, 0.3), step, atol=1e-12)


def test_two_clients_move_toward_each_other():
    shares = row_normalise(torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64))
    moved = mix_rows(torch.tensor([[1.0], [0.0]], dtype=torch.float64), lazy(shares, 0.1))
    assert torch.allclose(moved, torch.tensor([[0.9], [0.1]], dtype=torch.float64))


@pytest.mark.parametrize("eta", [0.01, 0.1, 0.5])
def test_three_equal_clients_contract_by_the_known_factor(eta):
    graph = row_normalise(without_self(torch.ones(3, 3, dtype=torch.float64)))
    values = features(n=3)
    mixed = mix_rows(values, lazy(graph, eta))
    gaps = (values[0] - values[1]).norm(), (mixed[0] - mixed[1]).norm()
    assert float(gaps[1] / gaps[0]) == pytest.approx(1 - 1.5 * eta)


def test_even_steps_take_alike_clients_to_their_mean_at_once():
    for count in (2, 3, 5):
        graph = row_normalise(without_self(torch.ones(count, count, dtype=torch.float64)))
        weights = lazy(graph, even_steps(graph))
        assert torch.allclose(weights, torch.full_like(weights, 1 / count), atol=1e-12)
    alone = row_normalise(torch.zeros(2, 2, dtype=torch.float64))
    assert torch.equal(lazy(alone, even_steps(alone)), alone)


def test_no_other_step_leaves_less_noise():
    shares = row_normalise(without_self(rbf(features(), 2.0)))
    noise = lazy(shares, even_steps(shares)).square().sum(1)
    for shift in (-0.1, -0.01, 0.01, 0.1):
        other = lazy(shares, (even_steps(shares) + shift).clamp(0, 1)).square().sum(1)
        assert bool((other > noise).all()), shift


def test_group_shares_average_by_examples_inside_groups():
    counts = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dtype=torch.float64)
    shares = group_shares(LABELS, counts)
    check_mixing(shares)
    assert shares[0].tolist() == pytest.approx([0.1, 0, 0.3, 0, 0, 0.6])
    assert shares[3].tolist() == [0, 0, 0, 1, 0, 0]
    assert torch.equal(shares[0], shares[2])


def test_eta_outside_its_range_is_refused():
    for eta in (-0.1, 1.1):
        with pytest.raises(ValueError, match="allowed: 0 to 1"):
            lazy(torch.eye(2, dtype=torch.float64), eta)
        with pytest.raises(ValueError, match="allowed: 0 to 1"):
            lazy(torch.eye(2, dtype=torch.float64), torch.tensor([0.5, eta]))


def test_rows_are_normalised_and_zero_rows_stay():
    rows = unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, -2.0]]))
    assert torch.allclose(
        rows, torch.tensor([[0.6, 0.8], [0.0, 0.0], [0.0, -1.0]], dtype=torch.float64)
    )
