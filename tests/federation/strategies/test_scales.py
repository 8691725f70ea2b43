"""Affinities that keep their contrast from two tasks to thirty, and edges between parts."""

from dataclasses import replace

import pytest
import torch

from atlas.config.plan import FingerprintSettings, RelationSettings
from atlas.federation.fingerprints.compare import compare_prints
from atlas.federation.strategies import scales
from atlas.federation.strategies.base import View
from atlas.federation.strategies.relations import (
    affinity,
    diffusion,
    neighbours,
)
from atlas.federation.strategies.relations_sparse import (
    sparse_diffusion,
    sparse_neighbours,
)
from atlas.ops.graph.affinity import unit_rows, within
from atlas.ops.graph.neighbours import nearest_gap

EACH, WIDTH = 3, 64
TASKS = (2, 3, 10, 30)


def features_of(tasks, noise, seed=0):
    """Centred fingerprints of three clients a task, unit rows."""
    draw = torch.Generator().manual_seed(seed)
    basis = torch.randn(WIDTH, tasks, generator=draw, dtype=torch.float64)
    means = torch.linalg.qr(basis)[0].T.repeat_interleave(EACH, 0)
    own = torch.randn(len(means), WIDTH, generator=draw, dtype=torch.float64) / WIDTH**0.5
    rows = means + noise * own
    return unit_rows(rows - rows.mean(0))


def view_of(features, clusters=None, **settings):
    n = len(features)
    return View(
        clients=tuple(f"c{i}" for i in range(n)),
        examples=torch.ones(n, dtype=torch.float64),
        tasks=tuple(f"t{i // EACH}" for i in range(n)),
        round=1,
        features=features,
        clusters=clusters,
        settings=RelationSettings(**{"nearest": None, **settings}),
    )


def strangers(view):
    """Largest share of a row that clients of other tasks hold."""
    shares = neighbours(view)
    task = torch.arange(len(shares)) // EACH
    return float((shares * (task[:, None] != task)).sum(1).mean())


@pytest.mark.parametrize("noise", [0.4, 0.6, 0.8])
@pytest.mark.parametrize("tasks", TASKS)
def test_strangers_count_little_at_any_number_of_tasks(tasks, noise):
    features = features_of(tasks, noise)
    assert strangers(view_of(features)) < 0.15
    # As before: the more tasks, the more a row belongs to strangers.
    before = strangers(view_of(features, scale="unit"))
    assert before > (0.6 if tasks >= 10 else strangers(view_of(features)))


@pytest.mark.parametrize("tasks", TASKS)
def test_cosines_find_their_own_at_any_number_of_tasks(tasks):
    view = view_of(features_of(tasks, 0.6), affinity="cosine", nearest=2)
    assert strangers(view) < 0.02
    assert bool((neighbours(view).diagonal() == 0).all()), "nobody is left without neighbours"


@pytest.mark.parametrize(("agreement", "wanted"), [(0.9, 1.0), (0.0, 0.0)])
def test_a_cosine_of_two_clients_is_of_what_they_want(agreement, wanted):
    features = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    both = torch.tensor([[1.0, agreement], [agreement, 1.0]], dtype=torch.float64)
    view = replace(view_of(features, affinity="cosine"), agreement=both)
    assert float(affinity(view)[0, 1]) == agreement
    assert float(neighbours(view)[0, 1]) == wanted
    former = replace(view, settings=RelationSettings(affinity="cosine", scale="unit"))
    assert torch.equal(neighbours(former), torch.eye(2, dtype=torch.float64))
    assert float(neighbours(view_of(features))[0, 1]) == 1.0, "rbf has always mixed the two"


def test_the_unit_is_the_median_to_the_nearest():
    line = torch.tensor([0.0, 0.1, 0.3, 0.6, 1.0], dtype=torch.float64)
    rows = torch.stack([line.cos(), line.sin()], dim=1)
    near = sorted(float(4 * torch.sin(torch.tensor(d / 2)) ** 2) for d in (0.1, 0.1, 0.2, 0.3, 0.4))
    assert nearest_gap(rows) == pytest.approx(near[2], rel=1e-6)
    assert nearest_gap(torch.cat([rows, torch.zeros(3, 2)])) == pytest.approx(near[2], rel=1e-6)
    assert nearest_gap(rows[:1]) == 1.0
    assert nearest_gap(rows[:1].expand(4, 2)) == 1.0


@pytest.mark.parametrize("gap", [0.0, 1e-3])
def test_twins_do_not_cut_off_all_others(gap, monkeypatch):
    """Two of three tasks are twins, nearly or to the bit; their distance is no unit for others."""
    features = features_of(3, 0.4)
    apart = gap * features_of(3, 0.4, seed=1)[:6]
    features[:6] = unit_rows(features[[0, 0, 0, 3, 3, 3]] + apart)
    view = view_of(features, nearest=2)
    near = neighbours(view)
    assert bool((near.diagonal() == 0).all())
    assert float(near[6, 7] + near[6, 8]) > 0.99
    kept = float(affinity(view)[6, 7])
    assert kept > 0.1
    monkeypatch.setattr(scales, "LEAST_UNIT", 1e-12)
    if gap:
        assert float(affinity(view)[6, 7]) < 1e-6 * kept, "but for the least unit it would be"


@pytest.mark.parametrize("n", [2, 3, 5, 8])
@pytest.mark.parametrize("gradients", ["noisy", "equal"])
def test_clients_of_one_cluster_learn_from_each_other_under_every_affinity(n, gradients):
    """Centred, alike clients point away from each other: their gradients as they are must tell."""
    draw = torch.Generator().manual_seed(n)
    noise = torch.randn(n, 8, 32, generator=draw, dtype=torch.float64)
    folds = torch.ones(n, 8, 32, dtype=torch.float64) + (noise if gradients == "noisy" else 0.0)
    sent = {f"c{i}": {"text": own} for i, own in enumerate(folds)}
    plain = FingerprintSettings(parts=["text"], head=False)
    prints = compare_prints(sent, [2] * n, plain, resamples=0, seed=0)
    view = replace(view_of(prints.features, (0,) * n), agreement=prints.agreement)
    for name in ("rbf", "cosine", "uniform"):
        asked = replace(view, settings=RelationSettings(affinity=name))
        assert bool((neighbours(asked).diagonal() == 0).all()), name
        assert float(affinity(asked).min()) > (0.99 if gradients == "equal" else 0.0), name
    former = replace(view, settings=RelationSettings(affinity="cosine", scale="unit"))
    if gradients == "noisy":
        assert bool((neighbours(former).diagonal() == 1).any()), "centred, somebody has nobody"


def test_parts_of_one_cluster_keep_edges_by_what_they_have_in_common():
    features = features_of(2, 0.6)
    clusters, kin = (0, 0, 1, 2, 2, 2), {(0, 1): 0.5}
    view = replace(view_of(features, clusters), kin=kin)
    whole = affinity(view)
    shares = neighbours(view)
    assert float(shares[2, 0]) > 0 and float(shares[2, 3]) == 0.0
    wanted = 0.5 * whole[0, 2] / (whole[0, 1] + 0.5 * whole[0, 2])
    assert float(shares[0, 2]) == pytest.approx(float(wanted), rel=1e-10)
    apart = replace(view, settings=view.settings.model_copy(update={"siblings": "apart"}))
    assert float(neighbours(apart)[2, 2]) == 1.0, "without kin, the third has nobody"
    assert torch.equal(within(whole, clusters, 0.8, {(1, 0): 0.5})[0, 2], 0.8 * whole[0, 2])


def test_who_hears_another_part_alone_steps_as_far_as_they_have_something_in_common():
    features = features_of(2, 0.6)
    view = view_of(features, (0, 0, 1, 2, 2, 2))
    own = []
    for factor in (0.0, 1e-6, 0.25, 0.5, 1.0):
        w = diffusion(replace(view, kin={(0, 1): factor}))
        own.append(float(w[2, 2]))
        assert float(w[0, 0]) < 0.55, "those with a neighbour of their own part step as ever"
    assert own[0] == 1.0 and own[1] == pytest.approx(1.0, abs=1e-5), "no jump at nothing"
    steps = [1.0 - share for share in own]
    assert steps[2:4] == pytest.approx([0.25 * steps[4], 0.5 * steps[4]], rel=1e-9)
    before = replace(view, kin={(0, 1): 0.25}, settings=RelationSettings(scale="unit"))
    assert float(diffusion(before)[2, 2]) < 0.5, "runs from before go on with a whole step"
    joined = replace(view, settings=RelationSettings(singletons="joined", nearest=None))
    assert float(diffusion(joined)[2, 2]) == pytest.approx(0.5), "joined on purpose: a whole step"


@pytest.mark.parametrize("cross", [0.0, 0.2])
def test_sparse_steps_of_lone_parts_are_those_of_the_matrix(cross):
    features = features_of(30, 0.6)
    clusters = (0, 1, 1, 1, 2, 3, 3, 3, 3, *(4 + i // 9 for i in range(81)))
    view = view_of(features, clusters, nearest=4, cross=cross)
    view = replace(view, kin={(0, 1): 0.4, (2, 3): 0.9})
    found = sparse_diffusion(view).dense()
    assert torch.allclose(found, diffusion(view), atol=1e-12)
    assert float(found[0, 0]) > float(found[4, 4]) > 0.4


@pytest.mark.parametrize("n", [64, 65, 90])
def test_wishes_of_many_clients_of_one_cluster_are_compared_as_those_of_few(n):
    draw = torch.Generator().manual_seed(n)
    features = unit_rows(torch.randn(n, 16, generator=draw, dtype=torch.float64))
    alike = torch.rand(n, n, generator=draw, dtype=torch.float64)
    view = view_of(features, (0,) * n, affinity="cosine", nearest=4)
    told = replace(view, agreement=((alike + alike.T) / 2).fill_diagonal_(1.0))
    found = sparse_diffusion(told).dense()
    assert torch.allclose(found, diffusion(told), atol=1e-12)
    assert not torch.allclose(found, sparse_diffusion(view).dense(), atol=1e-2)


@pytest.mark.parametrize("cross", [0.0, 0.2])
def test_sparse_edges_between_parts_are_those_of_the_matrix(cross):
    features = features_of(30, 0.6)
    clusters = tuple(i // 9 if i < 45 else 5 + i // 18 for i in range(90))
    kin = {(0, 1): 0.98, (2, 3): 0.9, (0, 99): 1.0}
    view = replace(view_of(features, clusters, nearest=4, cross=cross), kin=kin)
    dense, found = neighbours(view), sparse_neighbours(view)
    assert torch.allclose(torch.from_numpy(found.toarray()), dense, atol=1e-12)
    alone = neighbours(replace(view, kin={}))
    assert not torch.allclose(alone, dense)


def loose_and_tight(clusters, each, seed=0):
    """Clusters of which every other is loose: its members lie three times as far apart."""
    draw = torch.Generator().manual_seed(seed)
    basis = torch.randn(WIDTH, clusters, generator=draw, dtype=torch.float64)
    means = torch.linalg.qr(basis)[0].T.repeat_interleave(each, 0)
    own = torch.randn(len(means), WIDTH, generator=draw, dtype=torch.float64) / WIDTH**0.5
    noise = torch.tensor([0.2, 0.2, 0.8])[torch.arange(clusters) % 3].repeat_interleave(each)
    labels = tuple(i // each for i in range(len(means)))
    return unit_rows(means + noise[:, None] * own), labels


@pytest.mark.parametrize("clusters", TASKS)
def test_members_of_a_loose_cluster_count_nearly_alike(clusters):
    features, labels = loose_and_tight(max(3, clusters), 5)
    loose = torch.tensor([label % 3 == 2 for label in labels])

    def unevenness(**settings):
        """Largest share of a row over the smallest of the own cluster, of loose clusters."""
        shares = neighbours(view_of(features, labels, **settings))[loose]
        rows = [row[row > 0] for row in shares]
        assert all(len(row) == 4 for row in rows)
        return max(float(row.max() / row.min()) for row in rows)

    assert unevenness() < 3
    assert unevenness(scale="median") > 2 * unevenness()


def test_parts_of_a_loose_cluster_count_in_the_smaller_unit_of_both():
    features, labels = loose_and_tight(6, 5)
    view = replace(view_of(features, labels), kin={(2, 5): 1.0, (0, 1): 1.0})
    gap = (features[10] - features[25]).square().sum()
    unit = min(nearest_gap(features[10:15]), nearest_gap(features[25:30]))
    assert float(affinity(view)[10, 25]) == pytest.approx(float(torch.exp(-gap / unit)), rel=1e-9)
    apart = affinity(replace(view, kin={}))
    assert float(apart[10, 25]) < float(affinity(view)[10, 25])
    assert torch.equal(apart[:10], affinity(view)[:10]), "tight ones keep the unit of all"


def test_a_unit_of_ones_own_changes_nothing_between_clusters_nor_in_tight_ones():
    features, labels = loose_and_tight(3, 5)
    own, one = (affinity(view_of(features, labels, scale=name)) for name in ("cluster", "median"))
    loose = torch.arange(15) >= 10
    inside = loose[:, None] & loose
    assert torch.equal(own[~inside], one[~inside])
    apart = ~torch.eye(15, dtype=torch.bool)
    assert bool((own[inside & apart] > one[inside & apart]).all())


@pytest.mark.parametrize("cross", [0.0, 0.3])
@pytest.mark.parametrize("nearest", [2, "auto"])
def test_sparse_edges_of_loose_and_tight_clusters_are_those_of_the_matrix(nearest, cross):
    features, labels = loose_and_tight(30, 6)
    view = view_of(features, labels, nearest=nearest, cross=cross)
    found = torch.from_numpy(sparse_neighbours(view).toarray())
    assert torch.allclose(found, neighbours(view), atol=1e-12)
    plain = replace(view, settings=view.settings.model_copy(update={"scale": "median"}))
    assert not torch.allclose(found, neighbours(plain), atol=1e-2)


@pytest.mark.parametrize(("clusters", "wanted"), [(None, 3), ((0,) * 30, 8)])
def test_there_are_more_neighbours_inside_clusters(clusters, wanted):
    features = features_of(10, 0.6)
    asked, given = (view_of(features, clusters, nearest=count) for count in ("auto", wanted))
    assert torch.equal(neighbours(asked), neighbours(given))
    assert not torch.equal(neighbours(asked), neighbours(view_of(features, clusters)))
