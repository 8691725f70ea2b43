"""The picture of energy by rank band, from events alone."""

import pytest

from atlas.report.figures.energy import energy_figures


def mixed(number, rows):
    energy = {"bands": [2, 4, 8], "trained": rows, "mixed": rows}
    return {"event": "mixed", "cohort": "m", "round": number, "clients": ["a", "b", "c"]} | {
        "energy": energy
    }


def test_a_panel_for_each_rank_and_a_line_for_each_band_it_reaches_beyond():
    rows = [[1.0, 0.0, 0.0], [0.9, 0.1, 0.0], [0.7, 0.2, 0.1]]
    later = [[1.0, 0.0, 0.0], [0.98, 0.02, 0.0], [0.95, 0.04, 0.01]]
    ranks = {"a": [2, 2], "b": [4, 2], "c": [8, 4]}
    ((name, figure),) = energy_figures([mixed(1, rows), mixed(2, later)], ranks)
    assert name == "energy"
    titles = {axes.get_title(): axes for axes in figure.axes}
    assert list(titles) == ["Rank 8, 1 client", "Rank 4, 1 client"]
    lines = {line.get_label(): line.get_ydata() for line in titles["Rank 8, 1 client"].lines}
    assert lines["beyond rank 2"] == pytest.approx([30, 5])
    assert lines["beyond rank 4"] == pytest.approx([10, 1])
    assert len(titles["Rank 4, 1 client"].lines) == 1
