"""Feedback against the dense recursion in which nothing is cut, through whole rounds."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from atlas.config.plan import MixingSettings
from atlas.federation.adapters.cohort import InMemory
from atlas.federation.mixing import feedback as remembering
from atlas.federation.mixing import parts
from atlas.federation.mixing.apply import mix_cohort
from atlas.federation.mixing.feedback import start_cutting
from atlas.federation.server import ServerState
from atlas.federation.state.mapped import OnDisk
from atlas.federation.strategies.base import Strategy, identity
from atlas.ops.graph.sparse_rows import LARGEST_DENSE
from tests.federation.mixing.recursion import (
    FULL,
    MODULES,
    dense,
    even,
    follow,
    gap,
    make_cohort,
    play,
    put_dense,
    sizes,
    some_shares,
)
from tests.ops.lowrank.spectra import best, beyond

CASES = {
    "unequal": [1, 2, 4, 8],
    "two": [2, 6],
    "thirty": [1 + 2 * (k % 4) for k in range(30)],
    "sparse": [1 + k % 5 for k in range(LARGEST_DENSE + 6)],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("feedback", [0.5, 1.0])
def test_rounds_are_the_dense_recursion(case, feedback):
    ranks = CASES[case]
    for state, _, _, twin in follow(ranks, feedback, rounds=3, shares=some_shares):
        assert gap(dense(state.cohorts["law"]), twin.held) < 1e-6
        assert gap(dense(state.residuals["law"]), twin.left) < 1e-6
        if feedback == 1:
            both = zip(dense(state.cohorts["law"]), dense(state.residuals["law"]), strict=True)
            assert gap([h + e for h, e in both], twin.uncut) < 1e-6


@pytest.mark.parametrize("ranks", [[1, 2, 3, 2], [2] * 8, [1 + k % 2 for k in range(70)]])
@pytest.mark.parametrize("size", [1 << 24, 1 << 13])
def test_what_is_remembered_is_the_best_of_the_servers_rank(ranks, size, monkeypatch):
    """Mixtures have more directions than a client and its residual together; some take parts."""
    monkeypatch.setattr(parts, "PART_BYTES", size)
    monkeypatch.setattr(remembering, "WHOLE", 1000)
    told = {"shares": some_shares, "server_rank": 2}
    for state, _, events, twin in follow(ranks, 0.7, rounds=3, **told):
        assert gap(dense(state.cohorts["law"]), twin.held) < 1e-6
        assert gap(dense(state.residuals["law"]), twin.left) < 1e-6
        entry = next(fields for event, fields in events if event == "mixed")["feedback"]
        took = twin.energy[twin.energy[:, 0] > 0]
        for key, column in (("residual", 1), ("lost", 2)):
            wanted = took[:, column] / took[:, 0]
            assert wanted.max() > 0.01
            assert entry[key]["worst"] == pytest.approx(float(wanted.max()))
            assert entry[key]["mean"] == pytest.approx(float(wanted.mean()))


@pytest.mark.parametrize("ranks", [CASES["unequal"], CASES["sparse"]], ids=["few", "sparse"])
def test_of_several_offers_the_one_that_was_picked_has_the_residual(ranks):
    """Four W, of which clients pick by turns; some take a part."""

    def picks(client, number):
        return (int(client[1:]) + number) % 4

    told = {"picks": picks, "shares": some_shares, "server_rank": 3}
    for state, _, events, twin in follow(ranks, 0.7, 3, **told):
        assert gap(dense(state.cohorts["law"]), twin.held) < 1e-6
        assert gap(dense(state.residuals["law"]), twin.left) < 1e-6
        picked = [fields["pick"] for event, fields in events if event == "delivered"]
        assert len(set(picked)) > 2


@pytest.mark.parametrize("absent_rule", ["restrict", "last"])
def test_of_modules_that_are_shut_f_of_the_residual_is_kept(absent_rule):
    """Half of the modules travel: W is another in each, and clients differ in which."""
    shut, absent = 0, {("c001", 2), ("c003", 3)}

    def shares(client, number):
        # Of what is open again the server lacks the client's own, if that stays away.
        return 1.0 if (client, number) in absent else some_shares(client, number)

    told = {"budget": 0.5, "absent_rule": absent_rule, "server_rank": 3}
    told |= {"absent": absent, "shares": shares}
    for state, _, events, twin in follow([2, 4, 8, 4, 6], 0.7, 5, **told):
        assert gap(dense(state.cohorts["law"]), twin.held) < 1e-6
        assert gap(dense(state.residuals["law"]), twin.left) < 1e-6
        opened = next(fields["open"] for event, fields in events if event == "routed")
        shut += sum(not is_open for own in opened.values() for is_open in own)
    assert shut and min(sizes(state, 0)) > 0
    assert len(state.failures) == len(absent) and not state.refused


def test_the_default_settings_are_mixing_without_a_cutting_bit_for_bit():
    ranks = [1, 2, 4, 8]
    (state, clients, events), *_ = play(ranks, 0.0, 1, relation=even)
    assert start_cutting(MixingSettings(), Strategy("law", identity), state, "law") is None
    trained = make_cohort(ranks).put(clients.sent)
    weights = torch.from_numpy(even(4, 1))
    mixed = mix_cohort(trained, weights, space="product", heads="mix")
    assert all(
        torch.equal(clients.held.tensors[name], mixed.tensors[name]) for name in mixed.tensors
    )
    assert not state.residuals
    assert "feedback" not in next(fields for event, fields in events if event == "mixed")


@pytest.mark.parametrize("absent_rule", ["restrict", "last"])
def test_absent_and_refused_clients_count_as_what_they_hold(absent_rule):
    """From the second round on everybody holds a mixture, so that it is not what was last sent."""
    ranks = [1, 2, 4, 8, 3]
    absent = {("c001", 2), ("c001", 3), ("c003", 3), ("c004", 4)}
    told = {"absent": absent, "refused": {("c002", 3)}, "absent_rule": absent_rule}
    for number, (state, _, events, twin) in enumerate(follow(ranks, 1.0, 5, **told), 1):
        assert gap(dense(state.cohorts["law"]), twin.held) < 1e-6
        assert gap(dense(state.residuals["law"]), twin.left) < 1e-6
        assert ("refused" in [e for e, _ in events]) == (number == 3)


def test_large_rows_are_summed_and_give_the_same(monkeypatch):
    """Rows over more clients than a part: everybody learns from everybody, a few at a time."""
    ranks = [1 + k % 3 for k in range(LARGEST_DENSE + 6)]

    def mean(n, number):
        return np.full((n, n), 1 / n)

    found = []
    for size in (1 << 24, 1 << 13):
        monkeypatch.setattr(parts, "PART_BYTES", size)
        for place in (InMemory(), OnDisk()):
            *_, (state, _, _) = play(
                ranks, 0.7, 3, place=place, relation=mean, shares=some_shares, server_rank=4
            )
            assert not state.failures
            found.append((state.cohorts["law"], state.residuals["law"]))
    assert parts.part_size(found[0][0]) < len(ranks)
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert gap(dense(one), dense(two)) < 1e-6


@pytest.mark.parametrize("case", ["unequal", "sparse"])
def test_on_disk_as_in_memory_bit_for_bit(case):
    ends = []
    for place in (InMemory(), OnDisk()):
        *_, (state, _, _) = play(
            CASES[case], 0.5, 3, place=place, shares=some_shares, server_rank=3
        )
        ends.append([state.cohorts["law"].tensors, state.residuals["law"].tensors])
    for one, two in zip(*ends, strict=True):
        assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("server_rank", [None, FULL])
def test_without_training_energy_stays_with_feedback_and_collapses_without(server_rank):
    shares = {}
    for feedback in (0.0, 0.5, 1.0):
        told = {"relation": even, "step": 0.0, "server_rank": server_rank}
        rounds = play([1, 2, 4, 8], feedback, 8, **told)
        shares[feedback] = [beyond(dense(clients.held)[0][3], 1) for _, clients, _ in rounds]
    assert shares[1.0] == pytest.approx([shares[1.0][0]] * 8, abs=1e-6)
    assert shares[0.0] == sorted(shares[0.0], reverse=True)
    assert shares[0.0][7] < 0.2 * shares[0.0][0]
    assert shares[0.0][7] < shares[0.5][7] < shares[1.0][7]


def test_consensus_of_the_servers_rank_is_a_fixed_point():
    """Everybody's share of one change of rank 6, of which the small ones cannot hold all."""
    ranks, target = [2, 3, 8, 4], make_cohort([6] * 4)
    wanted = [one[:1].expand(4, -1, -1) for one in dense(target)]
    cohort = make_cohort(ranks)
    held = [[best(wanted[i][k], cohort.members[k].ranks[i]) for k in range(4)] for i in MODULES]
    tensors, left = dict(cohort.tensors), dict(make_cohort([8] * 4).tensors)
    start = replace(make_cohort([8] * 4).without_heads(), tensors={})
    members = tuple(replace(m, ranks=(8, 8)) for m in start.members)
    start = replace(start, members=members, tensors=left)
    for i in MODULES:
        for k in range(4):
            put_dense(tensors, cohort, i, k, held[i][k])
            put_dense(left, start, i, k, wanted[i][k] - held[i][k])
    del left["head/classifier.weight"], left["head/classifier.bias"]
    state = ServerState({"law": replace(cohort, tensors=tensors)}, {"law": start})
    told = {"state": state, "step": 0.0, "server_rank": 8}
    for got, clients, events in play(ranks, 1.0, 3, begin=replace(cohort, tensors=tensors), **told):
        assert gap(dense(clients.held), [torch.stack(one) for one in held]) < 1e-6
        both = zip(dense(got.cohorts["law"]), dense(got.residuals["law"]), strict=True)
        assert gap([h + e for h, e in both], wanted) < 1e-6
        mixed = next(fields for event, fields in events if event == "mixed")
        assert mixed["feedback"]["lost"]["worst"] < 1e-10


def test_what_the_servers_rank_cuts_away_is_told():
    """Energies against dense ones, in a first round of which nobody keeps its own."""
    *_, (state, clients, events) = play([1, 2, 4, 8], 1.0, 1, relation=even, server_rank=2)
    trained = make_cohort([1, 2, 4, 8]).put(clients.sent)
    lost, residual, whole = (torch.zeros(4, dtype=torch.float64) for _ in range(3))
    for i, changes in enumerate(dense(trained)):
        energy = torch.linalg.svdvals(changes.mean(0)).square()
        whole += energy.sum()
        for k, member in enumerate(trained.members):
            residual[k] += energy[member.ranks[i] :].sum()
            lost[k] += energy[member.ranks[i] + 2 :].sum()
    told = next(fields for event, fields in events if event == "mixed")["feedback"]
    assert told["strength"] == 1.0
    assert told["residual"]["worst"] == pytest.approx(float((residual / whole).max()))
    assert told["residual"]["mean"] == pytest.approx(float((residual / whole).mean()))
    assert told["lost"]["mean"] == pytest.approx(float((lost / whole).mean()))
    for one in state.residuals["law"].members:
        assert one.ranks == (2, 2)


def test_a_row_of_ones_own_delivers_nothing_and_keeps_f_of_the_residual():
    def first_even_then_alone(n, number):
        return even(n, number) if number == 1 else np.eye(n)

    told = {"relation": first_even_then_alone, "step": 0.0}
    held, left = {}, {}
    for state, clients, events in play([1, 2, 4, 8], 0.5, 3, **told):
        held[clients.number] = clients.held.tensors
        left[clients.number] = dense(state.residuals["law"])
        accepts = [fields["accept"] for event, fields in events if event == "delivered"]
        assert accepts == [1.0 if clients.number == 1 else 0.0] * 4
    assert all(torch.equal(held[1][name], held[3][name]) for name in held[1])
    assert gap(left[3], [one / 4 for one in left[1]]) < 1e-12


def test_own_directions_have_residuals_too():
    """Whatever is kept of a mixture, what is held and what is left are the mixture."""
    for cut in ("leading", "own"):
        *_, (state, _, _) = play([1, 2, 4, 8], 1.0, 3, cut=cut, step=0.0, relation=even)
        both = zip(dense(state.cohorts["law"]), dense(state.residuals["law"]), strict=True)
        start = [
            one.mean(0, keepdim=True).expand(4, -1, -1) for one in dense(make_cohort([1, 2, 4, 8]))
        ]
        assert gap([h + e for h, e in both], start) < 1e-6


def test_single_precision_keeps_what_single_precision_can():
    told = {"relation": even, "step": 0.0, "dtype": torch.float32}
    rounds = [clients.held for _, clients, _ in play([1, 2, 4, 8], 1.0, 6, **told)]
    first, last = (beyond(dense(held)[0][3], 1) for held in (rounds[0], rounds[-1]))
    assert last == pytest.approx(first, abs=1e-5)
