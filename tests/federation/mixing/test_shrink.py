"""Estimated steps on adapters: against dense twins, few clients and many, absent and alone."""

from dataclasses import replace

import pytest
import scipy
import torch
from pydantic import ValidationError

from atlas.federation.exchange.contents import FitReply
from atlas.federation.exchange.message import Message
from atlas.federation.mixing.deliver import Taken
from atlas.federation.mixing.distance import squared_deviations, squared_gaps, squared_head_gaps
from atlas.federation.mixing.shrink import (
    MOST_COMPARED,
    PartNoise,
    learn,
    near_of,
    own_shares,
    read_noise,
    remember_kept,
    taken_by,
)
from atlas.ops.graph.shrink import Deviation, Neighbour, RoundNoise, compared, trained
from atlas.ops.graph.sparse_rows import share_rows
from atlas.ops.lowrank.factors import delta
from tests.laws.test_many_clients import make_cohort


def even(n, step=0.75):
    shares = (1 - torch.eye(n, dtype=torch.float64)) / (n - 1)
    return (1 - step) * torch.eye(n, dtype=torch.float64) + step * shares


def dense(cohort, k):
    layers = [cohort.layer(i) for i in range(len(cohort.layout.modules))]
    return [delta(one.a[k], one.b[k], float(one.scales[k])) for one in layers]


@pytest.mark.parametrize("n", [2, 30])
def test_gaps_are_those_of_dense_changes_and_heads_of_one_label_set(n):
    cohort = make_cohort(n)
    one, two = torch.triu_indices(n, n, 1)
    bodies, heads = squared_gaps(cohort, one, two), squared_head_gaps(cohort, one, two)
    for place, (i, j) in enumerate(zip(one.tolist(), two.tolist(), strict=True)):
        pairs = zip(dense(cohort, i), dense(cohort, j), strict=True)
        assert float(bodies[place]) == pytest.approx(
            sum(float((a - b).square().sum()) for a, b in pairs)
        )
        mine, theirs = (cohort.take(cohort.clients[k]) for k in (i, j))
        same = cohort.members[i].label_set == cohort.members[j].label_set
        names = [name for name in mine if name.startswith("head/")]
        wanted = sum(float((mine[k] - theirs[k]).square().sum()) for k in names) if same else 0.0
        assert float(heads[place]) == pytest.approx(wanted)


@pytest.mark.parametrize("n", [2, 3, 30])
def test_what_is_learned_is_what_a_plain_loop_learns(n):
    cohort, known = make_cohort(n), {}
    noises = {c: PartNoise(1.0 + i, 0.5 * i, 2.0) for i, c in enumerate(cohort.clients)}
    near = near_of(cohort, even(n), noises)
    found = learn(known, cohort, near, noises)
    sets = [member.label_set for member in cohort.members]
    rounds = []
    for k in range(n):
        alike = sum(sets[j] == sets[k] for j in range(n) if j != k) / (n - 1)
        shown = min(1.0, MOST_COMPARED / (n - 1))
        if shown == 1.0:
            rounds.append(RoundNoise(1.0 + k + 0.5 * k * alike, 2.0))
    if n > MOST_COMPARED + 1:
        assert all(len(others) == MOST_COMPARED for others in near.values())
        return
    moved = [trained(Deviation(), noise) for noise in rounds]
    squares = squared_deviations(cohort, near)
    for k, client in enumerate(cohort.clients):
        others = [Neighbour(1 / (n - 1), moved[j]) for j in range(n) if j != k]
        square = dense_square(cohort, k)
        assert squares[client] == pytest.approx(square)
        wanted = compared(moved[k], rounds[k], others, square)
        assert found[client].c == pytest.approx(wanted.c)
        assert found[client].spread == pytest.approx(wanted.spread)


def dense_square(cohort, k, shares=None):
    """How far a client is from the mean of others (all alike, or by shares): all is formed."""
    n = len(cohort.clients)
    if shares is None:
        shares = {j: 1 / (n - 1) for j in range(n) if j != k}
    square = 0.0
    for i, own in enumerate(dense(cohort, k)):
        mean = sum(p * dense(cohort, j)[i] for j, p in shares.items())
        square += float((own - mean).square().sum())
    sets = [member.label_set for member in cohort.members]
    alike = {j: p for j, p in shares.items() if sets[j] == sets[k]}
    total = sum(alike.values())
    taken = {j: cohort.take(cohort.clients[j]) for j in [k, *alike]}
    for name in [name for name in taken[k] if name.startswith("head/")] if alike else []:
        mean = sum(p / total * taken[j][name] for j, p in alike.items())
        square += total * float((taken[k][name] - mean).square().sum())
    return square


@pytest.mark.parametrize("n", [2, 12, 30])
def test_deviations_are_those_from_dense_means_by_unequal_shares(n):
    cohort = make_cohort(n)
    draw = torch.Generator().manual_seed(n)
    graph = torch.rand(n, n, generator=draw, dtype=torch.float64)
    graph /= graph.sum(1, keepdim=True)
    near = near_of(cohort, graph, dict.fromkeys(cohort.clients, 1))
    found = squared_deviations(cohort, near)
    for k in (0, n // 2, n - 1):
        shares = {cohort.places[other]: p for other, p in near[cohort.clients[k]]}
        assert found[cohort.clients[k]] == pytest.approx(dense_square(cohort, k, shares))


def test_sparse_rows_and_the_matrix_have_the_same_neighbours_and_steps():
    cohort = make_cohort(90)
    draw = torch.Generator().manual_seed(0)
    graph = torch.rand(90, 90, generator=draw, dtype=torch.float64)
    graph = torch.where(graph > 0.95, graph, 0.0) + torch.eye(90, dtype=torch.float64)
    graph /= graph.sum(1, keepdim=True)
    rows = share_rows(scipy.sparse.csr_array(graph.numpy()))
    known = {client: 1 for client in cohort.clients if client != "c007"}
    few, many = near_of(cohort, graph, known), near_of(cohort, rows, known)
    assert set(few) == set(many) == set(known)
    for client, pairs in few.items():
        assert [name for name, _ in pairs] == [name for name, _ in many[client]]
        assert all(name not in (client, "c007") for name, _ in pairs)
        assert sum(share for _, share in pairs) == pytest.approx(1.0 if pairs else 0.0)
    steps = torch.linspace(0, 1, 90, dtype=torch.float64)
    assert torch.allclose(taken_by(rows, steps).dense(), taken_by(graph, steps), atol=1e-12)
    assert torch.allclose(own_shares(taken_by(rows, steps)), own_shares(taken_by(graph, steps)))


def test_a_whole_step_leaves_w_as_it_was_to_the_bit():
    weights = even(5)
    assert torch.equal(taken_by(weights, torch.ones(5, dtype=torch.float64)), weights)
    own = taken_by(weights, torch.zeros(5, dtype=torch.float64))
    assert torch.equal(own, torch.eye(5, dtype=torch.float64))


def test_who_is_alone_learns_its_noise_and_nothing_else():
    cohort = make_cohort(3)
    noises = {"c000": PartNoise(1.0, 0.0, 1.0)}
    near = near_of(cohort, even(3), noises)
    assert near == {"c000": []}
    assert learn({}, cohort, near, noises)["c000"] == Deviation(data=1.0)


def test_what_clients_start_with_follows_from_what_they_took():
    known = {
        name: Deviation(kept=0.4) for name in ("took", "half", "none", "failed", "away", "given")
    }
    taken = {
        "took": Taken(0, 1.0),
        "half": Taken(0, 0.5),
        "none": Taken(0, 0.0),
        "given": Taken(0, 1.0),
    }
    remember_kept(known, [*known, "unknown"], ("took", "half", "none", "failed"), taken, held=False)
    kept = {name: one.kept for name, one in known.items()}
    assert kept == pytest.approx(
        {"took": 0.4, "half": 0.7, "none": 1.0, "failed": 1.0, "away": 0.4, "given": 0.0}
    )


@pytest.mark.parametrize(("held", "wanted"), [(False, 0.75 * 0.2 + 0.25), (True, 0.2)])
def test_who_was_away_had_less_than_all_before_it_took_a_part(held, wanted):
    """What is mixed of a client that should keep all of its deviation is the whole, or what it
    holds of it; of one that should keep nothing nothing is left in either."""
    whole = Deviation(kept=0.2, seen=1.0)
    assert whole.share == 1.0
    known = {"keeps": whole, "nothing": Deviation(kept=0.2)}
    remember_kept(known, [*known], (), dict.fromkeys(known, Taken(0, 0.25)), held=held)
    assert known["nothing"].kept == pytest.approx(0.15)
    assert known["keeps"].kept == pytest.approx(wanted)


@pytest.mark.parametrize(
    "facts",
    [
        {"noise": {"adapter": -1.0, "head": 0.0}, "passes": 1.0},
        {"noise": {"adapter": float("nan"), "head": 0.0}, "passes": 1.0},
        {"noise": {"adapter": 1.0}, "passes": 1.0},
        {"noise": [1.0, 2.0], "passes": 1.0},
        {"noise": {"adapter": 1.0, "head": True}, "passes": 1.0},
        {"noise": {"adapter": 1.0, "head": 1.0}, "passes": 0.0},
        {"noise": {"adapter": 1.0, "head": 1.0}},
        {"passes": 1.0},
    ],
)
def test_noise_that_is_no_noise_does_not_pass_the_schema(facts):
    beside = {"examples": 1, "steps": 1, "loss": None}
    with pytest.raises(ValidationError):
        FitReply.model_validate(beside | facts)
    good = {"noise": {"adapter": 1.0, "head": 2.0}, "passes": 0.5}
    FitReply.model_validate(beside | good)
    assert read_noise(Message({}, good)) == PartNoise(1.0, 2.0, 0.5)
    assert read_noise(Message({}, {})) is None


def test_a_client_that_differs_from_its_neighbours_keeps_more():
    cohort = make_cohort(2)
    noises = {client: PartNoise(1e-3, 0.0, 1.0) for client in cohort.clients}
    near = near_of(cohort, even(2, 0.5), noises)
    loud = {client: replace(noise, adapter=1e6) for client, noise in noises.items()}
    assert min(one.share for one in learn({}, cohort, near, noises).values()) > 0.9
    assert max(one.share for one in learn({}, cohort, near, loud).values()) == 0.0
