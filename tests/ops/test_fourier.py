"""Spectra, circles and losses by frequency, against sums written out, over plain and log orders."""

import math

import pytest
import torch

from atlas.ops.fourier import (
    circle_points,
    circular_fit,
    discrete_logarithms,
    excluded_logits,
    gini,
    grid_loss,
    is_prime,
    key_frequencies,
    neuron_share,
    primitive_root,
    residue_order,
    restricted_logits,
    spectrum,
    top_share,
)


def drawn(*shape, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


def naive_power(column, k):
    """What cos and sin at k explain of a column, by explicit sums."""
    n = len(column)
    mean = sum(column) / n
    explained = 0.0
    for wave in (math.cos, math.sin):
        waves = [wave(2 * math.pi * k * t / n) for t in range(n)]
        size = sum(w * w for w in waves)
        if size > 1e-9:
            explained += sum(w * (c - mean) for w, c in zip(waves, column, strict=True)) ** 2 / size
    return explained


@pytest.mark.parametrize("n", [5, 12, 13])
def test_powers_are_those_of_explicit_sums_and_add_up_to_the_variance(n):
    table = drawn(n, 3) + 4.0
    power = spectrum(table)
    assert power.shape == (n // 2, 3)
    for k in range(1, n // 2 + 1):
        for column in range(3):
            wanted = naive_power(table[:, column].tolist(), k)
            assert math.isclose(float(power[k - 1, column]), wanted, abs_tol=1e-11)
    centred = table - table.mean(0)
    assert torch.allclose(power.sum(0), centred.square().sum(0), atol=1e-11)


def waves(n, frequencies, phases):
    angles = 2 * math.pi * torch.arange(n, dtype=torch.float64)[:, None] / n
    return (angles * torch.tensor(frequencies) + torch.tensor(phases)).cos()


def test_concentration_of_pure_waves_and_of_noise():
    pure = waves(97, [3, 3, 17, 40], [0.1, 1.2, 0.4, 2.0])
    assert math.isclose(neuron_share(pure), 1.0, abs_tol=1e-12)
    total = spectrum(pure).sum(1)
    assert key_frequencies(total, 3)[0] == 3
    assert sorted(key_frequencies(total, 3)) == [3, 17, 40]
    assert math.isclose(top_share(total, 3), 1.0, abs_tol=1e-12)
    assert gini(total) > 0.9
    noise = drawn(97, 200)
    assert neuron_share(noise) < 0.15
    assert top_share(spectrum(noise).sum(1)) < 0.14  # chance is 5 / 48 = .104
    assert gini(spectrum(noise).sum(1)) < 0.1


def test_neuron_share_is_the_power_weighted_mean_over_columns():
    table = drawn(13, 6) * torch.tensor([1.0, 5.0, 0.1, 2.0, 0.0, 3.0], dtype=torch.float64)
    power = spectrum(table)
    shares = [float(c.max() / c.sum()) if c.sum() > 0 else 0.0 for c in power.T]
    weights = [float(c.sum()) for c in power.T]
    wanted = sum(s * w for s, w in zip(shares, weights, strict=True)) / sum(weights)
    assert math.isclose(neuron_share(table), wanted, rel_tol=1e-12)
    # Columns apart: many frequencies, one a neuron, count as concentrated here and not by top-k.
    spread = waves(97, list(range(1, 49)), [0.3] * 48)
    assert neuron_share(spread) > 0.99
    assert top_share(spectrum(spread).sum(1)) < 0.12


def test_gini_by_the_mean_difference():
    power = drawn(11).square()
    apart = (power[:, None] - power[None]).abs().mean()
    assert math.isclose(gini(power), float(apart / (2 * power.mean())), rel_tol=1e-12)
    assert gini(torch.ones(7)) == pytest.approx(0, abs=1e-12)
    assert gini(torch.zeros(7)) == 0.0
    assert gini(torch.tensor([0.0, 0.0, 0.0, 2.0])) == pytest.approx(0.75)


def test_a_circle_is_found_and_an_ellipse_told_apart():
    angles = 2 * math.pi * 7 * torch.arange(13, dtype=torch.float64) / 13
    axes = torch.linalg.qr(drawn(9, 2)).Q.T
    circle = torch.stack([angles.cos(), angles.sin()], 1) @ axes
    fit = circular_fit(circle + 5.0)
    assert fit.frequency == 6  # 7 rounds of 13 are 6 the other way
    assert fit.r_squared == pytest.approx(1)
    assert fit.isotropy == pytest.approx(1)
    flat = torch.stack([angles.cos(), 0.25 * angles.sin()], 1) @ axes
    assert circular_fit(flat).isotropy == pytest.approx(0.25)
    other = circular_fit(circle, 2)
    assert other.r_squared == pytest.approx(0, abs=1e-12)
    assert circle_points(circle, 6).norm(dim=1) == pytest.approx(torch.ones(13))
    assert circular_fit(drawn(97, 64)).r_squared < 0.1


@pytest.mark.parametrize("p", [5, 7, 13, 97, 113])
def test_discrete_logarithms_turn_products_into_sums(p):
    g, logs = primitive_root(p), discrete_logarithms(p)
    assert logs[0] == -1
    assert sorted(logs[1:].tolist()) == list(range(p - 1))
    for a in range(1, p):
        assert pow(g, int(logs[a]), p) == a
        for b in (1, 2, p - 1):
            assert logs[a * b % p] == (logs[a] + logs[b]) % (p - 1)
    order = residue_order("divide", p)
    assert logs[order].tolist() == list(range(p - 1))
    assert residue_order("subtract", p).tolist() == list(range(p))


def test_primes():
    assert [n for n in range(30) if is_prime(n)] == [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]


def test_waves_of_products_are_seen_over_logarithms_alone():
    p = 97
    order = residue_order("multiply", p)
    table = torch.zeros(p, 4, dtype=torch.float64)
    table[order] = waves(p - 1, [5, 5, 11, 48], [0.2, 1.0, 0.7, 0.0])
    assert neuron_share(table[order]) == pytest.approx(1)
    assert neuron_share(table) < 0.3


def planted(operation, p, frequencies):
    """Logits of a model that does it by waves: sum over k of cos(2 pi k (a o b - c) / n)."""
    order = residue_order(operation, p)
    n = len(order)
    place = torch.full((p,), -1)
    place[order] = torch.arange(n)
    a, b = order[:, None], order[None]
    answers = {
        "add": (a + b) % p,
        "subtract": (a - b) % p,
        "multiply": a * b % p,
        "divide": a * torch.tensor([pow(int(x), -1, p) if x else 0 for x in range(p)])[b] % p,
    }[operation]
    apart = (place[answers][:, :, None] - place[torch.arange(p)]).double()
    logits = sum((2 * math.pi * k * apart / n).cos() for k in frequencies)
    if n < p:
        logits[:, :, 0] = -1.0
    return 20 * logits, answers


@pytest.mark.parametrize("operation", ["add", "subtract", "multiply", "divide"])
def test_excluding_the_key_frequencies_forgets_and_restricting_keeps(operation):
    frequencies = [2, 3, 5]
    logits, answers = planted(operation, 13, frequencies)
    every = torch.ones(answers.shape, dtype=torch.bool)
    whole = grid_loss(logits, answers, every)
    assert whole < 0.1
    kept = restricted_logits(logits, operation, frequencies)
    left = excluded_logits(logits, operation, frequencies)
    assert torch.allclose(kept, logits, atol=1e-9)
    assert grid_loss(left, answers, every) > 2.0
    # Other frequencies explain nothing of it.
    assert grid_loss(excluded_logits(logits, operation, [1, 4]), answers, every) < 0.1
    assert grid_loss(restricted_logits(logits, operation, [1, 4]), answers, every) > 2.0


@pytest.mark.parametrize(("operation", "sign"), [("add", 1), ("divide", -1)])
def test_projections_by_explicit_sums(operation, sign):
    p = 7
    n = len(residue_order(operation, p))
    logits, frequencies = drawn(n, n, p), [1, n // 2]
    wanted = torch.zeros_like(logits)
    for k in frequencies:
        for wave in (math.cos, math.sin):
            w = torch.tensor(
                [[wave(2 * math.pi * k * (a + sign * b) / n) for b in range(n)] for a in range(n)],
                dtype=torch.float64,
            )
            size = float((w * w).sum())
            if size > 1e-9:
                for c in range(p):
                    wanted[:, :, c] += w * float((w * logits[:, :, c]).sum()) / size
    found = excluded_logits(logits, operation, frequencies)
    assert torch.allclose(found, logits - wanted, atol=1e-11)
    kept = restricted_logits(logits, operation, frequencies)
    assert torch.allclose(kept, logits.mean((0, 1)) + wanted, atol=1e-11)


def test_nothing_of_a_memorised_table_is_lost_without_the_key_frequencies():
    answers = torch.arange(13)[:, None].add(torch.arange(13)[None]) % 13
    logits = 10 * torch.nn.functional.one_hot(answers, 13).double() + drawn(13, 13, 13)
    asked = drawn(13, 13, seed=3) > 0
    by_heart = torch.where(asked[:, :, None], logits, drawn(13, 13, 13, seed=4))
    power = spectrum(drawn(13, 8)).sum(1)
    left = excluded_logits(by_heart, "add", key_frequencies(power, 1))
    assert grid_loss(left, answers, asked) < 0.5
