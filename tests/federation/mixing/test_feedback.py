"""Feedback against the dense recursion in which nothing is cut, through whole rounds."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from atlas.federation.adapters.adapter import Adapter
from atlas.federation.adapters.cohort import InMemory
from atlas.federation.mixing import feedback as remembering
from atlas.federation.mixing import parts
from atlas.federation.server import ServerState
from atlas.federation.state.mapped import OnDisk
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


def test_a_client_that_holds_something_else_is_told_and_forgotten():
    def other(client, number, adapter):
        wrong = client == "c001" and number == 2
        return Adapter({k: v * 1.01 for k, v in adapter.items()}) if wrong else adapter

    reasons = {
        1.0: "the client does not hold what was sent",
        0.5: "the client does not hold a share of 0.5 of what was sent, to the bit",
        0.0: "the client took nothing, but does not hold what it trained",
    }
    for share, why in reasons.items():
        told = {"hold": other, "shares": lambda c, r, s=share: 1.0 if r == 1 else s}
        states = []
        for state, _, _ in play([1, 2, 4, 8], 1.0, 2, relation=even, **told):
            states.append((sizes(state, 1), [dict(entry) for entry in state.failures]))
        assert min(states[0][0]) > 0 and not states[0][1]
        assert states[1][0] == [0.0, 0.0]
        assert [entry["client"] for entry in states[1][1]] == ["c001"]
        assert states[1][1][0]["reason"] == f"deliver: {why}; what its rank cut off is forgotten"


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_a_refused_client_that_keeps_of_its_own_is_forgotten_and_not_blamed(share):
    told = {"refused": {("c002", 2)}, "relation": even}
    told["shares"] = lambda client, number: 0.5 if number == 1 else share
    *_, (state, _, _) = play([1, 2, 4, 8], 1.0, 2, **told)
    assert not state.failures
    assert [entry["client"] for entry in state.refused] == ["c002"] * 2
    assert "cannot tell what the client holds" in state.refused[1]["reason"]
    assert sizes(state, 2) == [0.0, 0.0]
    assert min(sizes(state, 0)) > 0


def sizes(state, row):
    """How much is remembered of a client, by module."""
    return [float(one[row].abs().max()) for one in dense(state.residuals["law"])]


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_of_a_client_that_does_not_say_what_it_holds_nothing_is_remembered(strength):
    """Its answer is lost, or names an offer that there was not."""

    def odd(client, number):
        return 7 if (client, number) == ("c003", 3) else 0

    told = {"relation": even, "lost": {("c001", 2)}, "picks": odd}
    for state, clients, _ in play([1, 2, 4, 8], strength, 4, **told):
        gone = {2: 1, 3: 3}.get(clients.number)
        for row in range(4):
            assert (min(sizes(state, row)) > 0) == (row != gone)
        failures = [(entry["round"], entry["client"]) for entry in state.failures]
        assert failures == [(2, "c001"), (3, "c003")][: clients.number - 1]
    assert "forgotten" in state.failures[1]["reason"]
    assert gap(dense(state.cohorts["law"]), dense(clients.held)) < 1e-12


def test_of_other_bits_in_a_part_the_servers_own_are_the_best_guess():
    def other(client, number, adapter):
        return Adapter({k: v * (1 + 1e-12) for k, v in adapter.items()})

    told = {"relation": even, "hold": other, "shares": lambda client, number: 0.5}
    for state, clients, _ in play([1, 2, 4, 8], 1.0, 2, **told):
        assert len(state.failures) == 4 * clients.number
        assert gap(dense(state.cohorts["law"]), dense(clients.held)) < 1e-10
        assert all(sizes(state, row) == [0.0, 0.0] for row in range(4))


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
