"""The event log: whole lines, torn tails, resumed rounds."""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta

import numpy as np
import pytest
import torch

from atlas.errors import InputError
from atlas.runs.events import EventLog, drop_after_round, read_events


def write_rounds(path, rounds):
    with EventLog(path) as log:
        log.log("start", {"seed": 1})
        for number in rounds:
            log.log("round", {"round": number, "loss": 1 / (number + 1)})


def rounds_of(path):
    return [event["round"] for event in read_events(path) if "round" in event]


def test_events_are_lines_with_a_time_and_can_be_read_while_open(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.log("fit", {"round": 1, "text": "a\nb\u2028é"})
        log.sync()
        (event,) = read_events(path)
    assert path.read_bytes().count(b"\n") == 1
    assert list(event) == ["event", "time", "round", "text"]
    assert event["text"] == "a\nb\u2028é"
    assert datetime.fromisoformat(str(event["time"])).utcoffset() == timedelta(0)


def test_values_become_standard_json(tmp_path):
    path = tmp_path / "events.jsonl"
    fields = {
        "nan": math.nan,
        "deep": [{"inf": -math.inf}, (1, 2.5)],
        "array": np.array([[1.0, np.nan]]),
        "scalar": np.float32(0.5),
        "flag": np.bool_(True),
        "tensor": torch.tensor([1, 2]),
        3: None,
    }
    with EventLog(path) as log:
        log.log("values", fields)
    line = path.read_text()
    assert "NaN" not in line and "Infinity" not in line
    event = json.loads(line)
    assert event["nan"] is None and event["deep"] == [{"inf": None}, [1, 2.5]]
    assert event["array"] == [[1.0, None]] and event["scalar"] == 0.5 and event["flag"] is True
    assert event["tensor"] == [1, 2] and event["3"] is None


def test_a_field_without_json_form_writes_nothing(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        for fields, error in (({"a": {1, 2}}, TypeError), ({"a": b"x"}, TypeError)):
            with pytest.raises(error, match="has no JSON form"):
                log.log("bad", fields)
        with pytest.raises(ValueError, match="'time' of an event is set by the log"):
            log.log("bad", {"time": 3})
    assert path.read_bytes() == b""


def test_a_log_is_never_started_over(tmp_path):
    path = tmp_path / "events.jsonl"
    write_rounds(path, [0])
    write_rounds(path, [1])
    assert rounds_of(path) == [0, 1]


def test_a_tail_torn_at_any_byte_costs_one_event_at_most(tmp_path):
    path = tmp_path / "events.jsonl"
    write_rounds(path, [0, 1, 2])
    whole = path.read_bytes()
    start = whole[:-1].rfind(b"\n") + 1
    for end in range(start, len(whole)):
        path.write_bytes(whole[:end])
        complete = end == len(whole) - 1
        expected = [0, 1, 2] if complete else [0, 1]
        assert rounds_of(path) == expected
        with EventLog(path) as log:
            log.log("round", {"round": 9})
        assert rounds_of(path) == [*expected, 9], "an event after a torn one is not lost with it"


def test_garbage_elsewhere_is_named_by_its_line(tmp_path):
    path = tmp_path / "events.jsonl"
    write_rounds(path, [0, 1])
    lines = path.read_bytes().splitlines(keepends=True)
    for garbage in (b"{torn\n", b"\xff\n", b"\n", b"[1]\n", b'{"time": 1}\n', b"[" * 5000 + b"\n"):
        path.write_bytes(lines[0] + garbage + lines[1])
        for use in (read_events, EventLog, lambda p: drop_after_round(p, 0)):
            with pytest.raises(InputError, match=r"events\.jsonl: line 2: not an event"):
                use(path)


def test_a_missing_log_is_bad_input(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_events(tmp_path / "none.jsonl")


def test_later_rounds_are_dropped_and_the_rest_is_kept_byte_for_byte(tmp_path):
    path = tmp_path / "events.jsonl"
    write_rounds(path, [0, 1, 2, 3])
    with EventLog(path) as log:
        log.log("stop", {"reason": "asked"})
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(path.read_bytes() + b'{"event": "round", "rou')
    drop_after_round(path, 1)
    assert path.read_bytes() == b"".join([*lines[:3], lines[-1]])
    drop_after_round(path, 1)
    assert rounds_of(path) == [0, 1]


def test_dropping_from_a_missing_log_does_nothing(tmp_path):
    drop_after_round(tmp_path / "events.jsonl", 3)
    assert not list(tmp_path.iterdir())
