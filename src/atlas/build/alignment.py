"""From settings and models to the frozen bases of PQ-LoRA."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from atlas.config.plan import AlignSettings
from atlas.data.anchors import anchor_texts
from atlas.federation.alignment.bases import Bases, make_bases
from atlas.federation.alignment.features import Features, text_features
from atlas.federation.batching.forward import Model

T = TypeVar("T")
Key = tuple[object, ...]
KEPT = 8
"""Bases, and features of models, that a process keeps: arms of a study share them."""

_bases: dict[Key, Bases] = {}
_features: dict[Key, Features] = {}


def find_bases(
    settings: AlignSettings, models: Mapping[str, Model], rank: int, seed: int, max_length: int
) -> Bases:
    """The bases of every model; found once per process for the same models and settings.

    Args:
        settings: How they are found.
        models: By backbone name; their layouts name the adapted modules.
        rank: r of every core.
        seed: Of the run; addresses texts and draws.
        max_length: Tokens that are kept of a text.

    Raises:
        InputError: If models differ in their number of adapted modules, or texts or layers do not
            support the rank.
    """
    known = {name: _identity(models[name]) for name in sorted(models)}
    # Angles between spans of r columns say something only where there are many more texts.
    count = settings.texts + max(settings.texts // 4, 4 * rank)

    def features_of(name: str) -> Features:
        def run() -> Features:
            return text_features(models[name], anchor_texts(count, seed), max_length)

        return _once(_features, (*known[name], count, seed, max_length), run)

    def find() -> Bases:
        features = {name: features_of(name) for name in known}
        return make_bases(features, rank, settings.texts, settings, seed)

    whole = (tuple(known.items()), settings.model_dump_json(), rank, seed, max_length)
    return _once(_bases, whole, find)


def _identity(model: Model) -> Key:
    return (model.backbone.weights_id, model.layout.modules)


def _once(kept: dict[Key, T], key: Key, find: Callable[[], T]) -> T:
    if key not in kept:
        found = find()
        while len(kept) >= KEPT:
            kept.pop(next(iter(kept)))
        kept[key] = found
    return kept[key]
