"""Phases of grokking: decided on a series, in order, with hysteresis."""

import numpy as np
import pytest

from atlas.memory.training.grokking.phase import HOLD, PHASES, find_phases, first_starts

NAMES = [phase.name for phase in PHASES]


def ramp(*points, n=100):
    """Straight lines through (place, value), one value at each of n points."""
    places, values = zip(*points, strict=True)
    return np.interp(np.linspace(0, 1, n), places, values)


def found(fourier, accuracy, every=10):
    steps = [every * (i + 1) for i in range(len(fourier))]
    return find_phases(steps, list(fourier), list(accuracy))


def test_a_run_with_a_plateau_goes_through_all_phases_in_order():
    fourier = ramp((0, 0.1), (0.3, 0.2), (1, 0.95))
    accuracy = ramp((0, 0.01), (0.5, 0.02), (0.7, 0.99), (1, 1.0))
    phases = found(fourier, accuracy)
    assert [phase.name for phase in phases] == NAMES
    assert [phase.step for phase in phases] == sorted(phase.step for phase in phases)
    # Each where its thresholds are first met: by both measures, whichever comes last.
    for phase, rule in zip(phases[1:], PHASES[1:], strict=True):
        met = (fourier >= rule.fourier) & (accuracy >= rule.accuracy)
        assert phase.step == 10 * (int(met.argmax()) + 1)


def test_train_and_test_may_rise_together():
    fourier = ramp((0, 0.1), (0.2, 0.1), (0.4, 0.9), (1, 0.93))
    accuracy = ramp((0, 0.0), (0.25, 0.0), (0.4, 0.97), (1, 1.0))
    assert [phase.name for phase in found(fourier, accuracy)] == NAMES


def test_memorisation_and_nothing_later_without_waves_or_without_answers():
    low = ramp((0, 0.1), (1, 0.15))
    assert [p.name for p in found(low, ramp((0, 0), (1, 1)))] == NAMES[:1]
    waves = ramp((0, 0.1), (1, 0.95))
    assert [p.name for p in found(waves, ramp((0, 0), (1, 0.1)))] == NAMES[:2]


def test_no_phase_is_decided_from_fewer_points_than_it_takes():
    for count in range(1, HOLD + 2):
        fourier, accuracy = np.full(50, 0.1), np.full(50, 0.01)
        fourier[20 : 20 + count] = accuracy[20 : 20 + count] = 0.99
        names = [phase.name for phase in found(fourier, accuracy)]
        assert (names == NAMES[:1]) == (count < HOLD)
    assert [p.name for p in found([0.99] * (HOLD - 1), [0.99] * (HOLD - 1))] == NAMES[:1]
    assert found([], []) == []


def test_noise_about_a_threshold_does_not_flicker_but_a_fall_is_told():
    draw = np.random.default_rng(0)
    fourier = 0.3 + 0.04 * draw.uniform(-1, 1, 400)
    assert len(found(fourier, np.zeros(400))) == 2
    back = ramp((0, 0.1), (0.4, 0.9), (0.6, 0.9), (1, 0.1))
    names = [phase.name for phase in found(back, np.ones(100))]
    assert names == [*NAMES, *reversed(NAMES[:-1])]
    assert [p.name for p in first_starts(found(back, np.ones(100)))] == NAMES


def test_without_hysteresis_it_would_flicker(monkeypatch):
    draw = np.random.default_rng(0)
    fourier = 0.3 + 0.04 * draw.uniform(-1, 1, 400)
    monkeypatch.setattr("atlas.memory.training.grokking.phase.HOLD", 1)
    monkeypatch.setattr("atlas.memory.training.grokking.phase.MARGIN", 0.0)
    assert len(found(fourier, np.zeros(400))) > 50


def test_what_was_not_finite_is_in_no_later_phase():
    assert [p.name for p in found([float("nan")] * 10, [1.0] * 10)] == NAMES[:1]


def test_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="equal length"):
        find_phases([1, 2], [0.1], [0.1, 0.2])
