"""Very many clients, planned from a sample: the same as all at once."""

from functools import partial

import pytest
import torch

from atlas.config.plan import ClusterSettings, FingerprintSettings
from atlas.federation.fingerprints import clusters_sampled as grouping_large
from atlas.federation.fingerprints import compare_streamed as prints_large
from atlas.federation.fingerprints import planned
from atlas.federation.fingerprints.clusters_sampled import (
    SampledPlan,
    group_many,
    plan_many,
    stack_sketches,
)
from atlas.federation.fingerprints.compare import compare_prints
from atlas.federation.fingerprints.compare_streamed import compare_many
from atlas.ops.clustering.clusters import adjusted_rand
from tests.federation.fingerprints.test_clusters import examine_of, one_cloud
from tests.federation.fingerprints.test_clusters import planted as planted_groups
from tests.federation.strategies.test_relations_sparse import make_cohort, make_sketches

N = 90
SETTINGS = FingerprintSettings(parts=["text", "label"], head=False, folds=8)


def many_sketches(n, groups=5, seed=0):
    text, label = (planted_groups(seed + i, groups, -(-n // groups))["text"][:n] for i in (0, 7))
    return [{"text": text[i].float(), "label": label[i].float()} for i in range(n)]


@pytest.mark.parametrize("n", [2, 30, 300])
def test_features_of_many_are_those_of_few(n, monkeypatch):
    monkeypatch.setattr(prints_large, "CLIENTS_AT_ONCE", 64)
    sketches = many_sketches(n)
    names = [f"c{i}" for i in range(n)]
    found = compare_many(names, partial(stack_sketches, sketches), ["text", "label"], 12)
    wanted = compare_prints(
        dict(zip(names, sketches, strict=True)),
        [2] * n,
        SETTINGS.model_copy(update={"dims": 12}),
        resamples=0,
        seed=0,
    )
    assert torch.allclose(found.features, wanted.features, atol=1e-9)
    assert found.explained == pytest.approx(wanted.explained, abs=1e-12)
    for name, facts in wanted.parts.items():
        assert found.parts[name].reliability == pytest.approx(facts.reliability, abs=1e-10)
        assert found.parts[name].weight == pytest.approx(facts.weight, abs=1e-10)
        assert found.parts[name].spread == pytest.approx(facts.spread, abs=1e-10)
    assert found.warnings() == wanted.warnings()


def test_clients_that_are_all_alike_are_all_at_one_place():
    sketches = [many_sketches(1)[0]] * 40
    names = [f"c{i}" for i in range(40)]
    found = compare_many(names, partial(stack_sketches, sketches), ["text", "label"], 8)
    assert found.features.any(1).all(), "a row of zeros would be a client that nobody knows"
    assert torch.equal(found.features, found.features[:1].expand(40, -1))
    assert found.explained == 1.0


@pytest.fixture
def small_sample(monkeypatch):
    """So that the test of a split takes no time."""
    monkeypatch.setattr(grouping_large, "SAMPLE", 40)
    monkeypatch.setattr(planned, "SAMPLE", 40)


def grouped(parts, settings, seed=0, tasks=None):
    n = len(parts["text"])
    examine = examine_of(parts)
    features = examine(range(n)).features
    return group_many(examine, features, tasks or ["t"] * n, settings, seed)


def test_groups_of_many_are_found_and_one_cloud_is_not_split(small_sample):
    n, quick = 240, ClusterSettings(largest=4)
    truth = [i // 80 for i in range(n)]
    found = grouped(planted_groups(0, 3, 80), quick)
    assert adjusted_rand(found.labels, truth) > 0.97
    assert len(found.labels) == n
    assert found.metrics.k == 3
    assert found.tried and all(len(split.metrics.labels) == 40 for split in found.tried)
    cloud = grouped(one_cloud(0, n), quick)
    assert cloud.metrics.k == 1


def test_known_and_permuted_groups_of_many(small_sample):
    n = 120
    parts, tasks = planted_groups(0, 3, 40), [f"t{i // 40}" for i in range(n)]
    known = grouped(parts, ClusterSettings(method="oracle"), tasks=tasks)
    assert adjusted_rand(known.labels, tasks) == 1.0
    assert grouped(parts, ClusterSettings(method="one")).metrics.k == 1
    asked = grouped(parts, ClusterSettings(k=3))
    assert adjusted_rand(asked.labels, tasks) > 0.97
    permuted = grouped(parts, ClusterSettings(method="permuted", k=3))
    assert sorted(permuted.labels.count(c) for c in range(3)) == [40, 40, 40]
    assert abs(adjusted_rand(permuted.labels, tasks)) < 0.2


def test_a_plan_of_many_goes_through_the_sample(small_sample):
    cohort = make_cohort(N)
    sketches = {c: {"text": s["text"].repeat(2, 1) / 2} for c, s in make_sketches(cohort).items()}
    tasks = {client: f"t{i % 3}" for i, client in enumerate(cohort.clients)}
    settings = FingerprintSettings(parts=["text"], head=False, folds=8)
    found = planned.plan_cohort(sketches, cohort, tasks, settings, ClusterSettings(k=3), 0)
    assert found.prints.halves == ()
    assert adjusted_rand(found.clusters.labels, list(tasks.values())) == 1.0
    crowd = SampledPlan(
        list(cohort.clients),
        partial(stack_sketches, list(sketches.values())),
        [2] * N,
        list(tasks.values()),
    )
    assert plan_many(crowd, settings, None, 0)[1] is None
