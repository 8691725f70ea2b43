"""The server's side of signatures: asked for after a fit, checked, and remembered over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from atlas.federation.exchange.guard import Expected
from atlas.federation.exchange.message import encode
from atlas.federation.server import RunPlan, Server
from atlas.federation.signatures.signature import SignatureKind, longest, signature_width

SIGNATURE = "signature"


def gather_signatures(plan: RunPlan, server: Server, clients: Sequence[str]) -> None:
    """Ask those who fitted for their signatures, where the strategy wants any.

    A client that fails, or sends what is no signature, keeps the one it had, if any.
    """
    kind = plan.strategy.signature
    if kind == "none":
        return
    settings = plan.relevance
    expected = expected_signature(plan, kind)
    known = server.state.signatures
    payloads = dict.fromkeys(sorted(clients), signature_request(plan, server.round))
    for client, message in server.ask("signature", payloads, lambda _: expected).items():
        known[client] = remember(known.get(client), message.tensors[SIGNATURE], settings.ema)
        told = {name: message.facts[name] for name in ("norm", "clip", "noise", "examples")}
        server.observe("signed", {"round": server.round, "client": client, **told})


def signature_request(plan: RunPlan, number: int) -> bytes:
    """What a client is asked in a round."""
    settings = plan.relevance.model_dump(mode="json")
    kind = plan.strategy.signature
    return encode({}, {"round": number, "kind": kind, "settings": settings})


def expected_signature(plan: RunPlan, kind: SignatureKind) -> Expected:
    """What a reply must look like."""
    width = signature_width(kind, plan.relevance)
    return Expected({SIGNATURE: (width,)}, max_norm=longest(kind, plan.relevance))


def remember(before: Tensor | None, new: Tensor, share: float) -> Tensor:
    """The mean of old and new in float64, `share` of it the old; the first one as it is."""
    exact = new.to(torch.float64)
    return exact if before is None else share * before + (1.0 - share) * exact


def known_signatures(signatures: Mapping[str, Tensor], clients: Sequence[str]) -> Tensor | None:
    """Signatures as rows [n, d], zeros for a client without; None if nobody has one."""
    known = [signatures[client] for client in clients if client in signatures]
    if not known:
        return None
    none = torch.zeros_like(known[0])
    return torch.stack([signatures.get(client, none) for client in clients])
