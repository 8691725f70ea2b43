"""Which tensors the messages of every task may hold: a pattern of names, and what they are.

Which of them are there, and how large, depends on the client; `contents.Content` holds a message
against these.
"""

from __future__ import annotations

from atlas.federation.adapters.adapter import (
    bias_name,
    core_names,
    factor_names,
    gate_name,
    head_names,
)
from atlas.federation.exchange.compression import PACKED

ANY = ".+"
_A, _B = factor_names(ANY)
_P, _Q = core_names(ANY)
_WEIGHT, _BIAS = head_names(ANY)
ADAPTER = {
    _A: "[rank, d_in] of a module",
    _B: "[d_out, rank] of a module, which adds alpha / rank * B A",
    _P: "[rank, rank] of a core: P - I",
    _Q: "[rank] of a core",
    _WEIGHT: "[d_out, d_in] of a head layer; of the last, d_out is the labels",
    _BIAS: "[d_out] of a head layer",
}
WHOLE = {
    **ADAPTER,
    gate_name(ANY): "[1] or [d_in]: how a module weighs its own adapter and the one beside it",
    bias_name(ANY): "[d_out] of a module, which adds alpha / rank times it: what cores come to",
}
HANDED_OVER = {
    **WHOLE,
    **{rf"beside\|{name}": f"of what is beside it: {what}" for name, what in ADAPTER.items()},
}
OFFERS = {rf"\d+\|{name}": f"in the offer of that number: {what}" for name, what in ADAPTER.items()}
SKETCHES = {
    r"mean|text|label": "[folds, width] float32, for every part of the settings",
    r"(mean|text|label)/head": "[folds, width] float32, of the head, if one is there and asked for",
}
FITTED = {**ADAPTER, **PACKED}
SIGNED = {"signature": "[width] float32"}
_ARM = r"\|(held|shadow|personal)\|"
STATE = {
    **{f"arm{_ARM}{name}": f"of the adapter: {what}" for name, what in WHOLE.items()},
    **{f"slot{_ARM}{name}": f"of what is beside it: {what}" for name, what in ADAPTER.items()},
    f"delta{_ARM}{ANY}": "[d_out, d_in] of a module: the dense change merged so far",
    f"(first|second){_ARM}{ANY}": "moments of a tensor, padded as the engine stacks it",
    f"made{_ARM}": "[1] int64: optimiser steps the moments are of",
    **{rf"known\|held\|{name}": f"what the server has: {what}" for name, what in ADAPTER.items()},
    **{rf"left\|held\|{name}": f"what is to be sent: {what}" for name, what in ADAPTER.items()},
    r"carry\|held\|": "[1] float64: how much of what is to be sent the adapter has lost",
}
