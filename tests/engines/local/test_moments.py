"""Optimiser moments that clients keep: beside their adapters, and only the asked ones touched."""

import pytest
import torch

from atlas.engines.local.moments import KeptMoments
from atlas.federation.prepare import regraded
from atlas.federation.state.mapped import DiskCohort
from tests.federation.state.test_mapped import on_disk
from tests.laws.test_many_clients import make_cohort

SOME = ["c004", "c001"]


@pytest.fixture(params=["memory", "disk"])
def arm(request):
    cohort = make_cohort(9)
    return on_disk(cohort) if request.param == "disk" else cohort


def drawn(arm, count, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return {
        name: tuple(
            torch.randn(count, *value.shape[1:], generator=draw, dtype=value.dtype)
            for _ in range(2)
        )
        for name, value in arm.tensors.items()
    }


def test_fresh_moments_are_zero_and_lie_where_the_arm_does(arm):
    kept = KeptMoments.fresh(arm)
    for one in (kept.first, kept.second):
        assert isinstance(one, DiskCohort) == isinstance(arm, DiskCohort)
        assert not any(value.any() for value in one.tensors.values())
        assert one.tensors.keys() == arm.tensors.keys()
    assert not kept.made.any()
    assert kept.state("c002") is None


def test_only_the_rows_of_asked_clients_are_written(arm):
    kept, given = KeptMoments.fresh(arm), drawn(arm, 2)
    before = {name: value.data_ptr() for name, value in kept.first.tensors.items()}
    kept.write(SOME, given, torch.tensor([3, 5]))
    assert {n: v.data_ptr() for n, v in kept.first.tensors.items()} == before, "no new tensors"
    moments, made = kept.select(SOME)
    assert made.tolist() == [3, 5]
    for name, pair in given.items():
        assert all(torch.equal(*both) for both in zip(moments[name], pair, strict=True))
        others = [row for client, row in arm.places.items() if client not in SOME]
        assert not kept.first.tensors[name][others].any()
    assert kept.made.tolist() == [0, 5, 0, 0, 3, 0, 0, 0, 0]


def test_what_a_client_saves_comes_back_and_nothing_saved_is_fresh(arm):
    kept, other = KeptMoments.fresh(arm), KeptMoments.fresh(arm)
    kept.write(SOME, drawn(arm, 2), torch.tensor([3, 5]))
    moments, made = kept.state("c001")
    first, second = ({name: pair[i] for name, pair in moments.items()} for i in (0, 1))
    other.restore("c001", first, second, made)
    for name in first:
        assert torch.equal(kept.first.tensors[name][1], other.first.tensors[name][1])
        assert torch.equal(kept.second.tensors[name][1], other.second.tensors[name][1])
    assert other.made.tolist() == [0, 5] + [0] * 7
    other.restore("c001", {}, {}, None)
    assert not other.made.any()
    assert not any(value.any() for value in other.first.tensors.values())


def test_others_keep_theirs_when_some_start_again_with_other_ranks(arm):
    kept, given = KeptMoments.fresh(arm), drawn(arm, 9)
    used = {c: arm.take(c) for c in arm.clients}
    for name, pair in given.items():  # padding is zero, as it is after training
        for row, client in enumerate(arm.clients):
            mask = torch.zeros_like(pair[0][row])
            mask[tuple(slice(0, size) for size in used[client][name].shape)] = 1.0
            for one in pair:
                one[row] *= mask
    kept.write(arm.clients, given, torch.arange(1, 10))
    start = regraded(arm, {"c002": (6, 5)}, 0)
    found = kept.restarted(start, ["c002"])
    assert found.made.tolist() == [1, 2, 0, 4, 5, 6, 7, 8, 9]
    for name, value in found.first.tensors.items():
        assert value.shape == start.tensors[name].shape
        assert not value[2].any()
    for client in ("c000", "c008"):
        before, after = kept.second.take(client), found.second.take(client)
        assert all(torch.equal(before[name], after[name]) for name in before)
