"""The `signature` task of the local engine: clients side by side, each from its own store."""

from __future__ import annotations

from collections.abc import Sequence

from atlas.config.plan import RelevanceSettings
from atlas.engines.local.groups import ClientGroup
from atlas.federation.batching.forward import stack_cohorts
from atlas.federation.batching.store import ExampleStore
from atlas.federation.signatures.gradient import sign_by_gradient
from atlas.federation.signatures.representation import sign_by_representation
from atlas.federation.signatures.signature import Signature
from atlas.federation.signatures.stores import ANCHORS
from atlas.federation.training.loop import Clock


def sign_group(
    group: ClientGroup,
    clients: Sequence[str],
    kind: str,
    settings: RelevanceSettings,
    clock: Clock,
) -> dict[str, Signature]:
    """Signatures of clients in the clock's round, at the adapters they hold.

    Raises:
        ValueError: If the group has nothing to make signatures of.
    """
    if group.signing is None:
        raise ValueError("this run has neither a probe nor anchor texts")
    make = _by_gradient if kind == "gradient" else _by_representation
    return make(group, clients, settings, clock)


def _by_gradient(
    group: ClientGroup, clients: Sequence[str], settings: RelevanceSettings, clock: Clock
) -> dict[str, Signature]:
    assert group.signing is not None
    store = group.signing.probed(settings.probe, group.holders, group.limits.max_length)

    def sign(own: ExampleStore, client: str) -> Signature:
        return sign_by_gradient(own, client, settings, clock.seed, clock.round)

    return dict(zip(clients, store.on_cores(sign, list(clients)), strict=True))


def _by_representation(
    group: ClientGroup, clients: Sequence[str], settings: RelevanceSettings, clock: Clock
) -> dict[str, Signature]:
    del clock  # the anchors are the same in every round
    assert group.signing is not None
    store = group.signing.anchored(settings.anchors, group.model, group.limits.max_length)
    held = group.arms["held"]

    def sign(own: ExampleStore, client: str) -> Signature:
        return sign_by_representation(own, stack_cohorts([held.select([client])]), ANCHORS)

    return dict(zip(clients, store.on_cores(sign, list(clients)), strict=True))
