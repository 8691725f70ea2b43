"""Pictures of rounds: each is there when its events are, and shows their numbers."""

import numpy as np

from atlas.report.figures.rounds import (
    gates_figure,
    losses_figure,
    round_figures,
    routing_figure,
    steps_figure,
)

TASKS = {"a1": "one", "a2": "one", "b1": "two"}


def make_events(rounds=4):
    events = [{"event": "started", "tasks": TASKS}]
    for number in range(1, rounds + 1):
        for place, client in enumerate(TASKS):
            fitted = {"event": "fitted", "round": number, "client": client}
            beta = [0.0, 0.0] if number == 1 else [0.5 + 0.1 * place, 0.25]
            events.append({**fitted, "loss": 3.0 / number + place, "beta": beta})
            scores = {"members": {client: {"loss": 2.0 / number}}}
            scores["alone"] = {client: {"loss": 2.5 / number}}
            events.append({"event": "validated", "round": number, **scores})
        opened = {client: [number % 2 == 0, True, False] for client in TASKS}
        events.append({"event": "routed", "round": number, "cohort": "core", "open": opened})
        weights = [[0, 0.7, 0.3], [0.6, 0, 0.4], [0.5, 0.5, 0]]
        mixed = {"event": "mixed", "round": number, "cohort": "core"}
        events.append({**mixed, "clients": list(TASKS), "weights": weights})
    return events


def test_a_run_with_everything_has_all_pictures():
    assert [name for name, _ in round_figures(make_events())] == [
        "losses",
        "gates",
        "routing",
    ]


def test_steps_show_what_was_estimated():
    told = {"noise": 1.0, "difference": 1.0, "rho": 0.5}
    events = [
        {"event": "shrunk", "round": n, "cohort": "tiny", "clients": {
            "a1": {**told, "keep": 0.2 * n, "eta": 0.6}, "a2": {**told, "keep": 0.4, "eta": 0.2},
            "b1": None}}
        for n in (1, 2)
    ]  # fmt: skip
    left, right = steps_figure(events, TASKS).axes
    assert np.allclose(left.lines[0].get_ydata(), [0.3, 0.4])
    assert np.allclose(right.lines[0].get_ydata(), [0.4, 0.4])
    assert len(left.lines) == 1
    assert steps_figure([], TASKS) is None


def test_what_a_run_has_not_is_left_out():
    events = [e for e in make_events() if e["event"] in ("started", "fitted")]
    plain = [{k: v for k, v in event.items() if k != "beta"} for event in events]
    assert [name for name, _ in round_figures(plain)] == ["losses"]
    assert not list(round_figures([{"event": "started", "tasks": TASKS}]))


def test_losses_are_the_means_of_each_task():
    left, _ = losses_figure(make_events(), TASKS).axes
    line = next(line for line in left.lines if line.get_label() == "one")
    assert np.allclose(line.get_ydata(), [3.0 / n + 0.5 for n in (1, 2, 3, 4)])


def test_the_loss_of_training_alone_is_dashed_beside_that_of_validation():
    left, right = losses_figure(make_events(), TASKS).axes
    lines = [line for line in right.lines if line.get_linestyle() == "--" and line.get_xdata().size]
    assert len(lines) == 2 and np.allclose(lines[0].get_ydata(), [2.5 / n for n in (1, 2, 3, 4)])
    told = [{k: v for k, v in event.items() if k != "alone"} for event in make_events()]
    left, right = losses_figure(told, TASKS).axes
    assert len(right.lines) == 2 and right.get_legend() is None


def test_gates_show_what_was_told():
    left, right = gates_figure(make_events(), TASKS).axes[:2]
    line = next(line for line in left.lines if line.get_label() == "two")
    assert np.allclose(line.get_ydata(), [0.0, 0.475, 0.475, 0.475])
    shown = right.images[0].get_array()
    assert shown.shape == (2, 4)
    assert np.allclose(shown[0], [0.0, 0.6, 0.6, 0.6])


def test_masks_are_drawn_client_by_client():
    figure = routing_figure(make_events())
    first = figure.axes[0].images[0].get_array()
    assert first.tolist() == [[0, 1, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]]
    assert "50% open" in figure.axes[0].get_title()
