"""What a client sends in fewer bytes: the change since a point that the server knows too.

All tensors of a message are one vector, by name. The client sends how it differs from what both
sides know it to start from: what was last delivered to it, or what last arrived from it where it
took nothing. The difference has one of the `Form`s; the server adds it to what it knows. What a
form leaves out is remembered by the client (error feedback): if nothing was delivered since, the
adapter still holds it, and so does the next difference; as far as a mixture has taken the adapter's
place, it is added. So the sum of all that arrived is the sum of all that was trained, up to what
the last message left out.

Server and client make sure by a hash that they mean the same. Where they do not (a reply was lost
or refused, or one of them went back to an earlier round), all is sent as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from atlas.federation.adapters.adapter import Adapter, adapter_sha256
from atlas.federation.exchange.message import MessageError
from atlas.ops.compression import block_count, from_int8, largest_places, to_int8

Form = Literal["bfloat16", "int8", "topk"]
CODES, SCALES = "packed/codes", "packed/scales"
VALUES, PLACES = "packed/values", "packed/places"
PACKED = {
    VALUES: "bfloat16 [n], all numbers one after the other, tensors by name; topk: float32 [k]",
    CODES: "[n] int8",
    SCALES: "[n / 256] float32, of every 256 codes",
    PLACES: "[k] int32, of the values among n, rising",
}
"""A compressed message has these tensors instead of its own."""


def kept_count(entries: int, share: float) -> int:
    """How many entries are sent of a vector that is cut."""
    return min(entries, max(1, math.ceil(share * entries)))


def packed_shapes(
    form: Form, entries: int, share: float
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of every tensor of a compressed message of so many numbers."""
    if form == "bfloat16":
        return {VALUES: ((entries,), torch.bfloat16)}
    if form == "int8":
        scales = ((block_count(entries),), torch.float32)
        return {CODES: ((entries,), torch.int8), SCALES: scales}
    kept = (kept_count(entries, share),)
    return {VALUES: (kept, torch.float32), PLACES: (kept, torch.int32)}


def pack(form: Form, values: Tensor, share: float) -> dict[str, Tensor]:
    """A vector [n] as the tensors of a compressed message."""
    if form == "bfloat16":
        return {VALUES: values.to(torch.bfloat16)}
    if form == "int8":
        codes, scales = to_int8(values)
        return {CODES: codes, SCALES: scales}
    places = largest_places(values, kept_count(len(values), share))
    return {VALUES: values[places.long()].to(torch.float32), PLACES: places}


def unpack(form: Form, tensors: Mapping[str, Tensor], entries: int, dtype: torch.dtype) -> Tensor:
    """The vector [n] that a message of `packed_shapes` stands for.

    Raises:
        MessageError: If its places are none of the vector, or not rising.
    """
    if form == "bfloat16":
        return tensors[VALUES].to(dtype)
    if form == "int8":
        return from_int8(tensors[CODES], tensors[SCALES], dtype)
    places = tensors[PLACES].long()
    if bool((places < 0).any() or (places >= entries).any() or (places.diff() <= 0).any()):
        raise MessageError(f"places are not rising from 0 to {entries - 1}")
    found = torch.zeros(entries, dtype=dtype, device=places.device)
    found[places] = tensors[VALUES].to(dtype)
    return found


def flat(adapter: Mapping[str, Tensor]) -> Tensor:
    """All numbers of an adapter, tensors by name."""
    return torch.cat([adapter[name].flatten() for name in sorted(adapter)])


def unflat(values: Tensor, like: Mapping[str, Tensor]) -> Adapter:
    """A vector as an adapter with the names and shapes of another."""
    names = sorted(like)
    parts = torch.split(values, [like[name].numel() for name in names])
    return Adapter(
        {name: part.reshape(like[name].shape) for name, part in zip(names, parts, strict=True)}
    )


def add_change(base: Mapping[str, Tensor], change: Tensor) -> Adapter:
    """What the server has after a message, and what the client takes it to have."""
    return unflat(flat(base) + change, base)


def moved(known: Mapping[str, Tensor], offer: Mapping[str, Tensor], share: float) -> Adapter:
    """What both sides know a client to start from after it took a share of an offer."""
    if share == 1.0:
        return Adapter(offer)
    return Adapter({name: value + share * (offer[name] - value) for name, value in known.items()})


@dataclass(frozen=True)
class Sent:
    """What a client remembers of its messages.

    Attributes:
        known: What the server, too, knows it to start from.
        left: What the last message left out; empty for nothing.
        carry: How much of that its adapter has since lost to mixtures.
    """

    known: Adapter
    left: Adapter = field(default_factory=Adapter)
    carry: float = 0.0

    def delivered(self, offer: Mapping[str, Tensor], share: float) -> Sent:
        """After the client took a share of an offer in the place of its adapter."""
        here = self.known.only(offer.__contains__)
        known = Adapter({**self.known, **moved(here, offer, share)}) if share else self.known
        return Sent(known, self.left, 1 - (1 - self.carry) * (1 - share))


@dataclass(frozen=True)
class Compression:
    """How a client is asked to compress its reply.

    Attributes:
        form: What the change is rounded or cut to.
        share: topk: how much of it is sent.
        feedback: Whether what was left out before is added.
        base: `adapter_sha256` of what the server knows, of all that is to be sent.
    """

    form: Form
    share: float
    feedback: bool
    base: str

    def apply(self, adapter: Adapter, sent: Sent) -> tuple[dict[str, Tensor], Form | None, Sent]:
        """A client's side of a message.

        Args:
            adapter: What it would send as it is.
            sent: What it remembers.

        Returns:
            The tensors to send, their form (None: as they are), and what to remember.
        """
        known = sent.known.only(adapter.__contains__)
        if set(known) != set(adapter) or adapter_sha256(known) != self.base or not adapter:
            left = sent.left.only(lambda name: name not in adapter)
            return dict(adapter), None, Sent(Adapter({**sent.known, **adapter}), left)
        target = flat(adapter)
        if self.feedback and sent.carry:
            kept = {name: sent.left.get(name, torch.zeros_like(v)) for name, v in known.items()}
            target = target + sent.carry * flat(kept)
        base = flat(known)
        packed = pack(self.form, target - base, self.share)
        change = unpack(self.form, packed, len(base), base.dtype)
        arrived = add_change(known, change)
        left = Adapter({**sent.left, **unflat(target - flat(arrived), known)})
        return packed, self.form, Sent(Adapter({**sent.known, **arrived}), left)
