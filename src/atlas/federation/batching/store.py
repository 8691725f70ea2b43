"""Tokenised examples of many clients in one packed store, ready to meet the adapters.

Blocks below the first adapter see the same input every epoch; the model's `PrefixCache` keeps
what they put out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Event
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atlas.config.training import Weighing
from atlas.federation.batching.backbone import Inputs
from atlas.federation.batching.forward import Batch, Model
from atlas.federation.batching.packing import PackedPlan, pack
from atlas.federation.batching.prefix_cache import TokenTexts, run_prefix
from atlas.federation.clients import Example, Task
from atlas.ops.metrics import example_weights
from atlas.runs.cores import cores_for, lending, side_by_side

T = TypeVar("T")
R = TypeVar("R")
Part = tuple[Task, Sequence[Example]]
Rows = NDArray[np.int64]
BAND = 0.8
"""Rows with fewer tokens than this share of the longest run in a pass of their own."""
PASS_TOKENS = 2048
"""Most tokens of a pass, unless a single row has more."""


def banded(tokens: Sequence[float], room: float) -> list[list[int]]:
    """Places in groups of like many tokens, with no more than `room` of them when filled up."""
    bands: list[list[int]] = []
    for row in sorted(range(len(tokens)), key=lambda row: (-tokens[row], row)):
        most = tokens[bands[-1][0]] if bands else 0
        fits = bands and (len(bands[-1]) + 1) * most <= room
        if not fits or tokens[row] < BAND * most:
            bands.append([])
        bands[-1].append(row)
    return [sorted(band) for band in bands]


class ExampleStore:
    """All examples of one kind of task that meet one model, addressed by part name."""

    def __init__(
        self,
        model: Model,
        parts: Mapping[str, Part],
        max_length: int,
        progress: Callable[[int, int], None] | None = None,
        weigh: Weighing = "examples",
        *,
        ends: bool = True,
    ) -> None:
        """Tokenise every part and, if the model has a cache for it, compute the prefix.

        Args:
            model: The model that examples meet.
            parts: Tasks and examples by name.
            max_length: Tokens kept of a text.
            progress: Called with (done, total) while the lower blocks meet new texts.
            weigh: What counts alike in losses.
            ends: Whether causal texts carry loss on their end. Ranking choices asks how well a
                choice fits, not how surely the text stops after it.
        """
        self.model = model
        self._rows: dict[str, Rows] = {}
        encoded, labels, count = [], [], 0
        for name, (task, examples) in parts.items():
            encoded.append(model.backbone.tokenize(task, examples, max_length, ends=ends))
            labels += [max(0, example.label) for example in examples]
            self._rows[name] = np.arange(count, count + len(examples))
            count += len(examples)
        device = model.backbone.device
        self.labels = torch.tensor(labels, dtype=torch.long, device=device)
        self.weights = _part_weights(parts).to(device) if weigh == "metric" else None
        lengths = torch.cat([inputs.mask.sum(1) for inputs in encoded])
        self.lengths = lengths.to(device)
        self._host_lengths = lengths.cpu().numpy()
        self.offsets = (lengths.cumsum(0) - lengths).to(device)
        self.ids = _pack([(inputs.ids, inputs.mask) for inputs in encoded], device)
        self.types = _pack([(inputs.types, inputs.mask) for inputs in encoded], device)
        targets = [(i.targets, i.mask) for i in encoded if i.targets is not None]
        self.targets = _pack(targets, device) if targets else None
        self._cached = None
        if model.prefix is not None:
            host = (t.cpu().numpy() for t in (self.ids, self.types, self.offsets, self.lengths))
            self._cached = torch.from_numpy(model.prefix.places(TokenTexts(*host), progress)).to(
                device
            )

    def on_cores(
        self,
        work: Callable[[ExampleStore, T], R],
        pieces: Sequence[T],
        halted: Event | None = None,
    ) -> list[R]:
        """Work on pieces `side_by_side`, each with these examples and a model to itself."""
        lend = lending(map(self._with, self.model.twins(cores_for(self.labels.device))))

        def job(piece: T) -> R:
            with lend() as own:
                return work(own, piece)

        return side_by_side([partial(job, piece) for piece in pieces], halted)

    def _with(self, model: Model) -> ExampleStore:
        other = copy.copy(self)
        other.model = model
        return other

    def unweighed(self) -> ExampleStore:
        """The same examples, all counting alike."""
        other = copy.copy(self)
        other.weights = None
        return other

    def rows(self, part: str) -> Rows:
        """Positions of one part's examples."""
        return self._rows[part]

    def lengths_of(self, rows: Rows) -> Rows:
        """Tokens of each of some examples."""
        return self._host_lengths[rows]

    def counts_of(self, rows: Rows) -> Rows:
        """Losses that each of some examples has: one, or one for every token of its answer."""
        if self.targets is None:
            return np.ones(len(rows), dtype=np.int64)
        ends = torch.cumsum((self.targets >= 0).long(), 0).cpu().numpy()
        before = np.concatenate([[0], ends])
        starts = (np.cumsum(self._host_lengths) - self._host_lengths)[rows]
        found: Rows = before[starts + self._host_lengths[rows]] - before[starts]
        return found

    def bands(self, picks: Sequence[Rows]) -> list[list[int]]:
        """Rows of a stack in groups of like many tokens, so that few of them are filled up.

        Rows are independent, so running them in groups changes nothing but the padding computed.
        No group is larger than `PASS_TOKENS`, so what a pass takes does not grow with the clients.
        """
        return banded([int(self._host_lengths[pick].sum()) for pick in picks], PASS_TOKENS)

    def batch(self, picks: Sequence[Rows]) -> Batch:
        """The examples picked for each row of a stack, packed row by row."""
        device = self.labels.device
        counts = np.array([len(pick) for pick in picks])
        present = np.arange(counts.max()) < counts[:, None]
        table = np.zeros(present.shape, dtype=np.int64)
        table[present] = np.concatenate(picks)
        plan = pack(self._host_lengths[table], present, device)
        chosen = torch.from_numpy(table).to(device)
        targets = None
        if self.targets is not None:
            expected = self.targets[plan.source(self.offsets[chosen])]
            targets = torch.where(plan.packing.real, expected, -100)
        there = torch.from_numpy(present).to(device)
        weights = None if self.weights is None else self.weights[chosen]
        hidden, projected = self._hidden(plan, chosen)
        return Batch(hidden, plan.packing, there, self.labels[chosen], targets, projected, weights)

    @torch.no_grad()
    def _hidden(self, plan: PackedPlan, chosen: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """What the lower blocks put out for the texts `chosen` [n, b], packed.

        Also what the next block's projections make of that, where the cache has it.
        """
        if self._cached is not None and self.model.prefix is not None:
            return self.model.prefix.take(plan.source(self._cached[chosen]))
        packing = plan.packing
        where = plan.source(self.offsets[chosen]).flatten()[packing.slots]
        ids = torch.where(packing.mask, self.ids[where], 0)
        inputs = Inputs(ids, packing.mask, self.types[where] * packing.mask)
        hidden = run_prefix(self.model.backbone, inputs, self.model.first_block)
        return packing.gather(hidden), ()


def _part_weights(parts: Mapping[str, Part]) -> Tensor:
    """What every example counts by its task's metric and the labels of its part; 1 on average."""
    found = []
    for task, examples in parts.values():
        metric = task.metric if task.kind == "classification" else "accuracy"
        found.append(example_weights(np.array([max(0, e.label) for e in examples], int), metric))
    return torch.from_numpy(np.concatenate(found))


def _pack(padded: Sequence[tuple[Tensor, Tensor]], device: torch.device) -> Tensor:
    return torch.cat([values[mask.bool()] for values, mask in padded]).to(device)
