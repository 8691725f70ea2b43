"""Relations of many clients: densified, they are the relations of few."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from atlas.build.federation import assemble
from atlas.config.plan import ClusterSettings, FingerprintSettings, RelationSettings
from atlas.federation.adapters.adapter import Member
from atlas.federation.adapters.cohort import initial_cohort
from atlas.federation.fingerprints.planned import plan_cohort
from atlas.federation.mixing.apply import (
    ALPHAS,
    identity,
    keeps_own,
    mix_cohort,
    relate,
    same,
    same_labels,
    view_of,
)
from atlas.federation.mixing.deliver import Mixing, describe_mixing
from atlas.federation.prepare import make_plan
from atlas.federation.rounds import run_round
from atlas.federation.server import RunPlan, ServerState
from atlas.federation.strategies.base import STRATEGIES, find_strategy
from atlas.federation.strategies.relations import (
    cluster_mean,
    diffusion,
)
from atlas.federation.strategies.relations_sparse import (
    scaled_cluster_mean,
    scaled_diffusion,
    sparse_cluster_mean,
    sparse_diffusion,
)
from atlas.ops.graph.sparse_rows import LARGEST_DENSE, SharedRows
from atlas.ops.lowrank.mixing import restrict
from tests.federation.strategies.test_relations import LAYOUT, make_view, random_rows
from tests.helpers import make_client, make_config, make_task

MANY = LARGEST_DENSE + 26
SETTINGS = [
    {"nearest": count, "affinity": name, "cross": cross, "singletons": rule}
    for count, name, cross, rule in product(
        (1, 3, 500, "auto", None), ("rbf", "cosine", "uniform"), (0.0, 0.4), ("alone", "joined")
    )
] + [{"eta": 0.3}, {"eta": "auto"}, {"scale": "median"}, {"scale": "unit", "cross": 0.4}]


def view_of_many(n, clusters, **settings):
    features = random_rows(3, n)
    if n > 3:
        features[2] = 0.0  # of whom nothing is known
    labels = tuple(9 if i == n - 1 else 7 * i % 5 for i in range(n)) if clusters else None
    return make_view(features, labels, **settings)


@pytest.mark.parametrize("clusters", [False, True], ids=["whole", "clusters"])
@pytest.mark.parametrize("n", [2, 7, 40])
def test_sparse_relations_are_the_dense_ones(n, clusters):
    for settings in SETTINGS:
        view = view_of_many(n, clusters, **settings)
        wanted, found = diffusion(view), sparse_diffusion(view).dense()
        assert torch.allclose(wanted, found, atol=1e-12, rtol=0), settings
    if clusters:
        means = sparse_cluster_mean(view)
        assert torch.allclose(means.dense(), cluster_mean(view), atol=1e-12, rtol=0)
        assert means.rows.shape[0] == len(set(view.clusters))


def test_neighbours_alpha_and_eta_change_the_graph():
    view = view_of_many(40, True)
    plain = sparse_diffusion(view).dense()
    for change in ({"nearest": 5}, {"alpha": 4.0}, {"eta": 0.2}, {"cross": 0.5}):
        other = replace(view, settings=RelationSettings(**change))
        assert not torch.allclose(sparse_diffusion(other).dense(), plain, atol=1e-3), change
    assert not torch.allclose(sparse_diffusion(replace(view, clusters=None)).dense(), plain)


def test_few_clients_have_a_matrix_and_many_have_rows():
    few, many = (view_of_many(n, True) for n in (LARGEST_DENSE, LARGEST_DENSE + 1))
    for relation in (scaled_diffusion, scaled_cluster_mean):
        assert isinstance(relation(few), torch.Tensor)
        assert isinstance(relation(many), SharedRows)


def test_w_takes_memory_in_proportion_to_the_clients():
    sizes = [sparse_diffusion(view_of_many(n, False)).rows.nnz for n in (200, 400, 800)]
    assert sizes[2] < 2.2 * sizes[1] < 2.2**2 * sizes[0]


def make_cohort(n=MANY, seed=0):
    draw = np.random.default_rng(seed)
    sets = [("a", "b"), ("c", "d")]
    members = [
        Member(f"c{i:03d}", (int(draw.integers(1, 5)), 3), sets[int(draw.integers(2))])
        for i in range(n)
    ]
    cohort = initial_cohort(LAYOUT, members, 0, dtype=torch.float64)
    filled = {
        member.id: {
            name: torch.from_numpy(draw.standard_normal(value.shape))
            for name, value in cohort.take(member.id).items()
        }
        for member in members
    }
    return cohort.put(filled)


def make_sketches(cohort, groups=3, seed=0):
    draw = np.random.default_rng(seed)
    means = np.eye(groups, 32)[np.arange(len(cohort.clients)) % groups]
    return {
        client: {"text": torch.from_numpy(means[i] + 0.2 * draw.standard_normal((4, 32)))}
        for i, client in enumerate(cohort.clients)
    }


def setting(strategy, cohort, **relation):
    """A plan and a server that has heard of everybody's fingerprint."""
    tasks = {client: f"t{i % 3}" for i, client in enumerate(cohort.clients)}
    rule = find_strategy(strategy)
    prints = FingerprintSettings(parts=["text"], head=False, folds=4)
    plan = RunPlan(rule, tasks, 3, 0, fingerprint=prints, relation=RelationSettings(**relation))
    state = ServerState({"law": cohort}, examples=dict.fromkeys(cohort.clients, 10))
    clusters = ClusterSettings(method="oracle") if rule.plans == "clusters" else None
    state.planned["law"] = plan_cohort(make_sketches(cohort), cohort, tasks, prints, clusters, 0)
    return plan, state


def test_a_round_of_many_has_the_w_of_few():
    cohort = make_cohort()
    replied = set(cohort.clients[::2])
    present = torch.tensor([client in replied for client in cohort.clients])
    for name, relation in (("mira", diffusion), ("atlas", diffusion), ("cluster", cluster_mean)):
        plan, state = setting(name, cohort)
        (weights,) = relate(plan, view_of(plan, state, cohort, 1), replied)
        assert isinstance(weights, SharedRows)
        wanted = restrict(relation(view_of(plan, state, cohort, 1)), present)
        if name == "mira":  # who is absent keeps its own
            wanted = torch.where(present[:, None], wanted, torch.eye(MANY).double())
        assert torch.allclose(weights.dense(), wanted, atol=1e-12, rtol=0)
        assert torch.equal(keeps_own(weights), keeps_own(weights.dense()))


def test_choices_and_warmup_of_many():
    cohort = make_cohort()
    plan, state = setting("mira", cohort, alpha="auto", warmup=1)
    everybody = set(cohort.clients)
    assert len(relate(plan, view_of(plan, state, cohort, 2), everybody)) == len(ALPHAS)
    (still,) = relate(plan, view_of(plan, state, cohort, 1), everybody)
    assert same(still, identity(MANY)) and bool(keeps_own(still).all())
    assert not same(still, identity(5))


@pytest.mark.parametrize("heads", ["mix", "personal"])
def test_a_cohort_of_many_is_mixed_as_one_of_few(heads):
    cohort = make_cohort()
    plan, state = setting("atlas", cohort)
    (weights,) = relate(plan, view_of(plan, state, cohort, 1), set(cohort.clients))
    dense = weights.dense()
    for space in ("product", "factors"):
        found = mix_cohort(cohort, weights, space=space, heads=heads)
        wanted = mix_cohort(cohort, dense, space=space, heads=heads)
        for name, value in wanted.tensors.items():
            assert torch.allclose(value, found.tensors[name], atol=1e-9, rtol=0), name
    head = found.tensors["head/classifier.weight"]
    assert torch.equal(head, cohort.tensors["head/classifier.weight"]) == (heads == "personal")
    assert not same_labels(cohort.members).all()


def test_w_of_many_is_not_written_into_the_events():
    cohort = make_cohort()
    plan, state = setting("atlas", cohort)
    weights = relate(plan, view_of(plan, state, cohort, 1), set(cohort.clients))
    mixed = [mix_cohort(cohort, w, space="product", heads="mix") for w in weights]
    entry = describe_mixing(Mixing(cohort, weights, mixed, None), {}, STRATEGIES["fedavg"])
    assert entry == {"cohort": "law"}


def test_a_round_of_many_delivers_what_w_says():
    tasks = make_task(), make_task("shape", ("flat", "round"))
    clients = [
        make_client(f"c{i:03d}", tasks[i % 2], train=4, validation=1, test=1, seed=i)
        for i in range(LARGEST_DENSE + 2)
    ]
    config = make_config(strategy="mira", fingerprint={"sketch": 32, "folds": 2})
    federation = assemble(config, clients)
    plan, state, engine = federation.plan, federation.state, federation.engine
    make_plan(plan, state, engine, lambda event, fields: None)
    run_round(plan, state, engine, lambda event, fields: None)
    assert not state.failures and not state.refused
    (trained,) = state.cohorts.values()
    (weights,) = relate(plan, view_of(plan, state, trained, 1), set(trained.clients))
    assert isinstance(weights, SharedRows)
    assert not bool(keeps_own(weights).any())
    wanted = mix_cohort(trained, weights.dense(), space="product", heads="mix")
    for group in engine.groups:
        for client in group.holders:
            held = group.arms["held"].take(client)
            for name, value in wanted.take(client).items():
                assert torch.allclose(held[name], value, atol=1e-6), (client, name)
