"""Following a run of a deployment whose server is slow, or gone."""

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
