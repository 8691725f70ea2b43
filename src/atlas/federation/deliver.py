"""Mixtures on their way back: each client is sent its rows, and says what it made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atlas.federation.cohort import Adapter, Cohort, adapter_sha256
from atlas.federation.desk import Desk, Observe
from atlas.federation.message import Message, MessageError, encode
from atlas.federation.planned import LARGEST_LOGGED
from atlas.ops.mixing import is_identity_row


@dataclass(frozen=True)
class Taken:
    """What a client took: which of the mixtures offered, and how much of it."""

    pick: int
    accept: float


def pack_mixtures(mixtures: Sequence[Adapter], facts: Mapping[str, object]) -> bytes:
    """The mixtures offered to one client as one message."""
    tensors = {f"{i}|{name}": value for i, m in enumerate(mixtures) for name, value in m.items()}
    return encode(tensors, {**facts, "offers": len(mixtures)})


def unpack_mixtures(message: Message) -> list[Adapter]:
    """The mixtures in a message of `pack_mixtures`.

    Raises:
        MessageError: If a tensor belongs to no mixture.
    """
    mixtures: list[Adapter] = [{} for _ in range(int(message.facts["offers"]))]
    for key, value in message.tensors.items():
        number, _, name = key.partition("|")
        if not number.isdecimal() or int(number) >= len(mixtures):
            raise MessageError(f"tensor {key!r} belongs to none of {len(mixtures)} mixtures")
        mixtures[int(number)][name] = value
    return mixtures


def deliver(
    desk: Desk, mixed: Sequence[Cohort], weights: Sequence[Tensor], asked: set[str]
) -> dict[str, Taken]:
    """Send every client within reach its mixtures; returns what each took.

    A client whose row is e_k holds the result already. It is sent no tensors, unless its reply was
    refused: then it gets back the last good adapter the server has of it.
    """
    own = torch.stack([_own_rows(w) for w in weights]).all(0)
    payloads, sent = {}, {}
    for row, client in enumerate(mixed[0].clients):
        if client not in asked and bool(own[row]):
            continue
        news = not bool(own[row]) or client in desk.refused
        adapters = [cohort.take(client) for cohort in mixed] if news else []
        payloads[client] = pack_mixtures(adapters, {"round": desk.round})
        sent[client] = [adapter_sha256(adapter) for adapter in adapters]
    taken = {}
    for client, facts in desk.facts("deliver", payloads).items():
        taken[client] = _taken(facts, len(sent[client]))
        whole = sent[client] and taken[client].accept == 1.0
        if whole and facts.get("sha256") != sent[client][taken[client].pick]:
            desk.fail(client, "deliver: the client does not hold what was sent")
        desk.observe("delivered", {"round": desk.round, "client": client, **facts})
    return taken


def _own_rows(weights: Tensor) -> Tensor:
    return is_identity_row(weights) if weights.dim() == 2 else is_identity_row(weights).all(0)


def _taken(facts: Mapping[str, object], offers: int) -> Taken:
    """A client's answer; anything that is no answer counts as nothing taken."""
    accept, pick = facts.get("accept"), facts.get("pick", 0)
    valid = isinstance(accept, int | float) and isinstance(pick, int) and 0 <= pick < max(1, offers)
    if not valid:
        return Taken(0, 0.0)
    return Taken(int(str(pick)), float(str(accept)))


def log_mixture(
    observe: Observe,
    number: int,
    cohort: Cohort,
    weights: Sequence[Tensor],
    taken: Mapping[str, Taken],
) -> None:
    """Log W as it acted: a client that took a share s of its row has (1-s) e_k + s W_k."""
    entry: dict[str, object] = {"round": number, "cohort": cohort.layout.backbone}
    if len(cohort.clients) <= LARGEST_LOGGED:
        effective = effective_weights(cohort.clients, weights, taken)
        entry |= {"clients": list(cohort.clients), "weights": effective.tolist()}
    observe("mixed", entry)


def effective_weights(
    clients: Sequence[str], weights: Sequence[Tensor], taken: Mapping[str, Taken]
) -> Tensor:
    """W after every client has taken its share of the mixture it picked."""
    answers = [taken.get(client, Taken(0, 0.0)) for client in clients]
    picked = torch.stack([weights[a.pick][..., k, :] for k, a in enumerate(answers)], dim=-2)
    share = torch.tensor([a.accept for a in answers], dtype=picked.dtype)[:, None]
    identity = torch.eye(len(clients), dtype=picked.dtype)
    return (1 - share) * identity + share * picked
