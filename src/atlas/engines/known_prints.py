"""Fingerprints that this process has taken already.

The arms of a study start from the same adapters and the same data, and their clients would all take
the same fingerprints again. What one depends on is its key, to the bit; nothing else is looked at.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import torch

from atlas.config.plan import FingerprintSettings
from atlas.engines.local.groups import Group
from atlas.federation.adapters.cohort import adapter_sha256
from atlas.federation.fingerprints.take import Print

MOST_BYTES = 64 * 2**20
"""Kept at a time; the ones not asked for longest go first."""


class KnownPrints:
    """A few fingerprints by key."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        """Nothing known yet."""
        self.most, self.held = most, 0
        self._prints: OrderedDict[str, Print] = OrderedDict()

    def get(self, key: str) -> Print | None:
        """A fingerprint taken before, or None."""
        if key in self._prints:
            self._prints.move_to_end(key)
        return self._prints.get(key)

    def keep(self, key: str, found: Print) -> None:
        """Remember one, and forget the oldest beyond the limit."""
        self._prints[key] = found
        self.held += _size(found)
        while self.held > self.most:
            _, oldest = self._prints.popitem(last=False)
            self.held -= _size(oldest)


KNOWN = KnownPrints()


def print_key(group: Group, client: str, settings: FingerprintSettings, seed: int) -> str:
    """All that a client's fingerprint depends on; threads and device count for its last bits."""
    model, holder = group.model, group.holders[client]
    digest = hashlib.sha256()
    for part in (
        model.backbone.weights_id,
        adapter_sha256(group.arms["held"].take(client)),
        settings.model_dump_json(),
        (client, seed, model.first_block, group.limits.max_length),
        (str(model.backbone.device), torch.get_num_threads()),
        holder.data.task,
        holder.data.train,
    ):
        digest.update(repr(part).encode())
    return digest.hexdigest()


def _size(found: Print) -> int:
    return sum(sketch.nbytes for sketch in found.sketches.values())
