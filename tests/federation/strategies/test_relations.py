"""From fingerprints to W: every relation against plain double loops in float64."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from atlas.backbones.load import build_tiny
from atlas.build.federation import assemble
from atlas.config.plan import ClusterSettings, FingerprintSettings, RelationSettings
from atlas.federation import strategies
from atlas.federation.adapters.adapter import Layout, Member
from atlas.federation.adapters.cohort import initial_cohort
from atlas.federation.batching.backbone import HeadLayer
from atlas.federation.exchange.message import decode, encode
from atlas.federation.fingerprints.planned import CohortPlan, describe_planned, plan_cohort
from atlas.federation.mixing.apply import ALPHAS, choices, mix_cohort, relate, view_of
from atlas.federation.prepare import describe_plan, make_plan
from atlas.federation.server import RunPlan, ServerState
from atlas.federation.strategies.base import Strategy, View, find_strategy
from atlas.federation.strategies.relations import (
    affinity,
    cluster_mean,
    diffusion,
    neighbours,
    relevance,
)
from atlas.ops.graph.affinity import unit_rows
from atlas.ops.lowrank.mixing import check_mixing, mix_rows
from tests.helpers import make_clients, make_config

assert strategies.__all__
N = 7
CLUSTERS = (0, 1, 0, 2, 1, 0, 1)
LAYOUT = Layout(
    "law", ("m0", "m1"), ((6, 5), (4, 6)), (HeadLayer("classifier", 5, 0, True, "identity"),), 16.0
)


def random_rows(seed=0, n=N, width=4):
    draw = torch.Generator().manual_seed(seed)
    return unit_rows(torch.randn(n, width, generator=draw, dtype=torch.float64))


def make_view(features=None, clusters=None, **settings):
    features = random_rows() if features is None else features
    n = len(features)
    return View(
        clients=tuple(f"c{i}" for i in range(n)),
        examples=torch.arange(1, n + 1, dtype=torch.float64),
        tasks=("t",) * n,
        round=1,
        features=features,
        clusters=clusters,
        settings=RelationSettings(**settings),
    )


def float64(rows):
    return torch.tensor(rows, dtype=torch.float64)


def naive_affinity(view):
    """How alike clients are, number by number."""
    rows, settings = view.features.tolist(), view.settings
    known = [any(row) for row in rows]
    found = []
    for k, one in enumerate(rows):
        found.append([])
        for j, two in enumerate(rows):
            if not (known[k] and known[j]):
                value = float(k == j)
            elif settings.affinity == "rbf":
                gap = sum((a - b) ** 2 for a, b in zip(one, two, strict=True))
                value = math.exp(-settings.alpha * gap / naive_unit(view, k, j))
            elif settings.affinity == "cosine":
                value = min(1.0, max(0.0, sum(a * b for a, b in zip(one, two, strict=True))))
            else:
                value = 1.0
            found[-1].append(value)
    return found


def naive_unit(view, k, j):
    """What alpha counts in between two clients."""
    if view.settings.scale == "unit":
        return 1.0
    among = len(view.clients)
    if view.clusters is not None and view.settings.cross == 0:
        among = max(view.clusters.count(c) for c in view.clusters)
    unit = max(0.15, naive_gap(view.features.tolist()) / max(1.0, math.log(among)))
    if view.settings.scale == "median" or view.clusters is None:
        return unit
    if view.clusters[k] != view.clusters[j]:
        return unit
    pairs = zip(view.features.tolist(), view.clusters, strict=True)
    members = [row for row, cluster in pairs if cluster == view.clusters[k]]
    return max(unit, naive_gap(members)) if sum(map(any, members)) > 1 else unit


def naive_gap(rows):
    """Median over known clients of the squared distance to the nearest."""
    rows, gaps = [row for row in rows if any(row)], []
    for k, one in enumerate(rows):
        others = [two for j, two in enumerate(rows) if j != k]
        each = [sum((a - b) ** 2 for a, b in zip(one, two, strict=True)) for two in others]
        gaps += [min(each)] if each else []
    gap = sorted(gaps)[(len(gaps) - 1) // 2] if gaps else 0.0
    return gap if gap > 1e-12 else 1.0


def naive_edges(view):
    """The graph before its rows are scaled."""
    settings, whole = view.settings, naive_affinity(view)
    n = len(whole)
    cut = [[0.0] * n for _ in range(n)]
    for k in range(n):
        for j in range(n):
            if k == j:
                whole[k][j] = 0.0
            together = view.clusters is None or view.clusters[k] == view.clusters[j]
            cut[k][j] = whole[k][j] * (1.0 if together else settings.cross)
    count = settings.nearest
    if count == "auto":
        count = 3 if view.clusters is None else 8
    if count is not None:
        for row in cut:
            for j in sorted(range(n), key=lambda j, row=row: (-row[j], j))[count:]:
                row[j] = 0.0
    edges = [[(cut[k][j] + cut[j][k]) / 2 for j in range(n)] for k in range(n)]
    if settings.singletons == "joined":
        for k in [k for k in range(n) if not any(edges[k])]:
            other = max(range(n), key=lambda j: (whole[k][j], -j))
            edges[k][other] = edges[other][k] = max(edges[k][other], whole[k][other])
    return edges


def naive_diffusion(view):
    """The lazy walk over that graph."""
    edges = naive_edges(view)
    weights = []
    for k, row in enumerate(edges):
        total = sum(row)
        shares = (
            [value / total for value in row] if total else [float(j == k) for j in range(len(row))]
        )
        eta = view.settings.eta
        if eta == "even":
            eta = 1 / (1 + sum(share**2 for share in shares))
        together = [
            view.clusters is None or own == view.clusters[k] for own in view.clusters or row
        ]
        if any(row) and not any(share for share, own in zip(row, together, strict=True) if own):
            eta *= view.settings.cross or 1.0  # of edges that were added on purpose nothing is lost
        weights.append([(1 - eta) * (j == k) + eta * share for j, share in enumerate(shares)])
    return float64(weights)


@pytest.mark.parametrize("kind", ["rbf", "cosine", "uniform"])
@pytest.mark.parametrize("unknown", [[], [1, 4]])
def test_diffusion_equals_a_double_loop(kind, unknown):
    steps = ((0.0, 0.5, 1.0), (0.2, 0.1, 3.0), (1.0, 1.0, 0.3), (0.1, "even", 2.0))
    for seed, nearest, clusters, singletons, (cross, eta, alpha) in product(
        range(2), (None, 1, 3), (None, CLUSTERS), ("alone", "joined"), steps
    ):
        features = random_rows(seed)
        features[unknown] = 0.0
        settings = {"nearest": nearest, "singletons": singletons, "cross": cross, "eta": eta}
        view = make_view(features, clusters, affinity=kind, alpha=alpha, **settings)
        alike, found = affinity(view), diffusion(view)
        assert found.dtype == torch.float64
        assert torch.allclose(alike, float64(naive_affinity(view)), rtol=0, atol=1e-12), view
        assert torch.allclose(found, naive_diffusion(view), rtol=0, atol=1e-12), view
        check_mixing(found)


def test_every_setting_changes_w():
    plain = make_view(clusters=CLUSTERS)
    changes = (
        {"affinity": "cosine"},
        {"affinity": "uniform"},
        {"alpha": 5.0},
        {"eta": 0.1},
        {"nearest": 1},
        {"cross": 0.5},
        {"singletons": "joined"},
    )
    for change in changes:
        other = replace(plain, settings=RelationSettings(**change))
        assert not torch.allclose(diffusion(other), diffusion(plain), atol=1e-3), change
    without = replace(plain, clusters=None)
    assert not torch.allclose(diffusion(without), diffusion(plain), atol=1e-3)


def test_alpha_is_how_far_one_looks():
    near, far = (neighbours(make_view(alpha=a, nearest=None)) for a in (10.0, 0.1))
    entropy = [float(-(w * w.clamp_min(1e-300).log()).sum(1).mean()) for w in (near, far)]
    assert entropy[0] < entropy[1]


def test_unknown_clients_keep_their_own_and_nobody_learns_from_them():
    for kind in ("rbf", "cosine", "uniform"):
        for singletons in ("alone", "joined"):
            features = random_rows()
            features[[0, 5]] = 0.0
            weights = diffusion(make_view(features, affinity=kind, singletons=singletons))
            identity = torch.eye(N, dtype=torch.float64)
            assert torch.equal(weights[[0, 5]], identity[[0, 5]])
            assert torch.equal(weights[:, [0, 5]], identity[:, [0, 5]])


def test_a_client_alone_in_its_cluster_keeps_its_own_or_joins_its_nearest():
    alone = diffusion(make_view(clusters=CLUSTERS))
    assert alone[3].tolist() == [0, 0, 0, 1, 0, 0, 0]
    view = make_view(clusters=CLUSTERS, singletons="joined")
    joined, alike = diffusion(view), affinity(view)
    alike[3, 3] = 0
    other = int(alike[3].argmax())
    assert joined[3, 3] == joined[3, other] == 0.5
    assert joined[other, 3] > 0


def test_cluster_means_are_weighted_by_examples():
    view = make_view(clusters=CLUSTERS)
    wanted = torch.zeros(N, N, dtype=torch.float64)
    for k in range(N):
        total = sum(j + 1 for j in range(N) if CLUSTERS[j] == CLUSTERS[k])
        for j in range(N):
            wanted[k, j] = (j + 1) / total if CLUSTERS[j] == CLUSTERS[k] else 0.0
    assert torch.allclose(cluster_mean(view), wanted, rtol=0, atol=1e-15)


def test_a_relation_without_what_it_needs_says_so():
    with pytest.raises(ValueError, match="no clusters"):
        cluster_mean(make_view())
    with pytest.raises(ValueError, match="needs fingerprints"):
        diffusion(replace(make_view(), features=None))


@pytest.mark.parametrize("clusters", [None, CLUSTERS])
@pytest.mark.parametrize("nearest", [1, 2, None])
def test_the_laplacian_has_one_null_vector_per_component(clusters, nearest):
    view = make_view(clusters=clusters, nearest=nearest, scale="unit")
    edges = float64(naive_edges(view))
    degree = edges.sum(1)
    # What diffusion walks on is D^-1 (D - a), so the Laplacian can be had back from its step.
    found = degree[:, None] * (torch.eye(N) - neighbours(view))
    assert torch.allclose(found, torch.diag(degree) - edges, rtol=0, atol=1e-12)
    values = torch.linalg.eigvalsh(found)
    assert float(values.min()) > -1e-12
    assert int((values < 1e-10).sum()) == components(edges)
    if clusters is not None:
        assert components(edges) >= 3


def components(edges):
    left, count = set(range(len(edges))), 0
    while left:
        reached, count = [left.pop()], count + 1
        for k in reached:
            there = [j for j in sorted(left) if edges[k, j] > 0]
            reached += there
            left -= set(there)
    return count


def make_cohort(n=N, *, members=None):
    members = members or [Member(f"c{i}", (5, 4), ("no", "yes")) for i in range(n)]
    cohort = initial_cohort(LAYOUT, members, 0, dtype=torch.float64)
    filled = {}
    for row, member in enumerate(members):
        draw = torch.Generator().manual_seed(row)
        filled[member.id] = {
            name: torch.randn(value.shape, generator=draw, dtype=torch.float64)
            for name, value in cohort.take(member.id).items()
        }
    return cohort.put(filled)


def deltas(cohort):
    """What the adapters add, one row per client; ranks are full, so mixing is exact."""
    rows = []
    for i, module in enumerate(LAYOUT.modules):
        a, b = cohort.tensors[f"lora_a/{module}"], cohort.tensors[f"lora_b/{module}"]
        rows.append((cohort.scales(i)[:, None, None] * b @ a).flatten(1))
    return torch.cat([*rows, cohort.tensors["head/classifier.weight"].flatten(1)], dim=1)


def test_two_clients_at_one_and_zero():
    features = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    weights = diffusion(make_view(features, eta=0.1))
    values = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    assert mix_rows(values, weights).flatten().tolist() == pytest.approx([0.9, 0.1], abs=1e-15)
    cohort = make_cohort(2)
    before, after = (
        deltas(cohort),
        deltas(mix_cohort(cohort, weights, space="product", heads="mix")),
    )
    assert torch.allclose(after[0], 0.9 * before[0] + 0.1 * before[1], atol=1e-10)
    assert torch.allclose(after[1], 0.1 * before[0] + 0.9 * before[1], atol=1e-10)


@pytest.mark.parametrize("eta", [0.05, 0.5])
def test_three_equal_clients_contract_by_the_known_factor(eta):
    angles = [0.0, 2 * math.pi / 3, 4 * math.pi / 3]
    features = torch.tensor([[math.cos(a), math.sin(a)] for a in angles], dtype=torch.float64)
    weights = diffusion(make_view(features, eta=eta))
    cohort = make_cohort(3)
    for _ in range(3):
        mixed = mix_cohort(cohort, weights, space="product", heads="mix")
        before, after = deltas(cohort), deltas(mixed)
        for i, j in ((0, 1), (0, 2), (1, 2)):
            ratio = (after[i] - after[j]).norm() / (before[i] - before[j]).norm()
            assert float(ratio) == pytest.approx(1 - 1.5 * eta, abs=1e-9)
        assert torch.allclose(after.mean(0), before.mean(0), atol=1e-10)
        cohort = mixed


def test_without_a_step_everybody_keeps_their_own_bits():
    cohort = make_cohort()
    weights = diffusion(make_view(clusters=CLUSTERS, eta=0.0, singletons="joined", cross=0.3))
    assert torch.equal(weights, torch.eye(N, dtype=torch.float64))
    for space in ("product", "factors"):
        mixed = mix_cohort(cohort, weights, space=space, heads="mix")
        assert all(torch.equal(mixed.tensors[k], v) for k, v in cohort.tensors.items())
    moved = mix_cohort(cohort, diffusion(make_view()), space="product", heads="mix")
    assert not torch.allclose(deltas(moved), deltas(cohort), atol=1e-2)


def test_a_step_that_is_left_to_clients_is_offered_whole():
    for clusters in (None, CLUSTERS):
        free = diffusion(make_view(clusters=clusters, eta="auto"))
        assert torch.equal(free, diffusion(make_view(clusters=clusters, eta=1.0)))
        assert not torch.allclose(free, diffusion(make_view(clusters=clusters)), atol=1e-2)


def make_sketches(n=N, seed=0):
    draw = np.random.default_rng(seed)
    means = np.eye(2, 32)[[c % 2 for c in CLUSTERS[:n]]] + 0.1 * draw.standard_normal((n, 32))
    return {
        f"c{i}": {"text": torch.from_numpy(means[i] + 0.1 * draw.standard_normal((4, 32)))}
        for i in range(n)
    }


def setting(strategy="mira", sketches=None, *, members=None, absent="restrict", **relation):
    """A plan and a server that has heard of everybody's fingerprint."""
    cohort = make_cohort(members=members)
    tasks = {client: f"t{CLUSTERS[i] % 2}" for i, client in enumerate(cohort.clients)}
    found = find_strategy(strategy) if isinstance(strategy, str) else strategy
    prints = FingerprintSettings(parts=["text"], head=False, folds=4)
    plan = RunPlan(
        found, tasks, 3, 0, absent=absent, fingerprint=prints, relation=RelationSettings(**relation)
    )
    state = ServerState({"law": cohort}, examples=dict.fromkeys(cohort.clients, 10))
    if found.plans != "nothing":
        known = make_sketches() if sketches is None else sketches
        clusters = ClusterSettings(method="oracle") if found.plans == "clusters" else None
        state.planned["law"] = plan_cohort(known, cohort, tasks, prints, clusters, 0)
    return plan, state, cohort


def related(plan, state, cohort, replied=None, number=1):
    view = view_of(plan, state, cohort, number)
    return relate(plan, view, set(cohort.clients) if replied is None else replied)


def test_w_of_a_round_is_what_the_relation_says():
    for name, relation in (("mira", diffusion), ("atlas", diffusion), ("cluster", cluster_mean)):
        plan, state, cohort = setting(name)
        (weights,) = related(plan, state, cohort)
        view = view_of(plan, state, cohort, 1)
        assert (view.clusters is None) == (name == "mira")
        assert torch.equal(weights, relation(view))
        assert not torch.equal(weights, torch.eye(N).double())


@pytest.mark.parametrize(
    ("strategy", "singletons", "words"),
    [
        ("atlas", "alone", "alone in a cluster: c0; nobody's adapter"),
        ("atlas", "joined", "alone in a cluster: c0; they learn only from clients of other"),
        ("cluster", "joined", "alone in a cluster: c0; nobody's adapter"),
    ],
)
def test_a_plan_warns_of_who_learns_from_nobody_under_its_strategy(strategy, singletons, words):
    plan, state, _ = setting(strategy, singletons=singletons)
    assert describe_plan(plan, state)[0]["warnings"] == []
    planned = state.planned["law"]
    parted = replace(planned.clusters, labels=(2, *planned.clusters.labels[1:]))
    state.planned["law"] = replace(planned, clusters=parted)
    warnings = describe_plan(plan, state)[0]["warnings"]
    assert [one for one in warnings if one.startswith(words)]


def test_a_plan_asks_no_relation_for_what_is_not_known_yet():
    """Strategies of one's own may plan clusters and weigh by signatures, which come with rounds."""

    own = Strategy("own", relevance, plans="clusters", signature="gradient")
    plan, state, _ = setting(own)
    assert describe_plan(plan, state)[0]["clusters"]["k"] == 2
    by_module = Strategy("own", lambda view: torch.stack([diffusion(view)] * 2), plans="clusters")
    plan, state, _ = setting(by_module)
    assert describe_plan(plan, state)[0]["warnings"] == []


def test_what_a_plan_found_out_reaches_w():
    """Kin and agreement are no settings of a view made by hand: a round passes them on."""
    plan, state, cohort = setting("atlas")
    (plain,) = related(plan, state, cohort)
    planned = state.planned["law"]
    kindred = replace(planned, clusters=replace(planned.clusters, kin={(0, 1): 0.5}))
    state.planned["law"] = kindred
    (found,) = related(plan, state, cohort)
    assert not torch.equal(found, plain), "siblings=affinity"
    apart = replace(plan, relation=RelationSettings(siblings="apart"))
    assert torch.equal(related(apart, state, cohort)[0], plain)
    two = {client: own for client, own in make_sketches().items() if client in ("c0", "c2")}
    assert len({CLUSTERS[int(client[1:])] % 2 for client in two}) == 1, "both want the same"
    for scale, mixed in (("cluster", True), ("unit", False)):
        plan, state, cohort = setting("mira", two, affinity="cosine", scale=scale)
        (weights,) = related(plan, state, cohort)
        assert bool(weights[0, 2] > 0) == mixed
        assert float(weights.diagonal()[[1, 3, 4, 5, 6]].min()) == 1.0


def test_during_warmup_nobody_learns_from_anybody():
    identity = torch.eye(N, dtype=torch.float64)
    for name in ("mira", "atlas", "cluster", "fedavg"):
        plan, state, cohort = setting(name, warmup=2)
        for number in (1, 2):
            (weights,) = related(plan, state, cohort, number=number)
            assert torch.equal(weights, identity)
        (weights,) = related(plan, state, cohort, number=3)
        assert not torch.equal(weights, identity)


def test_alpha_may_be_left_to_clients():
    plan, state, cohort = setting("mira", alpha="auto")
    offered = related(plan, state, cohort)
    assert len(offered) == len(ALPHAS) == 4
    view = view_of(plan, state, cohort, 1)
    for weights, alpha in zip(offered, ALPHAS, strict=True):
        fixed = replace(view, settings=RelationSettings(alpha=alpha))
        assert torch.equal(weights, diffusion(fixed))
    assert all(
        not torch.allclose(a, b, atol=1e-4) for a, b in zip(offered, offered[1:], strict=False)
    )
    assert [c.alpha for c in choices(RelationSettings(alpha="auto", eta=0.2))] == list(ALPHAS)
    assert {c.eta for c in choices(RelationSettings(alpha="auto", eta=0.2))} == {0.2}
    assert choices(RelationSettings(alpha=0.7)) == [RelationSettings(alpha=0.7)]


def test_a_strategy_that_plans_nothing_offers_one_w():
    plan, state, cohort = setting("fedavg", alpha="auto")
    (weights,) = related(plan, state, cohort)
    assert torch.allclose(weights, torch.full((N, N), 1 / N).double())


def test_nobody_is_related_before_anything_is_known():
    identity = torch.eye(N, dtype=torch.float64)
    plan, state, cohort = setting("mira", alpha="auto", sketches={})
    assert state.planned["law"] == CohortPlan({})
    (weights,) = related(plan, state, cohort)
    assert torch.equal(weights, identity)
    plan, state, cohort = setting("mira")
    (weights,) = related(plan, state, cohort, replied=set())
    assert torch.equal(weights, identity)


def test_who_is_absent_is_left_out_or_stands_with_what_it_last_sent():
    replied = {"c0", "c2", "c4"}
    everyone = Strategy("everyone", diffusion, plans="fingerprints")
    plan, state, cohort = setting(everyone, nearest=None)
    (weights,) = related(plan, state, cohort, replied)
    there = torch.tensor([c in replied for c in cohort.clients])
    full = diffusion(view_of(plan, state, cohort, 1))
    for k in range(N):
        kept = [float(full[k, j]) if there[j] else 0.0 for j in range(N)]
        wanted = [value / sum(kept) for value in kept]
        assert weights[k].tolist() == pytest.approx(wanted)
    (present,) = related(*setting("mira", nearest=None), replied)
    assert torch.equal(present[~there], torch.eye(N).double()[~there])
    assert torch.equal(present[there], weights[there])
    plan, state, cohort = setting(everyone, absent="last", nearest=None)
    state.examples["c1"] = 0  # never heard of
    (last,) = related(plan, state, cohort, replied)
    assert not last[[0, 2, 3, 4, 5, 6], 1].any()
    assert bool((last[0, [3, 5, 6]] > 0).all())


def test_a_client_that_sent_no_fingerprint_keeps_its_own_in_every_choice():
    sketches = {c: s for c, s in make_sketches().items() if c != "c2"}
    identity = torch.eye(N, dtype=torch.float64)
    for name in ("mira", "atlas"):
        plan, state, cohort = setting(name, sketches, alpha="auto")
        for weights in related(plan, state, cohort):
            assert torch.equal(weights[2], identity[2])
            assert torch.equal(weights[:, 2], identity[:, 2])
    planned = state.planned["law"]
    assert not planned.features(cohort.clients)[2].any()
    labels = planned.labels(cohort.clients)
    assert labels.count(labels[2]) == 1
    (means,) = related(*setting("cluster", sketches))
    assert torch.equal(means[2], identity[2])


def test_features_and_labels_follow_the_clients_asked_for():
    _, state, cohort = setting("atlas")
    planned = state.planned["law"]
    order = ["c5", "c0", "nobody", "c4", "somebody"]
    rows = dict(zip(planned.prints.clients, planned.prints.features, strict=True))
    found = planned.features(order)
    assert all(torch.equal(found[i], rows[c]) for i, c in enumerate(order) if c in rows)
    assert not found[[2, 4]].any()
    labels = planned.labels(order)
    assert labels[0] == labels[1] != labels[3]
    assert len({labels[2], labels[4], *planned.clusters.labels}) == 2 + planned.clusters.metrics.k
    assert CohortPlan({}).features(order) is None
    assert CohortPlan({}).labels(order) is None


def test_a_plan_in_plain_words():
    plan, state, cohort = setting("atlas")
    view = view_of(plan, state, cohort, 0)
    entry = describe_planned(state.planned["law"], view, "law")
    assert entry["clients"] == list(cohort.clients)
    assert entry["clusters"]["k"] == 2
    assert torch.equal(float64(entry["affinity"]), affinity(view))
    assert torch.equal(float64(entry["neighbours"]), neighbours(view))
    assert entry["warnings"] == []
    assert all(len(point) == 2 for point in entry["points"])
    nobody = describe_planned(CohortPlan({}), view, "law")
    assert nobody["clients"] == [] and "no client" in nobody["warnings"][0]
    one = {"c3": make_sketches()["c3"]}
    plan, state, cohort = setting("atlas", one)
    entry = describe_planned(state.planned["law"], view_of(plan, state, cohort, 0), "law")
    assert entry["points"] == [[0.0, 0.0]]
    assert "affinity" not in entry, "not for some of the clients only"


class Spoiling:
    """Passes questions on; one client's fingerprint is not what it should be."""

    def __init__(self, engine, client, spoil):
        self.engine, self.client, self.spoil = engine, client, spoil

    def ask(self, task, payloads):
        replies = self.engine.ask(task, payloads)
        message = decode(replies[self.client])
        return {**replies, self.client: encode(*self.spoil(message))}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda m: ({k: v * float("nan") for k, v in m.tensors.items()}, m.facts),
        lambda m: ({k: v * 1e9 for k, v in m.tensors.items()}, m.facts),
        lambda m: ({k: v for k, v in m.tensors.items() if "head" not in k}, m.facts),
        lambda m: ({k: v[:-1] for k, v in m.tensors.items()}, m.facts),
        lambda m: (m.tensors, {**m.facts, "examples": True}),
    ],
    ids=["nan", "huge", "missing", "short", "examples"],
)
def test_a_spoilt_fingerprint_is_refused_and_the_others_are_planned(spoil):
    config = make_config(strategy="mira", fingerprint={"sketch": 16, "folds": 2})
    federation = assemble(config, make_clients())
    plan, state, events = federation.plan, federation.state, []
    transport = Spoiling(federation.engine, "b1", spoil)
    make_plan(plan, state, transport, lambda event, fields: events.append((event, fields)))
    assert [entry["client"] for entry in state.refused] == ["b1"]
    told = [fields["client"] for event, fields in events if event == "fingerprinted"]
    assert told == ["a1", "a2", "b2", "c1"]
    (cohort,) = state.cohorts.values()
    assert state.planned["tiny"].prints.clients == ("a1", "a2", "b2", "c1")
    (weights,) = related(plan, state, cohort)
    assert weights[2].tolist() == [0, 0, 1, 0, 0]
    assert not torch.equal(weights, torch.eye(5).double())


def test_the_plan_acts_for_a_backbone_from_a_folder_and_names_no_path(tmp_path):
    folder = tmp_path / "mine"
    model, tokenizer = build_tiny(torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = make_config(
        strategy="mira",
        fingerprint={"sketch": 16, "folds": 2},
        backbone={"name": str(folder), "max_length": 32},
    )
    federation = assemble(config, make_clients())
    plan, state, events = federation.plan, federation.state, []
    observe = lambda event, fields: events.append((event, fields))  # noqa: E731
    make_plan(plan, state, federation.engine, observe)
    (cohort,) = state.cohorts.values()
    (weights,) = related(plan, state, cohort)
    assert not torch.equal(weights, torch.eye(5).double())
    assert [fields["cohort"] for event, fields in events if event == "planned"] == ["mine"]


def test_nothing_is_asked_where_nothing_is_planned():
    federation = assemble(make_config(), make_clients()[:2])
    make_plan(federation.plan, federation.state, None, None)
    assert federation.state.planned == {}
