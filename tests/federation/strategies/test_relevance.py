"""Relevance against double loops in float64, its sparse twin, and planted groups and garbage."""

import math
from dataclasses import replace

import pytest
import torch

from atlas.config.plan import RelevanceSettings
from atlas.federation.adapters.cohort import initial_cohort
from atlas.federation.mixing.apply import relate, view_of
from atlas.federation.server import RunPlan, ServerState
from atlas.federation.strategies.base import View, find_strategy
from atlas.federation.strategies.relations import (
    relevance,
)
from atlas.federation.strategies.relations_sparse import (
    scaled_relevance,
    sparse_relevance,
)
from atlas.ops.graph.sparse_rows import LARGEST_DENSE, SharedRows
from atlas.ops.metrics import auc
from tests.federation.strategies.test_relations import LAYOUT, Member, random_rows

SETTINGS = [
    {},
    {"centre": False},
    {"temperature": 0.5},
    {"nearest": 3},
    {"nearest": 1, "temperature": 0.05},
    {"nearest": 500, "centre": False},
]


def make_view(signatures, **settings):
    n = len(signatures)
    return View(
        clients=tuple(f"c{i}" for i in range(n)),
        examples=torch.ones(n, dtype=torch.float64),
        tasks=("t",) * n,
        round=1,
        signatures=signatures,
        relevance=RelevanceSettings(**settings),
    )


def drawn(n, unknown=()):
    """Signatures of unequal lengths, some unknown."""
    rows = random_rows(4, n, 9) * torch.linspace(0.1, 3.0, n, dtype=torch.float64)[:, None]
    for k in unknown:
        rows[k] = 0.0
    return rows


def naive(view):
    """As the documentation says it, entry by entry."""
    settings, n = view.relevance, len(view.clients)
    rows = [[float(v) for v in row] for row in view.signatures]
    size = [math.sqrt(sum(v * v for v in row)) for row in rows]
    known = [k for k in range(n) if size[k] > 0]
    rows = [[v / size[k] for v in row] if size[k] else row for k, row in enumerate(rows)]
    if settings.centre and len(known) >= 3:
        mean = [sum(rows[k][i] for k in known) / len(known) for i in range(len(rows[0]))]
        for k in known:
            rows[k] = [v - m for v, m in zip(rows[k], mean, strict=True)]
    size = [math.sqrt(sum(v * v for v in row)) for row in rows]
    w = torch.zeros(n, n, dtype=torch.float64)
    for k in range(n):
        others = [other for other in known if other != k]
        if k not in known or not others:
            w[k, k] = 1.0
            continue
        cos = {}
        for j in others:
            product = sum(a * b for a, b in zip(rows[k], rows[j], strict=True))
            cos[j] = product / size[k] / size[j]
        near = sorted(others, key=cos.get, reverse=True)[: settings.nearest]
        total = sum(math.exp(cos[j] / settings.temperature) for j in near)
        for j in near:
            w[k, j] = math.exp(cos[j] / settings.temperature) / total
    return w


@pytest.mark.parametrize(("n", "unknown"), [(1, ()), (2, ()), (2, (1,)), (3, ()), (4, (0, 2)),
                                            (9, (3,)), (30, (0, 7))])  # fmt: skip
def test_relevance_is_a_softmax_of_cosines_over_the_others(n, unknown):
    for settings in SETTINGS:
        view = make_view(drawn(n, unknown), **settings)
        wanted = naive(view)
        assert torch.allclose(relevance(view), wanted, atol=1e-12, rtol=0), settings
        assert torch.allclose(sparse_relevance(view).dense(), wanted, atol=1e-12, rtol=0), settings


def test_nobody_learns_from_the_unknown_and_they_keep_their_own():
    weights = relevance(make_view(drawn(8, (2, 5))))
    for k in (2, 5):
        assert weights[k, k] == 1.0 and weights[:, k].sum() == 1.0
    assert not weights.diagonal()[[0, 1, 3, 4, 6, 7]].any()


def test_clients_that_are_all_alike_have_no_direction_to_follow():
    view = make_view(torch.ones(5, 4, dtype=torch.float64))
    assert torch.equal(relevance(view), torch.eye(5).double())
    assert torch.equal(sparse_relevance(view).dense(), torch.eye(5).double())
    plain = replace(view, relevance=RelevanceSettings(centre=False))
    assert torch.allclose(relevance(plain), (torch.ones(5, 5) - torch.eye(5)).double() / 4)


def test_many_clients_have_sparse_rows_and_no_matrix_of_all_pairs():
    few, many = make_view(drawn(LARGEST_DENSE)), make_view(drawn(LARGEST_DENSE + 1))
    assert isinstance(scaled_relevance(few), torch.Tensor)
    assert isinstance(scaled_relevance(many), SharedRows)
    sizes = [sparse_relevance(make_view(drawn(n))).rows.nnz for n in (400, 800)]
    assert sizes[1] == 2 * sizes[0] == 2 * 400 * RelevanceSettings().nearest


def planted(agree, groups=3, size=3, seed=0):
    """Groups of clients whose signatures have cosine `agree`, and one unlike everybody."""
    n, eye = groups * size + 1, torch.eye(60, dtype=torch.float64)
    rows = torch.stack([
        math.sqrt(agree) * eye[k // size] + math.sqrt(1 - agree) * eye[groups + k]
        for k in range(n - 1)
    ] + [eye[-1]])  # fmt: skip
    turned = torch.linalg.qr(random_rows(seed, 60, 60))[0]
    return rows @ turned * torch.linspace(0.2, 2.0, n, dtype=torch.float64)[:, None]


def shares(view, groups=3, size=3):
    """Relevance of same-group pairs and others, and what grouped clients give to the last one."""
    weights, n = relevance(view), groups * size
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    same = [float(weights[a, b]) for a, b in pairs if a // size == b // size]
    other = [float(weights[a, b]) for a, b in pairs if a // size != b // size]
    return same, other, float(weights[:n, n].max())


@pytest.mark.parametrize(("agree", "groups"), [(0.5, 3), (0.7, 3), (0.7, 9), (1.0, 3), (1.0, 9)])
def test_garbage_gets_next_to_nothing_where_half_of_a_signature_is_its_groups(agree, groups):
    """What the temperature of the settings is chosen by; that of RELA, 0.5, is too warm."""
    view = make_view(planted(agree, groups))
    same, other, garbage = shares(view, groups)
    assert auc(same, other) == 1.0
    allowed = 0.2 / (3 * groups)
    assert garbage <= allowed
    warm = replace(view, relevance=RelevanceSettings(temperature=0.5))
    assert shares(warm, groups)[2] > allowed


def test_what_all_have_in_common_hides_groups_unless_it_is_taken_off():
    common = torch.zeros(60, dtype=torch.float64)
    common[0] = 5.0
    rows = planted(0.7)
    rows = rows / rows.norm(dim=1, keepdim=True) + common
    centred, whole = (shares(make_view(rows, centre=flag))[0] for flag in (True, False))
    assert min(centred) > 0.4 and max(whole) < 0.2


def test_a_round_knows_signatures_by_client_and_waits_until_there_are_some():
    members = [Member(f"c{i}", (2, 2), ("a", "b")) for i in range(4)]
    cohort = initial_cohort(LAYOUT, members, 0, dtype=torch.float64)
    tasks = dict.fromkeys(cohort.clients, "t")
    settings = RelevanceSettings(temperature=0.3)
    plan = RunPlan(find_strategy("simgrad"), tasks, 3, 0, relevance=settings)
    state = ServerState({"law": cohort}, examples=dict.fromkeys(cohort.clients, 10))
    everybody = set(cohort.clients)
    (start,) = relate(plan, view_of(plan, state, cohort, 1), everybody)
    assert torch.equal(start, torch.eye(4).double())
    rows = drawn(4)
    state.signatures = {f"c{i}": rows[i] for i in (3, 0, 1)}
    view = view_of(plan, state, cohort, 2)
    assert torch.equal(view.signatures[2], torch.zeros(9).double())
    assert torch.equal(view.signatures[3], rows[3])
    (found,) = relate(plan, view, everybody)
    rows[2] = 0.0
    wanted = naive(make_view(rows, temperature=0.3))
    assert torch.allclose(found, wanted, atol=1e-12)
    part = view_of(plan, state, cohort.select(["c3", "c1"]), 2)
    assert torch.equal(part.signatures, rows[[3, 1]])
