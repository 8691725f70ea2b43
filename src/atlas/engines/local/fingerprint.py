"""The `fingerprint` task of the local engine; what this process has taken is not taken again.

The arms of a study start from the same adapters and the same data, and their clients would all take
the same fingerprints again. What one depends on is its key, to the bit; nothing else is looked at.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from atlas.config.plan import FingerprintSettings
from atlas.config.training import TrainSettings
from atlas.engines.local.groups import ClientGroup
from atlas.federation.adapters.adapter import adapter_sha256
from atlas.federation.batching.forward import Stack, stack_cohorts
from atlas.federation.batching.store import ExampleStore, Part
from atlas.federation.fingerprints.take import Print, take_print
from atlas.federation.training.loop import Clock, Course, Lesson, fit

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


def print_key(group: ClientGroup, client: str, settings: FingerprintSettings, seed: int) -> str:
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


def print_group(  # noqa: PLR0913
    group: ClientGroup,
    clients: Sequence[str],
    settings: FingerprintSettings,
    train: TrainSettings,
    clock: Clock,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Print]:
    """Fingerprints of clients at the adapters they hold, which before round 1 is the start.

    With `settings.warmup` each client first trains that many epochs; the result is thrown away.

    Raises:
        ValueError: If the backbone has fewer blocks than are looked at.
    """
    depth = group.model.backbone.depth
    if settings.blocks > depth:
        raise ValueError(f"gradients of {settings.blocks} blocks asked for, but there are {depth}")
    if settings.warmup:  # a trained start depends on too much to be known again
        return _take(group, clients, settings, train, clock, progress)
    keys = {client: print_key(group, client, settings, clock.seed) for client in clients}
    known = {client: one for client, key in keys.items() if (one := KNOWN.get(key))}
    new = [client for client in clients if client not in known]
    taken = _take(group, new, settings, train, clock, progress) if new else {}
    for client, one in taken.items():
        KNOWN.keep(keys[client], one)
    found = known | taken
    return {client: found[client] for client in clients}


def _take(  # noqa: PLR0913
    group: ClientGroup,
    clients: Sequence[str],
    settings: FingerprintSettings,
    train: TrainSettings,
    clock: Clock,
    progress: Callable[[int, int], None] | None,
) -> dict[str, Print]:
    store = print_store(group, settings.blocks)
    found = {}
    for number, client in enumerate(clients, start=1):
        lesson = _lesson(store, client)
        stack = stack_cohorts([group.arms["held"].select([client])])
        if settings.warmup:
            stack = _warm(group, stack, client, train, replace(clock, round=1), settings.warmup)
        found[client] = take_print(store, stack, lesson, settings, clock.seed)
        if progress:
            progress(number, len(clients))
    return found


def print_store(group: ClientGroup, blocks: int) -> ExampleStore:
    """A store whose prefix ends before the blocks that are looked at.

    Parts of a fingerprint weigh classes by themselves, so examples count alike here.
    """
    depth = group.model.backbone.depth
    if group.model.first_block <= depth - blocks:
        return group.store.unweighed()
    parts: dict[str, Part] = {
        f"{name}/train": (holder.data.task, holder.data.train)
        for name, holder in group.holders.items()
    }
    model = group.model.starting_at(depth - blocks)
    return ExampleStore(model, parts, group.limits.max_length)


def _lesson(store: ExampleStore, client: str) -> Lesson:
    rows = store.rows(f"{client}/train")
    return Lesson(client, rows, rows[:0])


def _warm(  # noqa: PLR0913
    group: ClientGroup, stack: Stack, client: str, train: TrainSettings, clock: Clock, epochs: int
) -> Stack:
    changes = {"epochs": epochs, "steps": None, "early_stop": None}
    settings = train.model_copy(update=changes)
    with torch.enable_grad():
        course = Course(stack, [group.lesson(client)])
        return fit(group.store, course, settings, clock).stack
