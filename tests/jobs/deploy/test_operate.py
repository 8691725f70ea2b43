"""Following a run of a deployment whose server is slow, or gone."""

import json

import httpx
import pytest

from atlas.engines.flower.control import RunStatus
from atlas.jobs.deploy import operate
from atlas.runs.folder import RunFolder


class Answers:
    """A control API that says, or raises, one thing after another; the last one for ever."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = 0

    def status(self, number):
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


UNDER_WAY, WELL = RunStatus(False, False, ""), RunStatus(True, True, "")


@pytest.fixture
def follow(tmp_path, monkeypatch):
    monkeypatch.setattr(operate, "PAUSE", 0.0)
    return lambda control: operate._follow(control, 1, RunFolder(tmp_path), None)


def test_a_server_that_answers_late_is_asked_again(follow):
    late = httpx.ReadTimeout("late")
    control = Answers(late, UNDER_WAY, late, httpx.ConnectTimeout("late"), WELL)
    assert follow(control) == WELL
    assert control.asked == 5


def test_a_server_that_nobody_hears_of_is_gone(follow, monkeypatch):
    monkeypatch.setattr(operate, "PATIENCE", 0.0)
    status = follow(Answers(httpx.ReadTimeout("late"), WELL))
    assert status == RunStatus(True, False, "the server is gone (ReadTimeout)")


def test_where_nobody_listens_the_server_is_gone_at_once(follow):
    control = Answers(UNDER_WAY, httpx.ConnectError("refused"), WELL)
    assert follow(control).details == "the server is gone (ConnectError)"
    assert control.asked == 2


def test_a_resumed_run_tells_where_it_goes_on(tmp_path, follow, monkeypatch):
    """It takes back what it had told of a round that was not saved; the log is shorter then."""
    place, told = RunFolder(tmp_path), []

    def write(*events):
        place.events.write_text("".join(json.dumps(event) + "\n" for event in events))

    saved = {"event": "round_finished", "time": "1", "round": 1}
    lost = [{"event": name, "time": "2", "round": 2} for name in ("round_started", "fitted")]
    write(saved, *lost)
    control = Answers(UNDER_WAY, UNDER_WAY, UNDER_WAY, WELL)
    logs = iter([[saved, *lost], [saved], [saved, {"event": "resumed", "time": "3", "after": 1}]])
    monkeypatch.setattr(operate.time, "sleep", lambda _: write(*next(logs)))
    operate._follow(control, 1, place, lambda name, fields: told.append((name, fields)))
    assert told == [("resumed", {"after": 1})]
