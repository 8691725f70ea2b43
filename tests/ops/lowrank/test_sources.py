"""Cuts of mixtures against dense twins: bands, own directions, and what rounds of cutting do."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from atlas.ops.graph.sparse_rows import LARGEST_DENSE, share_rows
from atlas.ops.lowrank.factors import Layer, delta
from atlas.ops.lowrank.mixing import mix_product
from atlas.ops.lowrank.mixing_sparse import exact_mixtures, mix_by_recipe
from atlas.ops.lowrank.sources import Recipe, band_edges
from tests.ops.lowrank.spectra import best, beyond

D_IN, D_OUT = 20, 17


def make_layer(ranks, seed=0, d_in=D_IN, d_out=D_OUT, alpha=16.0):
    draw = np.random.default_rng(seed)
    most = max(ranks)
    a = torch.zeros(len(ranks), most, d_in, dtype=torch.float64)
    b = torch.zeros(len(ranks), d_out, most, dtype=torch.float64)
    for k, r in enumerate(ranks):
        a[k, :r] = torch.from_numpy(draw.standard_normal((r, d_in)))
        b[k, :, :r] = torch.from_numpy(draw.standard_normal((d_out, r)))
    return Layer(a, b, torch.tensor(ranks), alpha / torch.tensor(ranks, dtype=torch.float64))


def dense(layer):
    return delta(layer.a, layer.b, layer.scales)


def make_weights(n, seed=1, nearest=None):
    draw = np.random.default_rng(seed)
    weights = draw.uniform(0.1, 1.0, (n, n))
    weights[np.diag_indices(n)] *= 0.3
    if nearest:
        weights *= np.argsort(np.argsort(-weights, axis=1), axis=1) < nearest
    weights /= weights.sum(1, keepdims=True)
    weights[n // 2] = np.eye(n)[n // 2]
    return torch.from_numpy(weights)


def rows_of(weights):
    return share_rows(csr_array(weights.numpy()))


def naive_bands(layer, weights, edges):
    """Every client's directions one by one, each weighed among those who reach its band."""
    found = []
    for k, row in enumerate(weights):
        total = torch.zeros(D_OUT, D_IN, dtype=torch.float64)
        for member, matrix in enumerate(dense(layer)):
            u, s, vh = torch.linalg.svd(matrix)
            for i in range(int(layer.ranks[member]) if row[member] else 0):
                edge = min(e for e in edges if e > i)
                holders = sum(row[m] for m in range(len(row)) if layer.ranks[m] >= edge)
                total += row[member] / holders * s[i] * torch.outer(u[:, i], vh[i])
        found.append(best(total, int(layer.ranks[k])))
    return torch.stack(found)


def naive_own(layer, weights):
    """The mixture's directions, as many as ranks, in which a client's own change is largest."""
    changes, found = dense(layer), []
    for k, row in enumerate(weights):
        mixture = torch.einsum("l,lij->ij", row, changes)
        u, s, vh = torch.linalg.svd(mixture)
        there = [i for i in range(len(s)) if s[i] > 1e-9 * s[0]]
        size = {i: abs(float(u[:, i] @ changes[k] @ vh[i])) for i in there}
        kept = sorted(there, key=lambda i: -size[i])[: int(layer.ranks[k])]
        found.append(sum(s[i] * torch.outer(u[:, i], vh[i]) for i in kept))
    return torch.stack(found)


CASES = {
    "two": ([2, 5], None),
    "unequal": ([1, 2, 4, 8], None),
    "thirty": ([1 + k % 4 for k in range(30)], 4),
    "sparse": ([1 + k % 3 for k in range(LARGEST_DENSE + 6)], 3),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("cut", ["bands", "own"])
def test_a_cut_is_its_dense_twin_and_not_the_plain_one(case, cut):
    ranks, nearest = CASES[case]
    layer, weights = make_layer(ranks), make_weights(len(ranks), nearest=nearest)
    edges = band_edges(ranks)
    a, b = mix_by_recipe(layer, rows_of(weights), Recipe(cut, edges))
    found = delta(a, b, layer.scales)
    wanted = naive_bands(layer, weights, edges) if cut == "bands" else naive_own(layer, weights)
    keeper = len(ranks) // 2
    others = [k for k in range(len(ranks)) if k != keeper]
    assert torch.allclose(found[others], wanted[others], atol=1e-9)
    assert torch.equal(a[keeper], layer.a[keeper]) and torch.equal(b[keeper], layer.b[keeper])
    plain = delta(*mix_product(*layer, weights), layer.scales)
    assert (found[others] - plain[others]).abs().max() > 1e-2


def test_bands_of_equal_ranks_and_own_of_whole_mixtures_are_the_plain_cut():
    layer, weights = make_layer([3] * 6), make_weights(6)
    wanted = delta(*mix_product(*layer, weights), layer.scales)
    found = delta(*mix_by_recipe(layer, rows_of(weights), Recipe("bands", (3,))), layer.scales)
    assert torch.allclose(found, wanted, atol=1e-10)
    small = make_layer([17] * 3, seed=2)  # ranks that hold any mixture whole
    weights = make_weights(3)
    wanted = delta(*mix_product(*small, weights), small.scales)
    found = delta(*mix_by_recipe(small, rows_of(weights), Recipe("own")), small.scales)
    assert torch.allclose(found, wanted, atol=1e-8)


def test_more_edges_than_ranks_change_no_band():
    """So a part of a cohort, which may lack some ranks, gives what the whole gives."""
    layer, weights = make_layer([2, 4, 8]), rows_of(make_weights(3))
    one = delta(*mix_by_recipe(layer, weights, Recipe("bands", (2, 4, 8))), layer.scales)
    two = delta(*mix_by_recipe(layer, weights, Recipe("bands", (1, 2, 3, 4, 6, 8))), layer.scales)
    assert torch.allclose(one, two, atol=1e-10)


def test_without_training_plain_cuts_collapse_and_bands_do_not():
    """Ranks 8 to 64 at width 128: what the largest holds beyond rank 8, round after round."""
    layer = make_layer([8, 16, 32, 64], d_in=128, d_out=128)
    # Of one size in every direction, and each client of the same size.
    a, b = (torch.linalg.qr(part)[0] for part in (layer.a.mT, layer.b))
    layer = layer._replace(a=a.mT, b=b, scales=torch.ones(4, dtype=torch.float64))
    used = torch.arange(64) < layer.ranks[:, None]
    layer = layer._replace(a=layer.a * used[..., None], b=layer.b * used[:, None])
    even = torch.full((4, 4), 0.25, dtype=torch.float64)
    shares = {}
    for cut in ("leading", "bands"):
        now, found = layer, []
        for _ in range(5):
            recipe = Recipe(cut, (8, 16, 32, 64))
            a, b = mix_by_recipe(now, rows_of(even), recipe)
            now = now._replace(a=a, b=b)
            found.append(beyond(dense(now)[3], 8))
        shares[cut] = found
    assert shares["leading"] == sorted(shares["leading"], reverse=True)
    assert shares["leading"][4] < 0.1 * shares["leading"][0]
    # The first mixture is another one; from then on nothing is lost.
    assert shares["bands"] == pytest.approx([shares["bands"][0]] * 5, abs=1e-9)


def test_random_adapters_collapse_as_the_page_on_concepts_says():
    now = make_layer([8, 16, 32, 64], d_in=128, d_out=128)
    even, found = torch.full((4, 4), 0.25, dtype=torch.float64), [beyond(dense(now)[3], 8)]
    for _ in range(10):
        a, b = mix_by_recipe(now, rows_of(even), Recipe())
        now = now._replace(a=a, b=b)
        found.append(beyond(dense(now)[3], 8))
    told = [found[number] for number in (0, 1, 2, 5, 10)]
    assert told == pytest.approx([0.61, 0.39, 0.19, 0.031, 0.0018], rel=0.03)


def test_exact_mixtures_are_whole_where_the_count_allows():
    layer, weights = make_layer([2, 3, 5, 1]), make_weights(4)
    residual = make_layer([4] * 4, seed=5)
    recipe = Recipe(residual=residual, feedback=0.5)
    rows = rows_of(weights)
    found, energy = exact_mixtures(layer, rows.rows, np.arange(4), recipe, 99)
    got = (found.image @ found.right.mT)[rows.which]
    wanted = torch.einsum("kl,lij->kij", weights, dense(layer) + 0.5 * dense(residual))
    assert torch.allclose(got, wanted, atol=1e-8)
    assert torch.allclose(energy[rows.which], wanted.square().sum((1, 2)))
    cut, same = exact_mixtures(layer, rows.rows, np.arange(4), recipe, 3)
    assert torch.equal(same, energy)
    assert cut.right.shape == (4, D_IN, 3)
    got = (cut.image @ cut.right.mT)[rows.which]
    assert torch.allclose(got[0], best(wanted[0], 3), atol=1e-7)
