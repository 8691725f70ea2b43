"""Seconds until commands answer, and bars of benchmarks."""

import sys

import pytest

from atlas.bench import startup
from atlas.bench.startup import find_commands, find_ratios, seconds_of
from atlas.report.bench import OTHERS, draw_bars, draw_federation, draw_startup
from atlas.report.figures.drawing import PALETTE, new_figure


def test_every_command_is_timed_after_one_call_that_is_not_counted(monkeypatch, tmp_path):
    calls = []
    seconds = iter([9.0, 1.0, 3.0, 9.0, 20.0, 40.0])
    monkeypatch.setattr(startup, "seconds_of", lambda c: (calls.append(c), next(seconds))[1])
    monkeypatch.setattr(
        startup, "find_commands", lambda: {"atlas --help": ["a"], "flwr --help": ["b"]}
    )
    steps = []
    found = startup.run("quick", lambda *step: steps.append(step))
    assert calls == [["a"]] * 3 + [["b"]] * 3
    assert [row["seconds"] for row in found.rows] == [2.0, 30.0]
    assert [row["least"] for row in found.rows] == [1.0, 20.0]
    assert found.ratios == {"flower_help": 15.0}
    assert steps[-1] == ("commands", 2, 2)
    found.plot(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 2000


def test_without_flower_a_note_says_so(monkeypatch):
    monkeypatch.setattr(startup, "seconds_of", lambda command: 1.0)
    monkeypatch.setattr(startup, "find_commands", lambda: {"atlas --help": ["a"]})
    found = startup.run("quick", lambda *step: None)
    assert found.ratios == {}
    assert any("flwr not installed; pip install" in note for note in found.notes)


def test_commands_answer():
    commands = find_commands()
    assert seconds_of(commands['python -c "import atlas"']) > 0
    assert seconds_of([sys.executable, "-c", "import time; time.sleep(0.3)"]) > 0.3
    assert seconds_of(commands["atlas --help"]) > 0
    with pytest.raises(RuntimeError, match="ended with 3"):
        seconds_of([sys.executable, "-c", "raise SystemExit(3)"])


def test_ratios_need_both():
    rows = [{"command": "atlas --help", "seconds": 0.5}]
    assert find_ratios(rows) == {}
    rows.append({"command": 'python -c "import torch"', "seconds": 2.0})
    assert find_ratios(rows) == {"torch_import": 4.0}


def test_bars_show_every_figure_and_ours_in_colour():
    axes = new_figure(4, 2).subplots()
    draw_bars(axes, ["atlas", "peft"], [0.5, 1234.0], [PALETTE[0], OTHERS])
    assert [bar.get_width() for bar in axes.patches] == [0.5, 1234.0]
    assert [text.get_text() for text in axes.texts] == ["0.5", "1,234"]
    assert axes.get_ylim() == (1.5, -0.5), "the first is on top"
    assert axes.get_xlim()[1] > 1234


def test_pictures_of_one_case_and_of_two(tmp_path):
    figures = {"seconds_round": 1.0, "seconds_first_round": 2.0, "peak_mb": 300}
    rows = [{"case": "encoder", "name": name, **figures} for name in ("atlas", "peft", "flower")]
    draw_federation(rows, tmp_path / "one.png")
    rows += [{"case": "smollm", "name": name, **figures} for name in ("atlas", "peft")]
    draw_federation(rows, tmp_path / "two.png")
    one, two = ((tmp_path / name).read_bytes()[20:24] for name in ("one.png", "two.png"))
    assert int.from_bytes(two) > int.from_bytes(one), "a second case makes it taller"
    draw_startup([{"command": "atlas --help", "seconds": 0.4}], tmp_path / "three.png")
