"""The picture of every client's result: names for few, and no wider for many; one round is one."""

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from atlas.report.colours import PALETTE
from atlas.report.figures.drawing import least_span, log_if_wide, new_figure, whole_rounds
from atlas.report.figures.run import MOST_NAMED, clients_title, draw_clients, draw_validation


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
def test_every_client_has_its_marks_and_few_have_names(count, alone):
    axes = Figure().subplots()
    draw_clients(axes, summary(count, alone), {"c0000": "b", "c0001": "a"})
    marks = {c.get_label(): c.get_offsets()[:, 1] for c in axes.collections if len(c.get_offsets())}
    assert marks["fedavg"].tolist() == pytest.approx([80] * count)
    assert ("alone" in marks) == alone
    fills = [to_hex(ink) for ink in next(
        c for c in axes.collections if c.get_label() == "fedavg"
    ).get_facecolor()]  # fmt: skip
    assert fills[:2] == [PALETTE[1], PALETTE[0]], "the colours of their tasks"
    (levels,) = [c for c in axes.collections if c.get_label() == "majority"]
    ends = [segment[:, 1] for segment in levels.get_segments()]
    assert [end[0] for end in ends] == pytest.approx([50 + i / 1e3 for i in range(count)])
    names = [label.get_text() for label in axes.get_xticklabels()]
    if count <= MOST_NAMED:
        assert names == [f"c{i:04d}" for i in range(count)]
    else:
        assert not names and axes.get_xlabel() == f"{count:,} clients, by name"


def test_one_round_is_one_tick_and_the_test_stands_beside_it():
    axes, tasks = Figure().subplots(), {"a": "t", "b": "t"}
    found = {"score": {"clients": {"a": 0.8, "b": 0.6}}, "alone": {"clients": {"a": 0.5, "b": 0.5}}}
    events = [
        {"event": "validated", "round": 1, "members": {c: {"score": 0.7}}} for c in tasks
    ]  # fmt: skip
    draw_validation(axes, events, found, tasks)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "test"]
    ends = {line.get_ydata()[0]: line.get_markerfacecolor() for line in axes.lines[1:3]}
    assert ends[50.0] == "white" and ends[70.0] == PALETTE[0]


def test_training_alone_is_a_dashed_line_where_it_was_validated():
    tasks, found = {"a": "t", "b": "u"}, {"score": {"clients": {"a": 0.8, "b": 0.6}}}
    solo = [
        {"event": "validated", "round": n, "members": {c: {"score": 0.7}},
         "alone": {c: {"score": 0.5 + 0.01 * n}}}
        for n in (1, 2) for c in tasks
    ]  # fmt: skip

    def dashed(events):
        axes = Figure().subplots()
        draw_validation(axes, events, found, tasks)
        legend = [text.get_text() for text in axes.get_legend().get_texts()]
        own = [
            line for line in axes.lines if line.get_linestyle() == "--" and len(line.get_xdata())
        ]
        return legend, own

    legend, own = dashed(solo)
    assert "alone" in legend and [line.get_color() for line in own] == list(PALETTE[:2])
    assert own[0].get_ydata().tolist() == pytest.approx([51, 52])
    legend, own = dashed([{k: v for k, v in event.items() if k != "alone"} for event in solo])
    assert "alone" not in legend and not own


def test_titles_say_what_came_of_it():
    found = {"strategy": "atlas", "rounds": 1, "gain": {"mean": 0.041, "worst": -0.02}}
    assert clients_title(found) == (
        "atlas after 1 round: +4.1 points over alone on average, least -2.0"
    )


def test_axes_neither_exaggerate_nor_count_halves_of_rounds():
    axes = Figure().subplots()
    axes.plot([3], [50.0])
    whole_rounds(axes)
    assert list(axes.get_xticks()) == [3] and axes.get_xlim() == (2.5, 3.5)
    axes.set_ylim(49.9, 50.1)
    least_span(axes)
    assert axes.get_ylim() == pytest.approx((48, 52))
    axes = new_figure(4, 4).subplots()
    axes.plot([1, 2], [0.5, 40])
    log_if_wide(axes, [0.5, 40])
    axes.figure.canvas.draw()
    assert {"0.5", "1", "2", "5", "10", "20"} <= {t.get_text() for t in axes.get_yticklabels()}
