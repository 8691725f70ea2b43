"""Where a newcomer belongs, on fingerprints made by hand."""

from dataclasses import replace

import pytest
import torch

from atlas.config.plan import RelationSettings
from atlas.federation.fingerprints.compare import PartFacts, Prints
from atlas.federation.newcomer import OUTSIDE, find_place
from atlas.ops.graph.affinity import unit_rows

PLACES = {"a1": (10, 1), "a2": (10, 0), "a3": (10, -1), "b1": (1, 10), "b2": (-1, 10)}
CLUSTERS = {"a1": 0, "a2": 0, "a3": 0, "b1": 1, "b2": 1}


def make_prints(**newcomer):
    points = dict(sorted({**PLACES, **newcomer}.items()))
    features = unit_rows(torch.tensor(list(points.values()), dtype=torch.float64))
    return Prints(tuple(points), features, 1.0, {}, (features, features), ())


def place(point, clusters=CLUSTERS, **settings):
    return find_place("new", make_prints(new=point), clusters, RelationSettings(**settings))


def naive_affinities(point, alpha=1.0):
    """Mean affinity to each cluster, pair by pair."""
    prints = make_prints(new=point)
    rows = dict(zip(prints.clients, prints.features, strict=True))
    found = {}
    for cluster in (0, 1):
        members = [c for c, own in CLUSTERS.items() if own == cluster]
        gaps = [float((rows["new"] - rows[m]).square().sum()) for m in members]
        found[cluster] = sum(torch.exp(torch.tensor(-alpha * g)).item() for g in gaps) / len(gaps)
    return found


@pytest.mark.parametrize(("point", "cluster"), [((9, 2), 0), ((2, 9), 1)])
def test_the_nearest_cluster_on_average(point, cluster):
    found = place(point)
    assert found.cluster == cluster
    assert found.affinities == pytest.approx(naive_affinities(point), abs=1e-6)
    assert {CLUSTERS[client] for client in found.neighbours} == {cluster}
    assert sum(found.neighbours.values()) == pytest.approx(1.0, abs=1e-12)
    assert not found.outsider


def test_clusters_decide_who_is_a_neighbour():
    between = (7, 6.5)
    with_clusters, without = place(between), place(between, clusters=None)
    assert without.cluster is None
    assert without.affinities == {}
    assert {CLUSTERS[c] for c in with_clusters.neighbours} == {0}
    assert {CLUSTERS[c] for c in without.neighbours} == {0, 1}
    assert {CLUSTERS[c] for c in place(between, cross=0.5).neighbours} == {0, 1}


def test_who_fits_no_cluster_is_told_apart():
    prints = make_prints(new=(-10, -9))
    far = find_place("new", prints, CLUSTERS, RelationSettings())
    assert far.outsider
    assert far.cluster in {0, 1}
    assert far.affinities[far.cluster] < OUTSIDE
    assert far.neighbours, "it is placed all the same"


def test_a_cluster_of_one_takes_a_newcomer():
    lonely = {**CLUSTERS, "b2": 2}
    found = find_place("new", make_prints(new=(-2, 10)), lonely, RelationSettings())
    assert found.cluster == 2
    assert found.neighbours == {"b2": 1.0}
    assert not found.outsider, "one client does not show how far apart a cluster may be"


def test_fingerprints_place_even_where_the_graph_is_uniform():
    found = place((2, 9), affinity="uniform", nearest=None)
    assert found.cluster == 1
    assert found.neighbours == {"b1": 0.5, "b2": 0.5}


def test_a_newcomer_to_a_part_hears_its_sibling_as_the_members_do():
    parted = {"a1": 0, "a2": 0, "a3": 2, "b1": 1, "b2": 1}
    prints = make_prints(new=(10, 0.5))
    apart = find_place("new", prints, parted, RelationSettings())
    kindred = find_place("new", prints, parted, RelationSettings(), {(0, 2): 0.5})
    assert set(apart.neighbours) == {"a1", "a2"}
    assert set(kindred.neighbours) == {"a1", "a2", "a3"}
    assert kindred.neighbours["a3"] < kindred.neighbours["a1"]


def test_a_newcomer_to_a_single_client_is_compared_by_what_both_want():
    """Centred, the two are opposite whatever they do."""
    features = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    draw = torch.Generator().manual_seed(0)
    folds = 1 + 0.1 * torch.randn(2, 4, 16, generator=draw, dtype=torch.float64)
    parts = {"text": PartFacts(0.0, 0.05**2, 1.0)}
    alike = Prints(("a1", "new"), features, 1.0, parts, (), (), {"text": folds})
    opposed = replace(alike, folds={"text": folds * torch.tensor([1.0, -1.0])[:, None, None]})
    cosines = RelationSettings(affinity="cosine")
    assert find_place("new", alike, {"a1": 0}, cosines).neighbours == {"a1": 1.0}
    assert find_place("new", opposed, {"a1": 0}, cosines).neighbours == {}


def test_who_has_nothing_in_common_with_anybody_has_no_neighbours():
    assert place((-10, -10), affinity="cosine").neighbours == {}
