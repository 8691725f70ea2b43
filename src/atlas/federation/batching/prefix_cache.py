"""Outputs of the blocks below the first adapter: computed once per text, for all who hold it.

Those blocks are frozen, so what they put out depends on a text's tokens alone. A text is computed
in a batch of a fixed shape that its own length decides. What the other rows of that batch hold
then changes no bit of it, so it does not matter which texts were there already: a cold and a warm
cache give the same numbers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from threading import Lock
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atlas.errors import InputError
from atlas.federation.batching.backbone import Backbone, Inputs
from atlas.federation.batching.spill import SpillingRows
from atlas.runs.cores import cores_for, lending, side_by_side

Format = Literal["exact", "half"]
"""How outputs are kept: as they are, or as float16, which keeps eleven bits of each number."""
Holds = Literal["inputs", "projections"]
"""Of the block above: its input alone, or also its frozen queries, keys and values."""
Ints = NDArray[np.int64]
STEP = 4
"""Lengths are rounded up to a multiple of this."""
BATCH_TOKENS = 512
"""About so many tokens are computed together: enough to keep a core busy, and few enough that a
batch for which texts are lacking wastes little."""
TILE = 16
"""Tokens of a batch are a multiple of this. Matrix products treat rests of their tiles in another
order, so that a text's last bits would otherwise depend on its place in the batch."""


@dataclass(frozen=True)
class TokenTexts:
    """Tokens of many texts, one after another, on the host.

    Attributes:
        ids: Token ids.
        types: Segment ids.
        offsets: Where each text begins [N].
        lengths: Its tokens [N], positive.
    """

    ids: Ints
    types: Ints
    offsets: Ints
    lengths: Ints

    def key(self, text: int) -> bytes:
        """By which equal texts are known."""
        part = slice(self.offsets[text], self.offsets[text] + self.lengths[text])
        digest = hashlib.blake2b(self.ids[part].tobytes(), digest_size=16)
        digest.update(self.types[part].tobytes())
        return digest.digest()

    def rectangle(self, texts: Sequence[int], rows: int, columns: int) -> tuple[Ints, ...]:
        """Ids, types and mask of some texts as [rows, columns] arrays; rows left over are one."""
        chosen = np.array([*texts, *[texts[-1]] * (rows - len(texts))])
        places = np.arange(columns)
        mask = places < self.lengths[chosen][:, None]
        where = np.where(mask, self.offsets[chosen][:, None] + places, 0)
        return np.where(mask, self.ids[where], 0), np.where(mask, self.types[where], 0), mask


class PrefixCache:
    """What the first `blocks` blocks of a backbone put out, by text.

    Attributes:
        blocks: How many blocks lie below.
    """

    def __init__(
        self,
        backbone: Backbone,
        blocks: int,
        budget: int,
        form: Format,
        holds: Holds = "inputs",
    ) -> None:
        """A cache without texts.

        Args:
            backbone: The frozen model.
            blocks: How many of its blocks to run.
            budget: Bytes of memory; what is beyond them is in a file.
            form: How outputs are kept.
            holds: What is kept of each token.
        """
        self.blocks = blocks
        self._backbone = backbone
        self._places: dict[bytes, int] = {}
        self._kept = torch.float16 if form == "half" else backbone.dtype
        projections = backbone.projections(blocks) if holds == "projections" else ()
        self._projects = bool(projections)
        widths = [backbone.width, *projections]
        # Each by itself, so that what is read lies close together.
        self._stores = [
            SpillingRows(width, self._kept, backbone.device, budget * width // sum(widths))
            for width in widths
        ]

    @property
    def tokens(self) -> int:
        """Tokens it holds."""
        return self._stores[0].count

    @property
    def on_disk(self) -> bool:
        """Whether its memory did not suffice."""
        return self._stores[0].on_disk

    def places(self, texts: TokenTexts, progress: Callable[[int, int], None] | None = None) -> Ints:
        """Addresses of the texts' first tokens [N]; texts that are not there are computed."""
        keys = [texts.key(text) for text in range(len(texts.lengths))]
        missing = {key: text for text, key in enumerate(keys) if key not in self._places}
        wide = {key: -(-int(texts.lengths[text]) // STEP) * STEP for key, text in missing.items()}
        batches: list[tuple[int, list[bytes]]] = []
        for columns, some in groupby(sorted(missing, key=lambda k: (wide[k], k)), wide.__getitem__):
            waiting, rows = list(some), _rows(columns)
            batches += [
                (columns, waiting[start : start + rows]) for start in range(0, len(waiting), rows)
            ]
        tokens = sum(int(texts.lengths[text]) for text in missing.values())
        for store in self._stores:
            store.reserve(tokens)
        device, done, lock = self._backbone.device, 0, Lock()
        lend = lending(self._backbone.twins(cores_for(device)))

        def compute(columns: int, batch: Sequence[bytes]) -> None:
            nonlocal done
            chosen = [missing[key] for key in batch]
            with lend() as backbone:
                kept = self._compute(backbone, texts, chosen, columns)
            with lock:
                self._keep(kept, batch, texts.lengths[chosen])
                done += len(batch)
                if progress:
                    progress(done, len(missing))

        jobs = [partial(compute, *batch) for batch in reversed(batches)]
        if device.type == "cpu":
            # A core for each even if it is the only one: divided operators round otherwise.
            side_by_side(jobs)
        else:
            for job in jobs:
                job()
        return np.array([self._places[key] for key in keys], dtype=np.int64)

    def take(self, index: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """What was put out at some addresses, [..., D], and projections of it, if it has them."""
        dtype = self._backbone.dtype
        hidden, *projected = (store.take(index).to(dtype) for store in self._stores)
        return hidden, tuple(projected)

    @torch.no_grad()
    def _compute(
        self, backbone: Backbone, texts: TokenTexts, chosen: Sequence[int], columns: int
    ) -> list[Tensor]:
        """What is kept of some texts, token after token."""
        device = backbone.device
        arrays = texts.rectangle(chosen, _rows(columns), columns)
        ids, types, mask = (torch.from_numpy(array).to(device) for array in arrays)
        hidden = run_prefix(backbone, Inputs(ids, mask, types), self.blocks)
        parts = [hidden, *(backbone.project(self.blocks, hidden) if self._projects else ())]
        mask[len(chosen) :] = False
        kept = [part[mask].to(self._kept) for part in parts]
        if self._kept != hidden.dtype and not all(bool(one.isfinite().all()) for one in kept):
            raise InputError(
                "train.prefix_format: outputs of the lower blocks do not fit into half; "
                "allowed: exact"
            )
        return kept

    def _keep(self, kept: Sequence[Tensor], keys: Sequence[bytes], lengths: Ints) -> None:
        place = self.tokens
        try:
            for store, rows in zip(self._stores, kept, strict=True):
                store.append(rows)
        except InputError:
            # Other runs of this process share the cache: all parts of it end at the same token.
            for store in self._stores:
                store.cut(place)
            raise
        for key, length in zip(keys, lengths, strict=True):
            self._places[key] = place
            place += int(length)


def _rows(columns: int) -> int:
    """Rows of a batch of texts of that length."""
    step = TILE // math.gcd(TILE, columns)
    return max(1, BATCH_TOKENS // columns // step) * step


def run_prefix(backbone: Backbone, inputs: Inputs, blocks: int) -> Tensor:
    """Texts [N, T] through the first blocks, [N, T, D]."""
    hidden = backbone.embed(inputs)
    context = backbone.context(hidden, inputs.mask)
    for block in range(blocks):
        hidden = backbone.block(block, hidden, context)
    return hidden
