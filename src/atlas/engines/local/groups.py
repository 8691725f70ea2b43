"""Clients that can share one forward pass: the same backbone and the same kind of task.

What a group holds for a client is private to it; it goes into a checkpoint as one message, and is
scored on test data once, at the end of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from atlas.config.federation import Weighing
from atlas.federation.adapters.cohort import Cohort
from atlas.federation.batching.forward import Model, stack_cohorts
from atlas.federation.batching.store import ExampleStore, Part
from atlas.federation.clients import Holder
from atlas.federation.exchange.message import Message, encode
from atlas.federation.training.evaluate import Limits, Scores, score_answers, score_labels
from atlas.federation.training.loop import Lesson
from atlas.federation.training.step import Moments

ACCEPTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of a mixture that validation data chooses from."""


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
        deliver: Whether a mixture takes an adapter's place or is merged; see `Strategy`.
        splits: Blocks that a client runs itself, where a server runs the rest.
        moments: Optimiser moments and step counts by arm, where they are kept.
        accepts: Share of the mixture each client took last.
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
    deliver: Literal["replace", "merge"] = "replace"
    splits: dict[str, int] = field(default_factory=dict)
    moments: dict[str, tuple[Moments, torch.Tensor]] = field(default_factory=dict)
    accepts: dict[str, float] = field(default_factory=dict)
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
        cohort = self.arms[arm]
        first = next(iter(cohort.tensors.values()))
        index = cohort.index(clients).to(first.device)
        new = {k: v.index_copy(0, index, tensors[k]) for k, v in cohort.tensors.items()}
        self.arms[arm] = replace(cohort, tensors=new)


def save_client(group: ClientGroup, client: str) -> bytes:
    """Everything a client needs to go on: adapters, dense changes, moments, accept."""
    tensors: dict[str, torch.Tensor] = {}
    for arm, cohort in group.arms.items():
        tensors |= {f"arm|{arm}|{name}": value for name, value in cohort.take(client).items()}
        dense = cohort.deltas.get(client, {})
        tensors |= {f"delta|{arm}|{module}": value for module, value in dense.items()}
    for arm, (moments, made) in group.moments.items():
        row = group.arms[arm].clients.index(client)
        for name, (first, second) in moments.items():
            tensors[f"first|{arm}|{name}"] = first[row].clone()
            tensors[f"second|{arm}|{name}"] = second[row].clone()
        tensors[f"made|{arm}|"] = made[row].reshape(1).clone()
    return encode(tensors, {"accept": group.accepts.get(client)})


def load_client(group: ClientGroup, client: str, message: Message) -> None:
    """Put a saved state back; raises ValueError if it does not fit this client."""
    adapters: dict[str, dict[str, torch.Tensor]] = {}
    dense: dict[str, dict[str, torch.Tensor]] = {}
    for key, value in message.tensors.items():
        kind, arm, name = key.split("|", 2)
        if arm not in group.arms:
            raise ValueError(f"saved state has an arm {arm!r} that this run does not train")
        if kind == "arm":
            adapters.setdefault(arm, {})[name] = value
        elif kind == "delta":
            dense.setdefault(arm, {})[name] = value
        else:
            _load_moment(group, client, (kind, arm, name), value)
    for arm, adapter in adapters.items():
        expected = {name: part.shape for name, part in group.arms[arm].take(client).items()}
        if expected != {name: part.shape for name, part in adapter.items()}:
            raise ValueError(f"saved adapter of {client} does not fit its ranks and labels")
        group.arms[arm] = group.arms[arm].put({client: adapter})
    for arm, changes in dense.items():
        _load_dense(group, client, arm, changes)
    if message.facts["accept"] is not None:
        group.accepts[client] = message.facts["accept"]


def _load_dense(
    group: ClientGroup, client: str, arm: str, changes: Mapping[str, torch.Tensor]
) -> None:
    cohort = group.arms[arm]
    sides = (cohort.layout.modules, cohort.layout.widths)
    shapes = {m: (d_out, d_in) for m, (d_in, d_out) in zip(*sides, strict=True)}
    if shapes != {module: tuple(value.shape) for module, value in changes.items()}:
        raise ValueError(f"saved dense change of {client} does not fit its modules")
    like = next(iter(cohort.tensors.values()))
    fitting = {module: value.to(like) for module, value in changes.items()}
    group.arms[arm] = replace(cohort, deltas={**cohort.deltas, client: fitting})


def _load_moment(
    group: ClientGroup, client: str, key: tuple[str, str, str], value: torch.Tensor
) -> None:
    kind, arm, name = key
    cohort = group.arms[arm]
    row = cohort.clients.index(client)
    if arm not in group.moments:
        zeros = {k: (torch.zeros_like(v), torch.zeros_like(v)) for k, v in cohort.tensors.items()}
        device = next(iter(cohort.tensors.values())).device
        count = torch.zeros(len(cohort.clients), dtype=torch.long, device=device)
        group.moments[arm] = (zeros, count)
    moments, made = group.moments[arm]
    if kind == "made":
        made[row] = value[0]
    else:
        moments[name][0 if kind == "first" else 1][row] = value.to(moments[name][0])


def score_on_test(
    group: ClientGroup, cohort: Cohort, clients: Sequence[str]
) -> dict[str, dict[str, Scores]]:
    """Scores of every member on its own test data, by holder and member."""
    judged = [(client, member) for client in clients for member in group.holders[client].members]
    store = group.test_store
    rows = stack_cohorts([cohort.select([client for client, _ in judged])])
    picks = [store.rows(member.id) for _, member in judged]
    found = score_labels(store, rows, picks, [member.task for _, member in judged])
    results: dict[str, dict[str, Scores]] = {client: {} for client in clients}
    for (client, member), scores in zip(judged, found, strict=True):
        if member.task.kind == "causal":
            single = stack_cohorts([cohort.select([client])])
            scores |= score_answers(group.model, single, member.task, member.test, group.limits)
        results[client][member.id] = scores
    return results
