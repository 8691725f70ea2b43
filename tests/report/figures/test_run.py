"""The picture of every client's result: names for few, and no wider for many."""

import pytest
from matplotlib.figure import Figure

from atlas.report.figures.run import MOST_NAMED, draw_clients


def summary(count, alone=False):
    names = [f"c{i:04d}" for i in range(count)]
    found = {
        "strategy": "fedavg",
        "rounds": 2,
        "score": {"clients": dict.fromkeys(names, 0.8)},
        "majority": {"clients": {name: 0.5 + i / 1e5 for i, name in enumerate(names)}},
    }
    return found | ({"alone": {"clients": dict.fromkeys(names, 0.7)}} if alone else {})


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("count", [3, MOST_NAMED, MOST_NAMED + 1, 1000])
def test_every_client_has_its_bars_and_few_have_names(count, alone):
    axes = Figure().subplots()
    draw_clients(axes, summary(count, alone))
    assert len(axes.patches) == count * (2 if alone else 1)
    (levels,) = [c for c in axes.collections if c.get_label() == "majority"]
    ends = [segment[:, 1] for segment in levels.get_segments()]
    assert [end[0] for end in ends] == pytest.approx([50 + i / 1e3 for i in range(count)])
    names = [label.get_text() for label in axes.get_xticklabels()]
    if count <= MOST_NAMED:
        assert names == [f"c{i:04d}" for i in range(count)]
    else:
        assert not names and axes.get_xlabel() == f"{count:,} clients, by name"
