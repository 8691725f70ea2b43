"""Parts of many clients get what all would, also where a mixture is over more than fit."""

import tracemalloc

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from atlas.federation.adapters.cohort import Cohort
from atlas.federation.mixing import parts
from atlas.federation.mixing.apply import mix_cohort
from atlas.federation.mixing.parts import PartMixer, client_bytes, parts_of, together
from atlas.ops.graph.sparse_rows import (
    SharedRows,
    by_acquaintance,
    group_rows,
    one_row,
    same_rows,
    share_rows,
)
from atlas.ops.lowrank.mixing_sums import SUMS
from tests.federation.state.test_mapped import on_disk
from tests.laws.test_many_clients import MANY, make_cohort


def ring(n=MANY, shuffled=False):
    """Everybody learns from two others, under names in any order; some keep their own."""
    names = np.random.default_rng(0).permutation(n) if shuffled else np.arange(n)
    dense = np.zeros((n, n))
    for k in range(n):
        for step, share in ((-1, 0.3), (0, 0.5), (1, 0.2)):
            dense[names[k], names[(k + step) % n]] = share
    if not shuffled:
        dense[::7] = np.eye(n)[::7]
    return share_rows(csr_array(dense))


def means(n=MANY):
    return group_rows([k % 4 for k in range(n)], torch.arange(1.0, n + 1))


def both(n=MANY):
    """Half of the clients hold a mean of their group, the others have rows of their own."""
    dense = ring(n).dense()
    dense[::2] = means(n).dense()[::2]
    return share_rows(csr_array(dense.numpy()))


def everybody(n=MANY):
    """One row over all, in which the first client of every label set but one counts nothing."""
    shares = torch.arange(1.0, n + 1, dtype=torch.float64)
    return one_row(shares / shares.sum())


def follow(n=MANY):
    """Everybody receives what one client has."""
    dense = np.zeros((n, n))
    dense[:, 4] = 1.0
    return share_rows(csr_array(dense))


WEIGHTS = {"rows": ring, "means": means, "both": both, "one": everybody, "follow": follow}


@pytest.mark.parametrize("space", ["product", "factors", "b", "svd"])
@pytest.mark.parametrize("heads", ["mix", "personal"])
@pytest.mark.parametrize("name", sorted(WEIGHTS))
def test_parts_of_a_file_are_mixed_as_the_whole_in_memory(name, heads, space, monkeypatch):
    cohort, weights = make_cohort(), WEIGHTS[name]()
    monkeypatch.setattr(parts, "PART_BYTES", 12 * client_bytes(cohort))
    wanted = mix_cohort(cohort, weights, space=space, heads=heads)
    mixer = PartMixer(on_disk(cohort), weights, space, heads)
    own = np.diag(weights.dense().numpy()) == 1.0
    order = together(cohort, [weights], cohort.clients)
    assert sorted(order) == list(cohort.clients)
    for some in parts_of({"": cohort}, order):
        assert len(some) <= 12
        found = mixer.mix(some)
        assert found.clients == tuple(some)
        for client in some:
            one, two = found.take(client), wanted.take(client)
            for key, value in two.items():
                assert torch.allclose(one[key], value, atol=1e-9, rtol=0), (client, key)
                if own[cohort.places[client]]:
                    assert torch.equal(one[key], cohort.take(client)[key])


@pytest.mark.parametrize("name", ["means", "both", "one"])
def test_a_sum_over_many_reads_each_client_once_and_is_kept(name, monkeypatch):
    cohort, weights = make_cohort(), WEIGHTS[name]()
    monkeypatch.setattr(parts, "PART_BYTES", 8 * client_bytes(cohort))
    selected, made = [], []
    select, sum_product = Cohort.select, SUMS["product"]

    def watched(self, clients):
        if len(self.clients) == MANY:
            selected.append(len(clients))
        return select(self, clients)

    def counted(layers, largest):
        layers = list(layers)
        made.append([len(layer.a) for layer, _ in layers])
        return sum_product(layers, largest)

    monkeypatch.setattr(Cohort, "select", watched)
    monkeypatch.setitem(SUMS, "product", counted)
    mixer = PartMixer(cohort, weights, "product", "mix")
    for some in parts_of({"": cohort}, cohort.clients):
        mixer.mix(some)
    assert max(selected) <= 3 * 8, "a part and its neighbours"
    assert len(made) == 2, "once for each module, though there are many parts"
    assert all(max(sizes) <= 8 and sum(sizes) <= MANY for sizes in made)


def test_rows_of_a_few_do_not_go_through_sums(monkeypatch):
    """The control: with room for all, nothing is summed, and numbers are nearly the same."""
    cohort, weights = make_cohort(), means()
    monkeypatch.setattr(parts, "PART_BYTES", 30 * client_bytes(cohort))
    monkeypatch.setitem(SUMS, "product", None)
    some = list(cohort.clients[3:9])
    found = PartMixer(cohort, weights, "product", "mix").mix(some)
    wanted = mix_cohort(cohort, weights, space="product", heads="mix")
    for client in some:
        for key, value in wanted.take(client).items():
            assert torch.allclose(found.take(client)[key], value, atol=1e-9)


def test_other_large_rows_are_summed_anew(monkeypatch):
    cohort, weights = make_cohort(), means()
    monkeypatch.setattr(parts, "PART_BYTES", client_bytes(cohort))
    mixer = PartMixer(cohort, weights, "product", "mix")
    wanted = mix_cohort(cohort, weights, space="product", heads="mix")
    for client in ("c000", "c001", "c000"):
        for key, value in wanted.take(client).items():
            assert torch.allclose(mixer.mix([client]).take(client)[key], value, atol=1e-9)


def read_in_parts(weights, order, size):
    cut = [order[start : start + size] for start in range(0, len(order), size)]
    rows = [weights.rows[weights.which[some]].indices for some in cut]
    return sum(len(np.union1d(some, own)) for some, own in zip(cut, rows, strict=True))


def test_acquaintances_come_together():
    weights, everyone = ring(400, shuffled=True), np.arange(400)
    order = by_acquaintance(weights, everyone, 40)
    assert sorted(order.tolist()) == everyone.tolist()
    assert read_in_parts(weights, order, 40) < 1.5 * 400
    assert read_in_parts(weights, everyone, 40) > 2 * 400
    some = everyone[::3]
    assert sorted(by_acquaintance(weights, some, 40).tolist()) == some.tolist()


def test_a_row_over_everybody_does_not_spoil_the_order():
    near = ring(400, shuffled=True)
    hub = np.full((1, 400), 1 / 400)
    weights = SharedRows(
        csr_array(np.vstack([near.rows.toarray(), hub])),
        np.where(np.arange(400) % 9, near.which, 400),
    )
    rest = np.nonzero(weights.which != 400)[0]
    order = [k for k in by_acquaintance(weights, np.arange(400), 40) if k in set(rest.tolist())]
    assert read_in_parts(weights, np.array(order), 40) < 1.6 * len(order)


def test_one_row_over_ten_thousand_is_ordered_and_compared_as_one_row():
    """Expanded for every client it would be a matrix of 10,000 x 10,000."""
    n = 10_000
    shares = torch.full((n,), 1 / n, dtype=torch.float64)
    weights, other = one_row(shares), one_row(shares)
    tracemalloc.start()
    try:
        order = by_acquaintance(weights, np.arange(n), 40)
        assert same_rows(weights, other)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sorted(order.tolist()) == list(range(n))
    assert peak < 20e6
