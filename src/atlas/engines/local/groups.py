"""Clients that can share one forward pass: the same backbone and the same kind of task.

What a group holds for a client is private to it; it goes into a checkpoint as one message, and is
scored on test data once, at the end of a run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from atlas.config.training import Weighing
from atlas.engines.local.moments import KeptMoments
from atlas.federation.adapters.adapter import Adapter, adapter_shapes
from atlas.federation.adapters.cohort import Cohort, Slot
from atlas.federation.batching.forward import Model, stack_cohorts
from atlas.federation.batching.store import ExampleStore, Part
from atlas.federation.clients import Holder
from atlas.federation.exchange.compression import Sent
from atlas.federation.exchange.message import Message, encode
from atlas.federation.signatures.stores import SignatureStores
from atlas.federation.training.evaluate import Limits, Scores, score_answers, score_labels
from atlas.federation.training.loop import Lesson

SavedParts = Mapping[tuple[str, str], Adapter]
"""A client's saved tensors by kind and arm; an empty part where nothing was saved."""


@dataclass
class ClientGroup:
    """The local state of a group of clients.

    Attributes:
        model: Their shared frozen model.
        holders: By id, sorted.
        arms: Stacked adapters by arm: `held` (what the client holds), `shadow` (trained alone
            on the same batches), `personal` (trained beside `held` and pulled to it; never
            sent).
        limits: How much text is kept and generated.
        anchor: Who is pulled to what was held at a round's start; see `Strategy`.
        keeps_best: Whether clients end with the better of federated and alone.
        weigh: What examples count in training and in validation losses.
        margin: Standard errors by which an adapter must lead on validation data to be clearly
            better.
        shares: How much of a mixture a client may take; where there is a choice, its validation
            data makes it.
        accepting: Where there is a choice: all of the mixture unless one's own adapter is clearly
            better, or the fittest share at once.
        deliver: Whether a mixture takes an adapter's place, is merged, or stands beside it; see
            `Strategy`.
        sends: Which core travels where one stands beside it; see `AdapterSettings`.
        splits: Blocks that a client runs itself, where a server runs the rest.
        moments: Optimiser moments by arm, where they are kept.
        accepts: Share of the mixture each client took last.
        sent: What clients that compress remember of their messages.
        signing: What signatures are taken from; None where there is nothing.
        progress: Called with (done, total) while the lower blocks meet new texts.
    """

    model: Model
    holders: dict[str, Holder]
    arms: dict[str, Cohort]
    limits: Limits
    anchor: Literal["none", "start", "global"] = "none"
    keeps_best: bool = False
    weigh: Weighing = "examples"
    margin: float = 1.0
    shares: tuple[float, ...] = (1.0,)
    accepting: Literal["unless worse", "fittest"] = "unless worse"
    deliver: Literal["replace", "merge", "global"] = "replace"
    sends: Literal["local", "whole"] = "local"
    splits: dict[str, int] = field(default_factory=dict)
    moments: dict[str, KeptMoments] = field(default_factory=dict)
    accepts: dict[str, float] = field(default_factory=dict)
    sent: dict[str, Sent] = field(default_factory=dict)
    signing: SignatureStores | None = None
    progress: Callable[[int, int], None] | None = None
    _store: ExampleStore | None = None
    _test_store: ExampleStore | None = None

    @property
    def store(self) -> ExampleStore:
        """Training and validation examples; built on first use."""
        if self._store is None:
            parts: dict[str, Part] = {}
            for name, holder in self.holders.items():
                parts[f"{name}/train"] = (holder.data.task, holder.data.train)
                parts[f"{name}/validation"] = (holder.data.task, holder.data.validation)
            self._store = self.new_store(parts, self.weigh)
        return self._store

    @property
    def test_store(self) -> ExampleStore:
        """Test examples of all members; first used, and so first read, at the end of a run."""
        if self._test_store is None:
            members = [m for holder in self.holders.values() for m in holder.members]
            self._test_store = self.new_store({m.id: (m.task, m.test) for m in members})
        return self._test_store

    def new_store(self, parts: Mapping[str, Part], weigh: Weighing = "examples") -> ExampleStore:
        """A store of other examples for the same model."""
        return ExampleStore(self.model, parts, self.limits.max_length, self.progress, weigh)

    def lesson(self, client: str) -> Lesson:
        """What one client trains on."""
        store = self.store
        return Lesson(client, store.rows(f"{client}/train"), store.rows(f"{client}/validation"))

    def write(self, arm: str, clients: Sequence[str], tensors: Mapping[str, torch.Tensor]) -> None:
        """Put rows of stacked tensors into an arm."""
        self.arms[arm] = self.arms[arm].write(clients, tensors)

    def moments_of(self, arm: str) -> KeptMoments:
        """Moments of an arm's clients; fresh ones if none are kept yet."""
        if arm not in self.moments:
            self.moments[arm] = KeptMoments.fresh(self.arms[arm])
        return self.moments[arm]

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Whatever fails inside leaves all clients as they were.

        What is to be undone (other ranks) makes new tensors and never writes into the old ones, so
        looking back costs no copy.
        """
        kept = (dict(self.arms), dict(self.splits), dict(self.moments), dict(self.sent))
        try:
            yield
        except BaseException:
            self.arms, self.splits, self.moments, self.sent = kept
            raise


def save_client(group: ClientGroup, client: str) -> bytes:
    """Everything a client needs to go on: adapters, what is beside them, moments, accept."""
    tensors: dict[str, torch.Tensor] = {}
    ready: frozenset[str] = frozenset()
    for arm, cohort in group.arms.items():
        tensors |= {f"arm|{arm}|{name}": value for name, value in cohort.take(client).items()}
        dense = cohort.deltas.get(client, {})
        tensors |= {f"delta|{arm}|{module}": value for module, value in dense.items()}
        if cohort.slot:
            ready = cohort.slot.ready.get(client, frozenset())
            given = cohort.slot.cohort.take(client)
            tensors |= {f"slot|{arm}|{name}": value for name, value in given.items()}
    for arm, kept in group.moments.items():
        found = kept.state(client)
        if found is None:
            continue  # fresh ones: it has not trained yet, though others have
        moments, made = found
        for name, (first, second) in moments.items():
            tensors[f"first|{arm}|{name}"] = first
            tensors[f"second|{arm}|{name}"] = second
        tensors[f"made|{arm}|"] = made
    if sent := group.sent.get(client):
        tensors |= {f"known|held|{name}": value for name, value in sent.known.items()}
        tensors |= {f"left|held|{name}": value for name, value in sent.left.items()}
        tensors["carry|held|"] = torch.tensor([sent.carry], dtype=torch.float64)
    return encode(tensors, {"accept": group.accepts.get(client), "ready": sorted(ready)})


def load_clients(group: ClientGroup, messages: Mapping[str, Message]) -> None:
    """Put saved states back, each in place of all that its client has now.

    Raises:
        ValueError: If one does not fit its client; then nobody's is put back.
    """
    saved = {client: _read_state(group, client, m) for client, m in messages.items()}
    for arm, cohort in list(group.arms.items()):
        like = next(iter(cohort.tensors.values()))
        dense = {
            client: changes for client, changes in cohort.deltas.items() if client not in saved
        }
        for client, parts in saved.items():
            if parts["delta", arm]:
                dense[client] = {m: value.to(like) for m, value in parts["delta", arm].items()}
        loaded = cohort.put({client: parts["arm", arm] for client, parts in saved.items()})
        slot = cohort.slot
        if slot:
            given = slot.cohort.put({client: parts["slot", arm] for client, parts in saved.items()})
            came = {client: frozenset(m.facts.get("ready", ())) for client, m in messages.items()}
            slot = Slot(given, {**slot.ready, **came})
        group.arms[arm] = replace(loaded, deltas=dense, slot=slot)
        if arm in group.moments or any(parts["made", arm] for parts in saved.values()):
            moments = group.moments_of(arm)
            for client, parts in saved.items():
                made = parts["made", arm].get("")
                moments.restore(client, parts["first", arm], parts["second", arm], made)
    for client, parts in saved.items():
        _load_sent(group, client, parts)
    for client, message in messages.items():
        group.accepts.pop(client, None)
        if message.facts["accept"] is not None:
            group.accepts[client] = message.facts["accept"]


def _load_sent(group: ClientGroup, client: str, parts: SavedParts) -> None:
    group.sent.pop(client, None)
    if carry := parts["carry", "held"]:
        like = next(iter(group.arms["held"].tensors.values()))
        known, left = (
            Adapter({name: value.to(like) for name, value in parts[kind, "held"].items()})
            for kind in ("known", "left")
        )
        group.sent[client] = Sent(known, left, float(carry[""]))


def _read_state(group: ClientGroup, client: str, message: Message) -> SavedParts:
    """A saved state by its parts, all of which fit the client."""
    parts: defaultdict[tuple[str, str], Adapter] = defaultdict(Adapter)
    for key, value in message.tensors.items():
        kind, arm, name = key.split("|", 2)
        if arm not in group.arms:
            raise ValueError(f"saved state has an arm {arm!r} that this run does not train")
        parts[kind, arm][name] = value
    for arm, cohort in group.arms.items():
        layout, member = cohort.layout, cohort.members[cohort.places[client]]
        if _shapes(parts["arm", arm]) != adapter_shapes(layout, member):
            raise ValueError(f"saved adapter of {client} does not fit its ranks and labels")
        beside = adapter_shapes(layout.beside(), member) if cohort.slot else {}
        if _shapes(parts["slot", arm]) != beside:
            raise ValueError(f"what was saved beside the adapter of {client} does not fit it")
        if cohort.slot and not set(message.facts.get("ready", ())) <= set(layout.modules):
            raise ValueError(f"something was saved beside modules that {client} does not adapt")
        sides = zip(layout.modules, layout.widths, strict=True)
        dense = {module: (d_out, d_in) for module, (d_in, d_out) in sides}
        if parts["delta", arm] and _shapes(parts["delta", arm]) != dense:
            raise ValueError(f"saved dense change of {client} does not fit its modules")
        if arm == "held":
            _check_sent(client, parts, adapter_shapes(layout, member))
        stacked = {name: tuple(value.shape[1:]) for name, value in cohort.tensors.items()}
        found = [_shapes(parts[kind, arm]) for kind in ("first", "second", "made")]
        if any(found) and found != [stacked, stacked, {"": (1,)}]:
            raise ValueError(f"saved moments of {client} do not fit its adapter")
    return parts


def _check_sent(client: str, parts: SavedParts, own: Mapping[str, tuple[int, ...]]) -> None:
    """Whether what a client saved of its messages fits it."""
    for kind in ("known", "left"):
        if not _shapes(parts[kind, "held"]).items() <= own.items():
            raise ValueError(f"what {client} saved of its messages does not fit its adapter")
    if _shapes(parts["carry", "held"]) not in ({}, {"": (1,)}):
        raise ValueError(f"what {client} saved of its messages is no single share")


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in tensors.items()}


def score_on_test(
    group: ClientGroup,
    cohort: Cohort,
    clients: Sequence[str],
    written: Callable[[int, int], None] | None = None,
) -> dict[str, dict[str, Scores]]:
    """Scores of every member on its own test data, by holder and member.

    Args:
        group: The clients' group.
        cohort: The adapters that are judged.
        clients: Who is judged.
        written: Called with (done, total) while answers are generated.
    """
    judged = [(client, member) for client in clients for member in group.holders[client].members]
    store = group.test_store
    rows = stack_cohorts([cohort.select([client for client, _ in judged])])
    picks = [store.rows(member.id) for _, member in judged]
    found = score_labels(store, rows, picks, [member.task for _, member in judged])
    if judged[0][1].task.kind == "causal":  # all of a group are of one kind
        parts = [(member.task, member.test) for _, member in judged]
        told = score_answers(group.model, rows, parts, group.limits, group.progress, written)
        found = [{**losses, **scores} for losses, scores in zip(found, told, strict=True)]
    results: dict[str, dict[str, Scores]] = {client: {} for client in clients}
    for (client, member), scores in zip(judged, found, strict=True):
        results[client][member.id] = scores
    return results
