"""What the way over Flower adds: deadlines, riders, large payloads, replies of a wrong kind."""

import threading
from dataclasses import replace

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from atlas.engines.flower.post import plain
from atlas.engines.flower.records import FACTS, PAYLOADS, Parcel, RecordError, pack, unpack
from atlas.engines.flower.simulation import simulate
from atlas.engines.flower.transport import _read, answer_parcel
from atlas.errors import InputError
from atlas.federation.exchange.transport import Failure


class Echo:
    """Answers with what it was asked, and remembers it."""

    def __init__(self):
        self.asked, self.hold = [], threading.Event()
        self.hold.set()

    def ask(self, task, payloads):
        (client,) = payloads
        self.asked.append((task, client))
        if client == "slow":
            self.hold.wait(20)
        if client == "broken":
            raise InputError("rounds: wrong for everybody")
        return {client: task.encode() + b" " + payloads[client]}


def test_a_late_answer_is_a_failure_and_never_the_answer_to_another_ask():
    echo = Echo()
    transport = simulate(echo, ["fast", "slow"])
    transport.post = replace(transport.post, deadline=0.3)
    echo.hold.clear()
    first = transport.ask("fit", {"fast": b"1", "slow": b"1"})
    assert first["fast"] == b"fit 1"
    assert first["slow"] == Failure("no answer within 0.3 seconds")
    echo.hold.set()
    transport.post = replace(transport.post, deadline=20.0)
    assert transport.ask("fit", {"slow": b"2"}) == {"slow": b"fit 2"}
    assert echo.asked.count(("fit", "slow")) == 2


def test_what_is_known_to_be_asked_next_rides_along_and_is_asked_once():
    echo = Echo()
    along = {"deliver": ("evaluate", b"held"), "fit": None}
    transport = simulate(echo, ["a", "b"], lambda task, payload: along.get(task))
    transport.ask("deliver", {"a": b"x", "b": b"y"})
    assert sorted(echo.asked) == [(t, c) for t in ("deliver", "evaluate") for c in "ab"]
    assert transport.ask("evaluate", {"a": b"held"}) == {"a": b"evaluate held"}
    assert len(echo.asked) == 4
    transport.ask("evaluate", {"a": b"other words"})
    assert len(echo.asked) == 5
    transport.ask("fit", {"a": b"z"})
    assert transport.ask("evaluate", dict.fromkeys("ab", b"held")) == {
        "a": b"evaluate held", "b": b"evaluate held"
    }  # fmt: skip
    assert echo.asked[-2:] == [("fit", "a"), ("evaluate", "a")]  # b did nothing in between


def test_what_is_wrong_for_everybody_is_raised():
    transport = simulate(Echo(), ["broken"])
    with pytest.raises(InputError, match="rounds"):
        transport.ask("fit", {"broken": b""})


def test_a_failure_stops_what_comes_after_it_in_a_parcel():
    asked = Parcel({"client": "a", "tasks": ["deliver", "evaluate"]}, [b"1", b"2"])
    found = answer_parcel(asked, lambda task, client, payload: Failure("no"))
    assert found.texts("failed")[0] == "no"
    assert all(found.texts("failed"))
    for tasks, payloads in (([], []), (["fit"], []), (["fit"], [b"", b""])):
        with pytest.raises(RecordError):
            answer_parcel(Parcel({"client": "a", "tasks": tasks}, payloads), None)


@pytest.mark.parametrize("size", [0, 5 * 2**20 - 1, 5 * 2**20, 11 * 2**20 + 3])
def test_payloads_above_flowers_pieces_come_whole(size):
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    payload = bytes(range(256)) * (size // 256) + b"!" * (size % 256)
    content = pack(Parcel({"client": "a"}, [payload, b"x"]))
    pieces = {name: part.deflate() for name, part in get_all_nested_objects(content).items()}
    assert max(map(len, pieces.values())) <= 5 * 2**20 + 1000
    found = unpack(inflate_object_from_contents(content.object_id, pieces))
    assert list(found.payloads) == [payload, b"x"]
    assert found.facts == {"client": "a"}


def test_replies_of_a_wrong_kind_are_failures():
    bad = Array("float32", (2,), "numpy.ndarray", b"12345678")
    for content in (
        RecordDict(),
        RecordDict({FACTS: ConfigRecord(), "other": ArrayRecord()}),
        RecordDict({FACTS: ArrayRecord(), PAYLOADS: ArrayRecord()}),
        RecordDict({FACTS: ConfigRecord(), PAYLOADS: ArrayRecord({"0000": bad})}),
        RecordDict({FACTS: ConfigRecord(), PAYLOADS: ArrayRecord({"x": bad})}),
    ):
        with pytest.raises(RecordError):
            unpack(content)
    for facts, payloads in (
        ({}, [b""]), ({"failed": "no"}, [b""]), ({"failed": []}, []), ({"failed": [""]}, []),
        ({"failed": ["", ""]}, [b"", b""]), ({"failed": [1]}, [b""]),
    ):  # fmt: skip
        (found,) = _read(Parcel(facts, payloads), 1)
        assert isinstance(found, Failure), facts
    (told,) = _read(Parcel({"failed": ["\x1b[2J" + "x" * 20_000]}, [b""]), 1)
    assert told.reason.isprintable()
    assert len(told.reason) < 400
    assert plain("as it is") == "as it is"
