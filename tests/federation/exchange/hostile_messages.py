"""Feeds the codec and the guard with hostile messages; run as a process of its own by the test.

Prints one JSON object: how many were tried, how many of which outcome, the growth of memory.
"""

import json
import os
import resource
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from atlas.federation.adapters.adapter import Adapter, adapter_sha256
from atlas.federation.exchange.compression import Compression, Sent
from atlas.federation.exchange.guard import Expected, PackedReply, Refusal, check_reply
from atlas.federation.exchange.message import MessageError, decode, encode
from atlas.federation.exchange.transport import CONTRACTS
from tests.federation.exchange.hostile import ESCAPE, NUMBERS

SHAPES = {"lora_a/m": (3, 24), "lora_b/m": (16, 3), "head/classifier.weight": (2, 24)}
FACTS = {"examples": 5, "steps": 3, "loss": 0.5}
WORDS = [
    b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"[" * 2000, b"{" * 500, b"null", b"true", b'""',
    b"\\ud800", b"\xff\xfe", b"\x00", b'"F32"', b'"F64"', b'"I8"', b'"F8_E8M0"', b"-1", b"0",
    b"18446744073709551616", b"9223372036854775807", b"1099511627776", ESCAPE.encode(),
    b'"__metadata__":{}', b'"facts":"{}"', b'"lora_a/m":{}', b",", b":", b"}", b"]",
]  # fmt: skip
VALUES = [
    None, True, -1, 0, 10**18, 10**30, 1.5, -0.0, 1e308, "5", "", ESCAPE, "\ud800", [], [1], {},
    {"a": {"b": [None]}}, [[[]]], ["x"] * 50, "x" * 3000,
]  # fmt: skip


def adapter(seed):
    draw = torch.Generator().manual_seed(seed)
    return Adapter({k: torch.randn(s, generator=draw) for k, s in sorted(SHAPES.items())})


def seeds_of_malice():
    """Good messages, each with what the guard expects of it."""
    base = adapter(1)
    plain = encode(adapter(2), FACTS)
    found = [(plain, Expected(SHAPES))]
    for form in ("bfloat16", "int8", "topk"):
        how = Compression(form, 0.2, True, adapter_sha256(base))
        tensors, _, _ = how.apply(adapter(2), Sent(base))
        packed = PackedReply(form, 0.2, base)
        found.append((encode(tensors, {**FACTS, "form": form}), Expected(SHAPES, packed=packed)))
    return found


def flip(draw, data):
    """Change some bytes of the header, in front of it or anywhere."""
    out = bytearray(data)
    size = 8 + int.from_bytes(data[:8], "little")
    end = int(draw.choice([8, size, len(data)]))
    for _ in range(int(draw.integers(1, 5))):
        out[int(draw.integers(end))] = int(draw.integers(256))
    return bytes(out)


def cut(draw, data):
    """Leave out a piece, double it, or end early."""
    a, b = sorted(int(x) for x in draw.integers(0, len(data) + 1, 2))
    return [data[:a], data[:a] + data[b:], data[:b] + data[a:], data + data[a:b]][draw.integers(4)]


def header(draw, data):
    """Put a word into the header; its length is told rightly."""
    size = 8 + int.from_bytes(data[:8], "little")
    text, place = data[8:size], int(draw.integers(size - 8))
    word = WORDS[draw.integers(len(WORDS))]
    text = text[:place] + word + text[place + int(draw.integers(0, len(word) + 1)) :]
    return len(text).to_bytes(8, "little") + text + data[size:]


def number(draw, data):
    """Tell another size, offset or dtype of a tensor than it has."""
    size = 8 + int.from_bytes(data[:8], "little")
    told = json.loads(data[8:size])
    name = str(draw.choice([key for key in told if key != "__metadata__"]))
    key = str(draw.choice(["shape", "data_offsets", "dtype", "name"]))
    vast = [0, -1, 1, 2**31, 2**40, 2**63, 2**64, 1.0, None, "F64", "BF16", "I64", [2**62, 4]]
    values = [vast[i] for i in draw.integers(0, len(vast), 2)]
    if key == "name":
        told[ESCAPE] = told.pop(name)
    else:
        told[name][key] = values[0] if key == "dtype" else values
    text = json.dumps(told).encode()
    return len(text).to_bytes(8, "little") + text + data[size:]


def facts(draw, data):
    """Facts of other kinds, sizes and spellings, tensors left as they are."""
    size = 8 + int.from_bytes(data[:8], "little")
    told = json.loads(data[8:size])
    own = json.loads(told["__metadata__"]["facts"])
    name = str(draw.choice([*own, "salience", "beta", "split_up", "form", ESCAPE, "more"]))
    own.pop(name, None)
    rest = json.dumps(own)[1:]
    spelled = [*NUMBERS.values(), *(json.dumps(value) for value in VALUES)]
    literal = spelled[draw.integers(len(spelled))]
    told["__metadata__"]["facts"] = f"{{{json.dumps(name)}: {literal}, {rest}"
    text = json.dumps(told).encode()
    return len(text).to_bytes(8, "little") + text + data[size:]


POISON = {
    "F32": [b"\0\0\xc0\x7f", b"\0\0\x80\xff", b"\xff\xff\x7f\x7f"],
    "BF16": [b"\xc0\x7f", b"\x80\xff", b"\x7f\x7f"],
    "I32": [b"\xff\xff\xff\x7f", b"\0\0\0\x80"],
    "I8": [],
}


def poison(draw, data):
    """Numbers that are none: NaN, infinity, or vast, in a tensor."""
    size = 8 + int.from_bytes(data[:8], "little")
    entries = {k: v for k, v in json.loads(data[8:size]).items() if k != "__metadata__"}
    name = str(draw.choice(sorted(entries)))
    first, last = entries[name]["data_offsets"]
    bad = POISON[entries[name]["dtype"]]
    if not bad:
        return data[:-1]
    word = bad[draw.integers(len(bad))]
    place = first + len(word) * int(draw.integers((last - first) // len(word)))
    return data[: size + place] + word + data[size + place + len(word) :]


def noise(draw, data):
    """Any bytes at all, some behind a header's length that they could have."""
    raw = draw.bytes(int(draw.integers(0, 2000)))
    told = int(draw.choice([0, 1, len(raw) // 2, len(raw), 2**20, 2**40, 2**63]))
    return raw if draw.integers(2) else told.to_bytes(8, "little") + raw


WAYS = (flip, cut, header, number, facts, poison, noise)


def same(message, good):
    """Whether a message that was let in is a sound one: right names, shapes and finite numbers."""
    shapes = {name: tuple(value.shape) for name, value in message.tensors.items()}
    sound = all(bool(torch.isfinite(v).all()) for v in message.tensors.values())
    told = message.facts
    known = {*FACTS, "form", "salience", "beta", "split_up", "split_down"}
    return (
        shapes == SHAPES and sound and set(FACTS) <= set(told) <= known
        and type(told["examples"]) is int and 1 <= told["examples"] <= 10**9
        and type(told["steps"]) is int and told["steps"] >= 1
        and (told["loss"] is None or abs(told["loss"]) <= 1e30)
        and told.get("form") == good.facts.get("form")
    )  # fmt: skip


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(count):
    content, malice = CONTRACTS["fit"].reply, seeds_of_malice()
    for data, expected in malice:
        assert not isinstance(check_reply(data, content, expected), Refusal)
    draw, seen = np.random.default_rng(0), Counter()
    before, peak = resident(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for i in range(count):
        good, expected = malice[i % len(malice)]
        way = WAYS[draw.integers(len(WAYS))]
        data = way(draw, good)
        if data == good:
            data = good[:-1]
        try:
            decode(data)
        except MessageError:
            seen["no message"] += 1
        found = check_reply(data, content, expected)
        if isinstance(found, Refusal):
            assert 0 < len(found.reason) <= 200 and found.reason.isprintable()
            seen["refused"] += 1
            seen[f"refused {way.__name__}"] += 1
        elif same(found, decode(good)):
            seen["another sound message"] += 1
        else:
            seen["accepted"] += 1
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1024
    seen["tried"] = count
    print(json.dumps({**seen, "grown_mb": (resident() - before) / 2**20, "peak_mb": grown}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
