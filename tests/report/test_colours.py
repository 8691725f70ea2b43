"""Colours can be told apart and read, also by those who lack one kind of cone."""

import itertools

import numpy as np
import pytest

from atlas.report.colours import SLOTS, cluster_slots, css_variables, task_slots

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
RED = [(0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216)]
GREEN = [(0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413)]
BLUE = [(1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602)]
SEES = {
    "all cones": np.eye(3),
    "no red cones": np.array([*RED, (-0.003882, -0.048116, 1.051998)]),
    "no green cones": np.array([*GREEN, (-0.011820, 0.042940, 0.968881)]),
    "no blue cones": np.array([*BLUE, (0.004733, 0.691367, 0.303900)]),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour):
    values = np.array([int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    x, y, z = XYZ @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = [v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one, other):
    low, high = sorted(float(XYZ[1] @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("eyes", SEES)
@pytest.mark.parametrize("side", [0, 1], ids=["light", "dark"])
def test_the_first_six_can_be_told_apart(eyes, side):
    seen = [lab(SEES[eyes] @ linear(pair[side])) for pair in SLOTS[:6]]
    for (a, one), (b, other) in itertools.combinations(enumerate(seen), 2):
        assert np.linalg.norm(one - other) > (15, 10)[side], (a, b)


def test_colours_can_be_read_as_text():
    for light, dark in SLOTS:
        assert contrast(light, "#ffffff") > 3.9
        assert contrast(dark, "#191f27") > 5


def test_clusters_take_the_colours_of_their_tasks():
    slots = task_slots(["b", "a", "c", "a"])
    assert slots == {"a": 0, "b": 1, "c": 2}
    assert cluster_slots([0, 0, 1, 2], ["c", "c", "a", "c"], slots) == {0: 2, 1: 0, 2: 3}
    assert cluster_slots([0, 1], ["unknown", "a"], slots) == {0: 3, 1: 0}


def test_style_sheets_have_every_slot():
    assert all(f"--s{slot}: {light};" in css_variables() for slot, (light, _) in enumerate(SLOTS))
