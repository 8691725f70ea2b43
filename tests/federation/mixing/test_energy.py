"""Energy by rank band against dense singular values, and who is said to use little of its ranks."""

from dataclasses import replace

import pytest
import torch

from atlas.federation.mixing.apply import mix_cohort
from atlas.federation.mixing.deliver import Mixing, describe_mixing
from atlas.federation.mixing.energy import cohort_bands, energy_shares, unused_ranks
from atlas.federation.strategies.base import Strategy, identity
from tests.federation.mixing.recursion import dense, make_cohort

RANKS = [1, 2, 4, 8]
EVEN = torch.full((4, 4), 0.25, dtype=torch.float64)


def test_shares_are_those_of_dense_singular_values():
    cohort = make_cohort(RANKS)
    edges = cohort_bands(cohort)
    assert edges == (1, 2, 4, 7, 8)
    for k, found in enumerate(energy_shares(cohort)):
        squares = [torch.linalg.svdvals(change[k]).square() for change in dense(cohort)]
        wanted, low = [], 0
        for high in edges:
            wanted.append(sum(float(one[low:high].sum()) for one in squares))
            low = high
        assert found.tolist() == pytest.approx([w / sum(wanted) for w in wanted], abs=1e-12)


def described(cohort, **more):
    mixed = [mix_cohort(cohort, EVEN, space="product", heads="mix")]
    mixing = Mixing(cohort, [EVEN], mixed, None)
    return describe_mixing(mixing, {}, Strategy(name="law", relation=identity, **more))


def test_events_tell_energy_where_ranks_differ():
    entry = described(make_cohort(RANKS))
    told = entry["energy"]
    assert told["bands"] == [1, 2, 4, 7, 8]
    assert [sum(row) for row in told["trained"]] == pytest.approx([1.0] * 4)
    # The smallest client has one direction, before and after.
    assert told["trained"][0] == told["mixed"][0] == pytest.approx([1, 0, 0, 0, 0])
    assert told["mixed"][3] != pytest.approx(told["trained"][3])
    even = make_cohort([4] * 4)
    even = replace(even, members=tuple(replace(m, ranks=(4, 4)) for m in even.members))
    assert "energy" not in described(even)
    assert "energy" not in described(make_cohort(RANKS), sends="nothing")


def test_most_of_a_rank_unused_is_said_and_a_used_one_is_not():
    cohort = make_cohort(RANKS)
    assert unused_ranks(cohort) == {}
    tensors = dict(cohort.tensors)
    for i in range(2):
        name = cohort.layout.parts(i)[1]
        tensors[name] = tensors[name].clone()
        tensors[name][3, :, 2:] *= 1e-3
    found = unused_ranks(replace(cohort, tensors=tensors))
    assert list(found) == ["c003"]
    assert found["c003"]["rank"] == 8 and found["c003"]["used"] == 2
    assert 0 < found["c003"]["beyond"] < 1e-4
    zero = {name: torch.zeros_like(value) for name, value in tensors.items()}
    assert unused_ranks(replace(cohort, tensors=zero)) == {}


def with_directions(ranks, counts):
    """A cohort in which clients use so many directions of their ranks, in both modules."""
    cohort = make_cohort(ranks)
    tensors = dict(cohort.tensors)
    for i in range(2):
        name = cohort.layout.parts(i)[1]
        tensors[name] = tensors[name].clone()
        for row, count in enumerate(counts):
            tensors[name][row, :, count:] *= 1e-3
    return replace(cohort, tensors=tensors)


@pytest.mark.parametrize("ranks", [[8, 8, 8], [8, 7, 6]])
def test_equal_and_near_ranks_are_counted_one_by_one(ranks):
    assert unused_ranks(make_cohort(ranks)) == {}
    found = unused_ranks(with_directions(ranks, [1, 2, 5]))
    assert {client: (told["rank"], told["used"]) for client, told in found.items()} == {
        "c000": (ranks[0], 1),
        "c001": (ranks[1], 2),
    }
    assert "c000" not in unused_ranks(with_directions([8, 8], [4, 1]))  # half of them is enough


def test_what_is_unused_is_told_by_dense_singular_values():
    cohort = with_directions([8, 8], [3, 8])
    squares = [torch.linalg.svdvals(change[0]).square() for change in dense(cohort)]
    rest = [float(sum(one[k:].sum() for one in squares)) for k in range(9)]
    used = next(k for k in range(9) if rest[k] < 0.01 * rest[0])
    (told,) = unused_ranks(cohort).values()
    assert told == {"rank": 8, "used": used, "beyond": pytest.approx(rest[used] / rest[0])}
