"""What a memory run says and draws."""

import pytest
from rich.console import Console

from atlas.report.read.series import by_arm, layer_means, trained
from atlas.report.tables.runs import memory_table
from tests.report.test_report_live import lines

STARTED = {"kind": "memory", "rounds": 2, "after": 0, "steps": 100, "task": "recall"}
ROUND = {"round": 1, "step": 50, "seconds": 2.04}
EVENTS = [
    {"event": "trained", "arm": "memory", "step": 10, "loss": 3.0,
     "memory": {"layers.0/gate.mix.mean": 0.2, "layers.1/gate.mix.mean": 0.4,
                "layers.0/M_norm": 2.0, "layers.0/gate.mix.spread": 9.0}},
    {"event": "trained", "arm": "window", "step": 10, "loss": None, "memory": {}},
    {"event": "round_finished", "step": 50, "accuracy": {"memory": 0.5, "window": 0.1}},
]  # fmt: skip


def test_a_round_is_one_line():
    found = lines(
        ("started", {**STARTED, "parameters": {"memory": 1234, "window": 1230}}),
        ("trained", {"loss": 3.0}),
        (
            "round_finished",
            {**ROUND, "loss": {"memory": 1.5, "window": 3.0}, "accuracy": {"memory": 0.5}},
        ),
    )
    assert found == [
        "recall  parameters: memory 1,234  window 1,230",
        "step 50/100  memory 50.0 (loss 1.500)  2.0 s",
    ]


def test_pictures_are_drawn_from_events():
    assert by_arm(EVENTS, "round_finished", "accuracy", 100) == {
        "memory": {50: 50.0},
        "window": {50: 10.0},
    }
    assert trained(EVENTS, "loss") == {"memory": {10: 3.0}}, "a loss that is no number has no point"
    gates = layer_means(EVENTS, "memory", ".mean")
    assert gates == {"mix": {10: pytest.approx(0.3)}}, "layers are averaged, spreads left out"
    assert layer_means(EVENTS, "memory", "_norm") == {"M": {10: 2.0}}
    assert layer_means(EVENTS, "window", ".mean") == {}


def test_the_table_shows_arms_chance_and_gate():
    arm = {"accuracy": 0.995, "loss": 0.02, "parameters": 1234, "seconds": 5.0}
    summary = {
        "task": "recall", "steps": 100, "seconds": 9.0, "chance": 0.03125,
        "arms": {"memory": arm, "window": {**arm, "accuracy": 0.1, "loss": None}},
        "gates": {"mean": 0.5, "floor": 0.05},
    }  # fmt: skip
    console = Console(record=True, width=100)
    console.print(memory_table(summary))
    text = console.export_text()
    for words in ("99.5", "10.0", "not finite", "1,234", "chance", "3.1", "memory 0.50, floor"):
        assert words in text
