"""Tables and pictures of studies over arms, and of distances, from fabricated results."""

import io

import pytest
from matplotlib.image import imread
from rich.console import Console

from atlas.report.figures import study as sweeps
from atlas.report.figures.study import plot_study, swept_keys
from atlas.report.tables.compare import compare_table
from tests.report.figures.test_study import study

ETA = {"relation.eta": [0, 0.1, 0.5], "seed": [0, 1]}


def with_arms(result, arms):
    """The same study, as if its values of `strategy` were arms."""
    for row in result["rows"]:
        name, settings = arms[row["keys"].pop("strategy")]
        row["columns"] = {"arm": name, **{k: v for k, v in row["keys"].items() if k != "seed"}}
        row["keys"] = {**settings, **row["keys"]}
    return result


def with_distances(result, first=4.0):
    for number, row in enumerate(result["rows"]):
        ends = {"first": first / (1 + number), "last": 0.0123456 * (1 + number)}
        row["distance"] = {end: {"trained": 5.0, "mixed": far} for end, far in ends.items()}
    return result


def printed(result, width=120):
    """The lines of a study's tables, as words."""
    console = Console(width=width, file=io.StringIO())
    console.print(compare_table(result), crop=False)
    return [line.split() for line in console.file.getvalue().splitlines()]


def headings(lines):
    return [" ".join(line) for line in lines]


ARMS = {
    "a": ("control", {"data.tasks": "[rte]", "rounds": 3}),
    "b": ("data.tasks=[sst2,mrpc]", {"data.tasks": "x"}),
}


def test_tables_have_one_column_for_arms_and_one_for_each_other_key(tmp_path):
    axes = {"strategy": ["a", "b"], "train.lr": [0.1, 0.2], "seed": [0, 1]}
    result = with_arms(study(axes), ARMS)
    lines = printed(result)
    assert "arm train.lr seeds mean spread worst MB seconds p (t) p (W) d" in headings(lines)
    names = [line[:2] for line in lines if line[:1] in (["control"], ["data.tasks=[sst2,mrpc]"])]
    four = [["control", "0.1"], ["control", "0.2"]]
    four += [["data.tasks=[sst2,mrpc]", "0.1"], ["data.tasks=[sst2,mrpc]", "0.2"]]
    assert names == four + four
    # Only what has several values is swept; what arms differ in is not.
    assert swept_keys(result["rows"]) == ["train.lr"]
    plot_study(tmp_path, result)
    found = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert found == ["arms.png", "sweep-train.lr.png"]


def test_lines_of_a_sweep_are_named_by_arm():
    axes = {"strategy": ["a", "b"], "train.lr": [0.1, 0.2], "rounds": [1, 2]}
    result = with_arms(study(axes), {"a": ("control", {}), "b": ("alone=false", {})})
    labels = sweeps._sweep_figure(result, "train.lr").axes[0].get_legend_handles_labels()[1]
    assert "control, rounds=1" in labels and "alone=false, rounds=2" in labels


def with_errors(result, *errors):
    """The same study, its rows with these errors in turn."""
    for number, row in enumerate(result["rows"]):
        row["error"] = errors[number % len(errors)]
    return result


def test_errors_are_shown_where_some_mixture_is_inexact():
    axes = {"strategy": ["a", "b"], "seed": [0, 1]}
    lines = printed(with_errors(study(axes), 0.25, 0.75, None, None))
    names = next(line for line in lines if line[:1] == ["strategy"])
    assert names[names.index("seconds") + 1] == "error"
    costs = [line[5:8] for line in lines if line[:1] in (["a"], ["b"]) and "2" in line[:2]]
    assert costs[0][2] == "0.5", "the mean over seeds"
    assert "0.5" not in costs[1], "an arm that mixes nothing has none"
    for exact in ((None,), (1e-10, 0.0)):
        table = printed(with_errors(study(axes), *exact))
        assert not any("error" in line for line in table)


def test_distances_are_shown_where_relations_are_compared():
    lines = printed(with_distances(study(ETA)))
    header = "relation.eta seeds mean spread worst MB seconds distance last p (t) p (W) d"
    assert header in headings(lines)
    # Means of two seeds: 4 / 1 and 4 / 2, 0.0123456 * 1 and * 2, in three digits.
    assert next(line for line in lines if line[:2] == ["0", "2"])[-2:] == ["3", "0.0185"]
    plain = printed(with_distances(study({"rounds": [1, 2]})))
    assert not any("distance" in line for line in plain)
    # One arm that sets a relation is enough; runs without a distance leave blanks.
    arms = {"a": ("x", {"relation.eta": 0}), "b": ("y", {})}
    some = printed(with_arms(study({"strategy": ["a", "b"]}), arms))
    assert "arm seeds mean spread worst MB seconds distance last p (t) p (W) d" in headings(some)


def test_the_least_gain_is_shown_where_clients_trained_alone_too():
    result = study({"strategy": ["local", "fedavg"], "seed": [0, 1]})
    gains = {"strategy=local": None, "strategy=fedavg": -0.0123}
    result["clients"] = {arm: {"worst_gain": gain} for arm, gain in gains.items()}
    lines = printed(result)
    assert "strategy seeds mean spread worst gain MB seconds p (t) p (W) d" in headings(lines)
    local, fedavg = (next(x for x in lines if x[:1] == [name]) for name in ("local", "fedavg"))
    assert fedavg[5] == "-1.2" and local[5] == "3.0"
    result["clients"] = {arm: {"worst_gain": None} for arm in gains}
    assert not any("gain" in line for line in printed(result))


def test_narrow_terminals_cut_neither_names_nor_numbers():
    arms = {"a": ("no graph", {}), "b": ("control", {})}
    axes = {"strategy": ["a", "b"], "relation.eta": [0, 0.5]}
    lines = printed(with_distances(with_arms(study(axes), arms)), 60)
    assert ["no", "graph", "0"] in [line[:3] for line in lines]
    assert ["4", "0.0123"] in [line[-2:] for line in lines]


@pytest.mark.parametrize(("first", "scale"), [(4.0, "log"), (0.0, "linear")])
def test_a_swept_relation_has_a_panel_of_distances(tmp_path, first, scale):
    result = with_distances(study(ETA), first)
    figure = sweeps._sweep_figure(result, "relation.eta")
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert len(panels) == len(result["tasks"]) + 1
    assert panels[-1].get_yscale() == scale
    assert panels[0].get_yscale() == "linear"
    drawn = [line.get_ydata() for line in panels[-1].lines if len(line.get_ydata()) == 3]
    means = [0.0123456 * number for number in (1.5, 3.5, 5.5)]
    assert any(list(values) == pytest.approx(means) for values in drawn)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[-2:] == ["first round", "last round"] and len(set(names)) == len(names)
    plot_study(tmp_path, result)
    assert imread(tmp_path / "plots" / "sweep-relation.eta.png").std() > 0.01


def test_only_relations_with_distances_have_that_panel():
    result = study(ETA)
    assert len(sweeps._sweep_figure(result, "relation.eta").axes) == len(result["tasks"])
    result = with_distances(study({"rounds": [1, 2]}))
    assert len(sweeps._sweep_figure(result, "rounds").axes) == len(result["tasks"])
