"""What the server makes of sketches, on planted ones, against plain loops in float64."""

import numpy as np
import pytest
import torch
from sklearn.metrics import silhouette_score

from atlas.config.plan import FingerprintSettings
from atlas.federation.fingerprints import compare as module
from atlas.federation.fingerprints.compare import LEAST_RELIABLE, PartFacts, Prints, compare_prints

WIDTH = 96
FOLDS = 6


def directions(count, seed=0, width=WIDTH):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((width, count)))[0].T


def sent(signal, noise, seed=0, folds=FOLDS):
    """Folds [n, folds, width] that add up to the signal, and noise of length `noise` in all."""
    draw = np.random.default_rng(seed)
    n, width = signal.shape
    noises = draw.standard_normal((n, folds, width)) * noise / np.sqrt(folds * width)
    return torch.from_numpy(signal[:, None] / folds + noises)


def groups(each=4, count=3, seed=0):
    """Clients of equal signal within groups; groups at right angles."""
    return np.repeat(directions(count, seed), each, 0)


def by_client(**parts):
    parts = {name.replace("_head", "/head"): rows for name, rows in parts.items()}
    n = len(next(iter(parts.values())))
    return {f"c{i}": {name: rows[i] for name, rows in parts.items()} for i in range(n)}


def compare(sketches, labels=2, *, folds=FOLDS, dims=64, resamples=3, seed=0):
    """Compare clients whose parts are those they sent."""
    names = list(next(iter(sketches.values())))
    parts = [name for name in names if "/" not in name]
    settings = FingerprintSettings(
        parts=parts, folds=folds, dims=dims, head=any("/head" in name for name in names)
    )
    counts = [labels] * len(sketches) if isinstance(labels, int) else labels
    return compare_prints(sketches, counts, settings, resamples=resamples, seed=seed)


def gram(rows):
    return (rows @ rows.T).numpy()


def naive_facts(rows):
    """Reliability and spread of one part by loops over clients, folds and numbers."""
    n, folds, width = len(rows), len(rows[0]), len(rows[0][0])

    def total(i, chosen):
        return [sum(rows[i][f][w] for f in chosen) for w in range(width)]

    def centred(chosen):
        sums = [total(i, chosen) for i in range(n)]
        lengths = [sum(v * v for v in total(i, range(folds))) ** 0.5 for i in range(n)]
        unit = [[v / lengths[i] for v in sums[i]] for i in range(n)]
        mean = [sum(row[w] for row in unit) / n for w in range(width)]
        return [v - m for row in unit for v, m in zip(row, mean, strict=True)]

    odd, even = centred(range(1, folds, 2)), centred(range(0, folds, 2))
    dot = sum(a * b for a, b in zip(odd, even, strict=True))
    half = dot / (sum(a * a for a in odd) * sum(b * b for b in even)) ** 0.5
    whole = centred(range(folds))
    return 2 * half / (1 + half), (sum(v * v for v in whole) / n) ** 0.5, whole, odd, even


@pytest.mark.parametrize("folds", [2, 5, 6])
def test_features_equal_plain_loops(folds):
    text = sent(groups(2)[:, :12] + 0.1, 0.3, 1, folds)
    label = sent(directions(6, 3)[:, :12], 1.0, 2, folds)
    found = compare(by_client(text=text, label=label), folds=folds)
    wanted = {"whole": [[] for _ in range(6)], "odd": [[] for _ in range(6)]}
    wanted["even"] = [[] for _ in range(6)]
    for name, rows in (("text", text), ("label", label)):
        reliability, spread, whole, odd, even = naive_facts(rows.tolist())
        weight = max(reliability, LEAST_RELIABLE) ** 2
        assert found.parts[name].reliability == pytest.approx(reliability, abs=1e-10)
        assert found.parts[name].spread == pytest.approx(spread, abs=1e-12)
        assert found.parts[name].weight == pytest.approx(weight, abs=1e-10)
        for kind, values in (("whole", whole), ("odd", odd), ("even", even)):
            for i, row in enumerate(wanted[kind]):
                row += [v * weight / spread for v in values[12 * i : 12 * (i + 1)]]
    unit = {k: np.array([np.array(r) / np.linalg.norm(r) for r in v]) for k, v in wanted.items()}
    # Principal components keep angles, and here all of them are kept.
    assert found.features.dtype == torch.float64
    assert np.allclose(gram(found.features), unit["whole"] @ unit["whole"].T, atol=1e-10)
    assert np.allclose(found.halves[0], unit["odd"], atol=1e-10)
    assert np.allclose(found.halves[1], unit["even"], atol=1e-10)


def test_resamples_add_up_the_folds_that_were_drawn():
    rows = sent(groups(2), 0.8, 1)
    found = compare(by_client(text=rows), resamples=4, seed=3)
    length = rows.sum(1).norm(dim=1)[:, None]
    for number, resample in enumerate(found.resamples):
        draws = module._draw([f"c{i}" for i in range(6)], FOLDS, 3, number)
        assert all(len(pick) == FOLDS and set(pick) <= set(range(FOLDS)) for pick in draws)
        wanted = torch.stack([rows[i, pick].sum(0) for i, pick in enumerate(draws)]) / length
        wanted = wanted - wanted.mean(0)
        wanted = wanted / wanted.norm(dim=1, keepdim=True)
        assert torch.allclose(resample, wanted, rtol=0, atol=1e-10)
    assert len({tuple(pick) for pick in draws}) > 1, "every client draws for itself"


def test_halves_and_resamples_have_the_right_shapes_and_differ():
    rows = {"text": sent(groups(), 0.5, 1), "label": sent(groups(), 0.5, 2)}
    found = compare(by_client(**rows), resamples=5)
    assert len(found.resamples) == 5
    for part in (*found.halves, *found.resamples):
        assert tuple(part.shape) == (12, 2 * WIDTH)
        assert torch.allclose(part.norm(dim=1), torch.ones(12).double())
    assert not torch.allclose(*found.halves, atol=1e-3)
    several = torch.stack([r.flatten() for r in found.resamples])
    assert float(torch.pdist(several).min()) > 1e-2
    again = compare(by_client(**rows), resamples=5)
    assert all(torch.equal(a, b) for a, b in zip(found.resamples, again.resamples, strict=True))
    other = compare(by_client(**rows), resamples=5, seed=1)
    assert not torch.equal(found.resamples[0], other.resamples[0])
    assert torch.equal(found.features, other.features), "the seed draws resamples and no features"


def test_reliability_is_one_without_noise_and_zero_in_noise():
    clean = compare(by_client(text=sent(groups(), 0.0)))
    assert clean.parts["text"].reliability == pytest.approx(1.0, abs=1e-9)
    assert clean.reliability == pytest.approx(1.0, abs=1e-9)
    nothing = np.zeros((12, WIDTH))
    found = [compare(by_client(text=sent(nothing, 1.0, seed))).reliability for seed in range(30)]
    assert abs(np.mean(found)) < 0.05
    shared = np.repeat(directions(1), 12, 0)  # what all clients have in common tells nothing
    found = [compare(by_client(text=sent(shared, 0.5, seed))).reliability for seed in range(30)]
    assert abs(np.mean(found)) < 0.05
    middle = [compare(by_client(text=sent(groups(), 1.0, s))).reliability for s in range(10)]
    assert 0.3 < np.mean(middle) < 0.9


def test_reliability_foretells_how_far_two_draws_agree():
    """What is stepped up from halves is the agreement of two whole draws."""
    means = groups(3)

    def differences(seed):
        rows = sent(means, 1.0, seed).sum(1)
        rows = rows / rows.norm(dim=1, keepdim=True)
        return (rows - rows.mean(0)).flatten()

    agreement = [
        float(torch.nn.functional.cosine_similarity(differences(s), differences(s + 100), dim=0))
        for s in range(40)
    ]
    told = [compare(by_client(text=sent(means, 1.0, s))).reliability for s in range(40)]
    assert np.mean(told) == pytest.approx(np.mean(agreement), abs=0.05)


def test_halves_that_contradict_each_other_are_not_reliable():
    signal = directions(4)
    rows = torch.from_numpy(np.stack([signal, -0.9 * signal], 1))
    found = compare(by_client(text=rows), folds=2).parts["text"]
    assert found.reliability == -1.0
    assert found.weight == pytest.approx(LEAST_RELIABLE**2)


def test_a_noisy_part_counts_little_and_with_equal_weights_it_would_spoil_the_groups(monkeypatch):
    truth = np.repeat(range(3), 4)
    noise = sent(np.zeros((12, WIDTH)), 1.0, 7)
    sketches = by_client(text=sent(groups(), 0.3, 1), label=noise)
    found = compare(sketches)
    assert found.parts["label"].weight < 0.1 * found.parts["text"].weight
    assert silhouette_score(found.features, truth) > 0.6
    whole = module._facts
    monkeypatch.setattr(
        module, "_facts", lambda rows: PartFacts(whole(rows).reliability, 1.0, whole(rows).spread)
    )
    equal = compare(sketches)
    gap = silhouette_score(found.features, truth) - silhouette_score(equal.features, truth)
    assert gap > 0.2


def test_where_texts_are_alike_the_labels_decide():
    opposed = np.concatenate([directions(1)] * 4 + [-directions(1)] * 4)
    text = sent(np.repeat(directions(1, 5), 8, 0), 0.3, 1)
    found = compare(by_client(text=text, label=sent(opposed, 0.5, 2)))
    assert found.parts["label"].weight > 5 * found.parts["text"].weight
    assert silhouette_score(found.features, [0] * 4 + [1] * 4) > 0.6


def test_parts_of_any_size_count_the_same():
    text, label = sent(groups(), 0.3, 1), sent(groups(seed=4), 0.3, 2)
    plain = compare(by_client(text=text, label=label))
    stronger = torch.linspace(0.1, 50, 12)[:, None, None]
    scaled = compare(by_client(text=text * stronger, label=1e-4 * label))
    assert torch.allclose(scaled.features, plain.features, atol=1e-9)
    assert scaled.explained == pytest.approx(plain.explained)


def test_explained_variance_is_the_share_that_is_kept():
    rows = sent(directions(10), 0.2, 1)
    shares = [compare(by_client(text=rows), dims=dims).explained for dims in (1, 3, 9, 64)]
    unit = (rows.sum(1) / rows.sum(1).norm(dim=1, keepdim=True)).numpy()
    values = np.linalg.eigvalsh(np.cov(unit.T))[::-1]
    wanted = [values[:dims].sum() / values.sum() for dims in (1, 3, 9, 9)]
    assert shares == pytest.approx(wanted, abs=1e-9)
    assert 0 < shares[0] < shares[1] < shares[2] == pytest.approx(1.0)
    assert compare(by_client(text=rows), dims=3).features.shape == (10, 3)


def test_warnings_tell_of_lost_variance_and_of_noise_and_of_nothing_else():
    assert compare(by_client(text=sent(groups(), 0.1))).warnings() == []
    (lost,) = compare(by_client(text=sent(directions(10), 0.1)), dims=2).warnings()
    assert lost.startswith("2 components keep 0.2") and "less than 0.7" in lost
    (noise,) = compare(by_client(text=sent(np.zeros((9, WIDTH)), 1.0))).warnings()
    assert "reliability of the fingerprints is" in noise and "less than 0.5" in noise
    # A noisy part that hardly counts is no reason to warn.
    parts = by_client(text=sent(groups(), 0.1), label=sent(np.zeros((12, WIDTH)), 1.0, 3))
    assert compare(parts).warnings() == []
    # Two clients differ in one direction, whatever they are.
    assert compare(by_client(text=sent(np.zeros((2, WIDTH)), 1.0))).warnings() == []


def test_limits_of_warnings():
    facts = {"text": PartFacts(0.5, 0.25, 1.0), "label": PartFacts(0.5, 0.01, 1.0)}
    rows = torch.eye(3, dtype=torch.float64)
    prints = Prints(("a", "b", "c"), rows, 0.7, facts, (rows, rows), (rows, rows))
    assert prints.warnings() == []
    below = {**facts, "label": PartFacts(0.3, 0.01, 1.0)}
    assert len(Prints(("a", "b", "c"), rows, 0.69, below, (rows, rows), ()).warnings()) == 2


def test_heads_count_only_between_clients_with_as_many_labels():
    body, heads = sent(groups(2), 0.1, 1), sent(directions(6, 9), 0.1, 2)
    others = sent(directions(6, 11), 0.1, 3)
    one, two = by_client(text=body, text_head=heads), by_client(text=body, text_head=others)
    assert set(compare(one).parts) == {"text", "text/head"}
    assert not np.allclose(gram(compare(one).features), gram(compare(two).features), atol=1e-2)
    for labels in ([2, 2, 2, 2, 2, 3], [0, 2, 2, 2, 2, 2]):
        assert set(compare(one, labels).parts) == {"text"}
        assert torch.equal(compare(one, labels).features, compare(two, labels).features)
    assert set(compare(by_client(text=body), 0).parts) == {"text"}, "causal tasks have no heads"


def test_client_order_is_irrelevant():
    rows = by_client(text=sent(groups(2), 0.5, 1), label=sent(directions(6, 2), 0.8, 2))
    order = [3, 0, 5, 1, 4, 2]
    names = list(rows)
    plain, turned = compare(rows), compare({names[i]: rows[names[i]] for i in order})
    assert turned.clients == tuple(names[i] for i in order)
    assert np.allclose(gram(turned.features), gram(plain.features)[np.ix_(order, order)])
    for one, two in zip(plain.resamples + plain.halves, turned.resamples + turned.halves,
                        strict=True):  # fmt: skip
        assert torch.allclose(two, one[order], atol=1e-10)
    assert turned.reliability == pytest.approx(plain.reliability)


def test_a_single_client_has_nothing_to_be_compared_with():
    found = compare(by_client(text=sent(directions(1), 0.5), label=sent(directions(1, 1), 0.5)))
    assert found.features.shape == (1, 0)
    assert (found.explained, found.reliability) == (1.0, 0.0)
    assert found.warnings() == []
    assert all(not part.any() for part in (*found.halves, *found.resamples))


def test_two_clients_are_opposites():
    found = compare(by_client(text=sent(directions(2), 0.1)))
    assert sorted(found.features.flatten().tolist()) == pytest.approx([-1.0, 1.0])
    assert found.explained == pytest.approx(1.0)


def test_a_part_that_nobody_has_counts_nothing():
    text = sent(groups(2), 0.2, 1)
    plain = compare(by_client(text=text), 0)
    causal = compare(by_client(text=text, label=torch.zeros_like(text)), 0)
    assert causal.parts["label"] == PartFacts(0.0, LEAST_RELIABLE**2, 0.0)
    assert np.allclose(gram(causal.features), gram(plain.features))
    assert torch.isfinite(causal.halves[0]).all()
