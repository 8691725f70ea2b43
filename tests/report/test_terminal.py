"""Sparklines, the words beside the bar, and names that are no markup."""

import io

from rich.console import Console

from atlas.report.live import live_display
from atlas.report.live.pace import Pace, duration
from atlas.report.tables.rounds import rounds_table
from atlas.report.tables.runs import client_table, runs_table
from atlas.report.words.plain_text import spelled, spelled_values
from atlas.report.words.spark import BARS, WIDEST, sparkline
from tests.report.folders import before_rounds, one_round, summary_of
from tests.report.test_report_document import HOSTILE


def events(rounds=3):
    told = [*before_rounds()] + [e for n in range(1, rounds + 1) for e in one_round(n)]
    return [{"event": name, **fields} for name, fields in told]


def printed(shown, **more):
    console = Console(width=120, file=io.StringIO(), **more)
    console.print(shown)
    return console.file.getvalue()


def test_sparklines_go_from_the_least_to_the_most():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == BARS
    assert sparkline([]) == "" and sparkline([3.0]) == BARS[0]
    assert sparkline([50.0, 50.1]) == BARS[0] + BARS[-1]
    near = [BARS.index(bar) for bar in sparkline([50.0, 50.1], span=4.0)]
    assert near == [3, 4], "a tenth of a point is little of four"
    long = sparkline(list(range(1000)))
    assert len(long) == WIDEST and long[0] == BARS[0] and long[-1] == BARS[-1]


def test_rounds_are_told_by_task():
    text = printed(rounds_table(events(), "federation"))
    lines = [line.split() for line in text.splitlines() if "apples" in line]
    assert lines[0][:3] == ["apples", "validation,", "%"]
    assert lines[0][-3:] == ["55.5", "65.5", "65.5"]
    assert lines[1][1:3] + lines[1][-3:] == ["alone,", "%", "52.5", "56.5", "56.5"]
    assert lines[2][-3:] == ["1.050", "0.383", "0.383"], "of a loss the best is the least"
    assert rounds_table(events(0), "federation") is None


def test_the_bar_says_how_it_goes_and_how_long_it_takes():
    pace = Pace()
    assert pace.news() == "" and pace.left is None
    for event in events(2):
        pace.add(event["event"], event)
    assert pace.left == 1.5
    assert pace.news() == "4 clients  loss 0.650  ▁█ 61.5 %  about 2 s left"
    assert [duration(s) for s in (8, 125, 11_400)] == ["8 s", "2 min 5 s", "3 h 10 min"]


def test_a_terminal_has_the_bar_and_its_news():
    console = Console(file=io.StringIO(), force_terminal=True, width=140)
    with live_display(console) as display:
        for event in events(3):
            display.event(event["event"], event)
        display.bars.refresh()
    assert "round 3/3" in console.file.getvalue()
    assert "4 clients" in console.file.getvalue() and "█" in console.file.getvalue()


def test_hostile_names_are_shown_as_they_are():
    text = printed(client_table(summary_of(HOSTILE), HOSTILE), force_terminal=True)
    assert "\\x1b[31mred\\x1b[0m" in text and "[bold red]markup[/]" in text
    assert "\x1b[31mred" not in text
    row = {"run": "[red]x[/]", "state": "finished", "strategy": "\x1b]0;title\x07", "done": 1}
    text = printed(runs_table([{**row, "rounds": 2, "seed": 0, "summary": None}]))
    assert "[red]x[/]" in text and "\\x1b]0;title\\x07" in text


def test_steering_characters_are_spelled_and_nothing_else():
    assert spelled("a\tb\nü 漢 <b>") == "a\tb\nü 漢 <b>"
    assert spelled("\x9b2J\u202e\ud800") == "\\x9b2J\\u202e\\ud800"
    assert spelled_values({"\x1b": ["\x00", 1, None]}) == {"\\x1b": ["\\x00", 1, None]}
