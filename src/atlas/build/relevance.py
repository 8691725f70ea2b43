"""From settings to what signatures are made of: a shared probe, and texts to compare models on."""

from __future__ import annotations

from functools import partial

from atlas.build.models import find_prefix, open_backbone
from atlas.config.federation import FederationConfig
from atlas.data.anchors import anchor_texts
from atlas.errors import InputError
from atlas.federation.adapters.adapter import Layout
from atlas.federation.batching.forward import Model
from atlas.federation.signatures.gradient import DOWN
from atlas.federation.signatures.stores import SignatureStores


def signature_stores(config: FederationConfig) -> SignatureStores:
    """What one group's signatures are taken from; nothing is loaded before it is asked for."""
    return SignatureStores(
        find_probe=partial(find_probe, config),
        find_texts=partial(anchor_texts, seed=config.seed),
    )


def find_probe(config: FederationConfig, name: str) -> Model:
    """The frozen probe without adapters, texts entering at its last block.

    Raises:
        InputError: If it cannot be had, writes no answers, or has no down-projection to look at.
    """
    backbone = open_backbone(config, name)
    if not backbone.can_generate or not backbone.cut_into_blocks:
        what = "runs as a whole" if backbone.can_generate else "is an encoder"
        raise InputError(
            f"relevance.probe: {name} given, which {what}; allowed: a causal model that is cut "
            "into blocks, such as tiny-causal or a folder with a llama model"
        )
    last = backbone.depth - 1
    try:
        backbone.select(last, [DOWN])
    except InputError as error:
        raise InputError(f"relevance.probe: {error}") from error
    layout = Layout(backbone=backbone.name, modules=(), widths=(), head=(), alpha=1.0)
    return Model(backbone, layout, last, find_prefix(config.train, backbone, last))
