"""What is asked and answered, as the records of a Flower message.

A payload travels as one array of bytes, which Flower cuts into pieces of 5 MiB where it is large.
What goes with it, task and names, is a record of plain values. What came over a wire is checked
before anything reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

FACTS, PAYLOADS = "atlas", "payloads"
_STORED = "atlas.bytes"
"""How Flower is told that the bytes of an array are stored: as they are."""
Value = int | float | str | list[str]


class RecordError(ValueError):
    """Records that are not what they should be."""


@dataclass(frozen=True)
class Parcel:
    """Some payloads and what is to be known of them.

    Attributes:
        facts: Plain values by name.
        payloads: Messages of `federation.exchange.message`, in order.
    """

    facts: Mapping[str, Value]
    payloads: Sequence[bytes] = ()

    def texts(self, name: str) -> list[str]:
        """A list of texts.

        Raises:
            RecordError: There is none of that name.
        """
        found = self.facts.get(name)
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            raise RecordError(f"{name} is no list of texts")
        return found

    def text(self, name: str) -> str:
        """A text.

        Raises:
            RecordError: There is none of that name.
        """
        found = self.facts.get(name)
        if not isinstance(found, str):
            raise RecordError(f"{name} is no text")
        return found

    def number(self, name: str) -> int:
        """A whole number.

        Raises:
            RecordError: There is none of that name.
        """
        found = self.facts.get(name)
        if type(found) is not int:
            raise RecordError(f"{name} is no whole number")
        return found


def pack(parcel: Parcel) -> RecordDict:
    """The content of a Flower message."""
    arrays = {
        f"{place:04d}": Array("uint8", (len(payload),), _STORED, payload)
        for place, payload in enumerate(parcel.payloads)
    }
    return RecordDict({FACTS: ConfigRecord(dict(parcel.facts)), PAYLOADS: ArrayRecord(arrays)})


def unpack(content: RecordDict) -> Parcel:
    """What a Flower message holds.

    Raises:
        RecordError: It is none of ours.
    """
    facts, arrays = content.get(FACTS), content.get(PAYLOADS)
    if not isinstance(facts, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise RecordError("not the records of an Atlas message")
    payloads = []
    for place, (name, array) in enumerate(arrays.items()):
        if name != f"{place:04d}" or array.stype != _STORED or not isinstance(array.data, bytes):
            raise RecordError("payloads are not as they are sent")
        payloads.append(array.data)
    return Parcel(dict(facts), payloads)
