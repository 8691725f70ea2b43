"""Replies that no honest client sends, made from honest ones, for the tests beside this file."""

import json

from safetensors.torch import save

from atlas.federation.exchange.message import decode

ESCAPE = "\x1b[31mred\x1b[0m [bold]\a"


def with_text(reply, text):
    """A reply with the same tensors and a text of its own in the place of the facts."""
    return save(decode(reply).tensors, metadata={"facts": text})


def with_facts(**changes):
    """Replace facts, or leave them out (`...`); values may be anything that JSON can write."""

    def spoil(reply):
        facts = {**decode(reply).facts, **changes}
        return with_text(reply, json.dumps({k: v for k, v in facts.items() if v is not ...}))

    return spoil


def with_literal(name, literal):
    """Give a fact a value that is spelled as told, such as 1e400 or a thing said twice."""

    def spoil(reply):
        facts = decode(reply).facts
        facts.pop(name, None)
        rest = json.dumps(facts)[1:]
        comma = ", " if facts else ""
        return with_text(reply, f'{{"{name}": {literal}{comma}{rest}')

    return spoil


def with_header(change):
    """Replace the header's text, its tensors' bytes left as they are."""

    def spoil(reply):
        size = int.from_bytes(reply[:8], "little")
        text = change(reply[8 : 8 + size].decode().rstrip())
        raw = text if isinstance(text, bytes) else text.encode()
        raw += b" " * (-len(raw) % 8)
        return len(raw).to_bytes(8, "little") + raw + reply[8 + size :]

    return spoil


def first_member(**scores):
    """Replace scores of the first member that a reply to `evaluate` tells of."""

    def spoil(reply):
        facts = decode(reply).facts
        client = sorted(facts["members"])[0]
        told = {**facts["members"][client], **scores}
        members = {client: {k: v for k, v in told.items() if v is not ...}}
        return with_text(reply, json.dumps({"members": members}))

    return spoil


NUMBERS = {
    "text": '"0.5"',
    "markup": json.dumps(ESCAPE),
    "nothing": "null",
    "truth": "true",
    "nested": "[[1.0]]",
    "object": '{"a": 1}',
    "beyond floats": "1" + "0" * 400,
    "5000 digits": "9" * 5000,
    "NaN": "NaN",
    "Infinity": "-Infinity",
    "overflow": "1e999",
    "deep": "[" * 3000 + "]" * 3000,
    "surrogate": '"\\ud800"',
}
"""What might stand in the place of a number."""
