"""Tokenised examples of many clients in one packed store, with the frozen prefix computed once.

Blocks below the first adapter see the same input every epoch, so their output is kept. It is
computed in canonical batches (by length, in a fixed order), which depend on the data alone: a
resumed run fills its store with the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atlas.federation.backbone import Inputs
from atlas.federation.forward import Batch, Model
from atlas.federation.packing import pack
from atlas.federation.task import Example, Task

Part = tuple[Task, Sequence[Example]]
Rows = NDArray[np.int64]
PREFIX_BATCH = 64
BAND = 0.8
"""Rows with fewer tokens than this share of the longest run in a pass of their own."""


class ExampleStore:
    """All examples of one kind of task that meet one model, addressed by part name."""

    def __init__(
        self, model: Model, parts: Mapping[str, Part], max_length: int, cache_bytes: int
    ) -> None:
        """Tokenise every part and, if it fits into `cache_bytes`, compute the prefix."""
        self.model = model
        self._rows: dict[str, Rows] = {}
        encoded, labels, count = [], [], 0
        for name, (task, examples) in parts.items():
            encoded.append(model.backbone.tokenize(task, examples, max_length))
            labels += [max(0, example.label) for example in examples]
            self._rows[name] = np.arange(count, count + len(examples))
            count += len(examples)
        device = model.backbone.device
        self.labels = torch.tensor(labels, dtype=torch.long, device=device)
        lengths = torch.cat([inputs.mask.sum(1) for inputs in encoded])
        self.lengths = lengths.to(device)
        self._host_lengths = lengths.cpu().numpy()
        self.offsets = (lengths.cumsum(0) - lengths).to(device)
        self._host_offsets = self.offsets.cpu().numpy()
        self.ids = _pack([(inputs.ids, inputs.mask) for inputs in encoded], device)
        self.types = _pack([(inputs.types, inputs.mask) for inputs in encoded], device)
        targets = [(i.targets, i.mask) for i in encoded if i.targets is not None]
        self.targets = _pack(targets, device) if targets else None
        size = self.ids.numel() * model.backbone.width * model.backbone.dtype.itemsize
        self.prefix = self._compute_prefix() if size <= cache_bytes else None

    def rows(self, part: str) -> Rows:
        """Positions of one part's examples."""
        return self._rows[part]

    def lengths_of(self, rows: Rows) -> Rows:
        """Tokens of each of some examples."""
        return self._host_lengths[rows]

    def longest_answer(self, rows: Rows) -> int:
        """Most tokens of an example that carry a loss of their own; zero for classification."""
        if self.targets is None:
            return 0
        ends = torch.cumsum((self.targets >= 0).long(), 0).cpu().numpy()
        before = np.concatenate([[0], ends])
        starts = self.offsets.cpu().numpy()[rows]
        return int((before[starts + self._host_lengths[rows]] - before[starts]).max(initial=0))

    def without_ends(self) -> ExampleStore:
        """The same store with no loss on each example's last target, the end of the text.

        Ranking choices asks how well a choice fits, not how surely the text stops after it.
        """
        if self.targets is not None:
            last = self.offsets + self.lengths - 1
            ends = self.targets[last]
            # Without an end token, or with a cut answer, the last target is part of the answer.
            if bool((ends == ends[0]).all()):
                self.targets[last] = -100
        return self

    def bands(self, picks: Sequence[Rows]) -> list[list[int]]:
        """Rows of a stack in groups of like many tokens, so that few of them are filled up.

        Rows are independent, so running them in groups changes nothing but the padding computed.
        """
        longest = [int(self._host_lengths[pick].sum()) for pick in picks]
        bands: list[list[int]] = []
        for row in sorted(range(len(picks)), key=lambda row: (-longest[row], row)):
            if not bands or longest[row] < BAND * longest[bands[-1][0]]:
                bands.append([])
            bands[-1].append(row)
        return [sorted(band) for band in bands]

    def batch(self, picks: Sequence[Rows]) -> Batch:
        """The examples picked for each row of a stack, packed row by row."""
        device = self.labels.device
        size = max(len(pick) for pick in picks)
        table = np.zeros((len(picks), size), dtype=np.int64)
        present = np.zeros((len(picks), size), dtype=bool)
        for row, pick in enumerate(picks):
            table[row, : len(pick)] = pick
            present[row, : len(pick)] = True
        lengths, offsets = self._host_lengths[table], self._host_offsets[table]
        plan = pack(lengths, offsets, present, device)
        if self.prefix is not None:
            hidden = self.prefix[plan.source]
        else:
            packing = plan.packing
            texts = self._run_prefix(plan.source.flatten()[packing.slots], packing.mask)
            hidden = packing.gather(texts)
        targets = None
        if self.targets is not None:
            targets = torch.where(plan.packing.real, self.targets[plan.source], -100)
        chosen = torch.from_numpy(table).to(device)
        there = torch.from_numpy(present).to(device)
        return Batch(hidden, plan.packing, there, self.labels[chosen], targets)

    @torch.no_grad()
    def _run_prefix(self, where: Tensor, mask: Tensor) -> Tensor:
        inputs = Inputs(torch.where(mask, self.ids[where], 0), mask, self.types[where] * mask)
        backbone = self.model.backbone
        hidden = backbone.embed(inputs)
        context = backbone.context(hidden, mask)
        for block in range(self.model.first_block):
            hidden = backbone.block(block, hidden, context)
        return hidden

    def _compute_prefix(self) -> Tensor:
        backbone = self.model.backbone
        packed = torch.empty(
            self.ids.numel(), backbone.width, dtype=backbone.dtype, device=backbone.device
        )
        order = torch.argsort(self.lengths, stable=True)
        cuts = [*range(0, len(order), PREFIX_BATCH), len(order)]
        for start, stop in pairwise(cuts):
            chosen = order[start:stop]
            positions = torch.arange(int(self.lengths[chosen].max()), device=packed.device)
            mask = positions < self.lengths[chosen][:, None]
            where = torch.where(mask, self.offsets[chosen][:, None] + positions, 0)
            packed[where[mask]] = self._run_prefix(where, mask)[mask]
        return packed


def _pack(padded: Sequence[tuple[Tensor, Tensor]], device: torch.device) -> Tensor:
    return torch.cat([values[mask.bool()] for values, mask in padded]).to(device)
