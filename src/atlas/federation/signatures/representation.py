"""Signatures by representations: how a client's adapted model tells generated texts apart.

Every client runs the same anchor texts and sends the centred Gram matrix of its features, as a
vector of length one: the cosine of two of them is the linear CKA of the models, whatever their
widths. No data of the client goes in, and what does, its adapter, is sent anyway; so nothing is
clipped or noised.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atlas.federation.batching.forward import Stack, run_blocks
from atlas.federation.batching.store import ExampleStore, Rows
from atlas.federation.signatures.signature import Signature
from atlas.federation.training.evaluate import EVALUATION_BATCH
from atlas.ops.similarity import gram_triangle


def sign_by_representation(store: ExampleStore, stack: Stack, anchors: str) -> Signature:
    """One client's signature.

    Args:
        store: The client's model with the anchor texts.
        stack: Its adapter, a stack of a single row.
        anchors: The part of the store that has them.
    """
    rows = store.rows(anchors)
    values = gram_triangle(pooled_features(store, stack, rows))
    return Signature(values.to(torch.float32), len(rows), float(values.norm()))


@torch.no_grad()
def pooled_features(store: ExampleStore, stack: Stack, rows: Rows) -> Tensor:
    """What the last block puts out, averaged over each text's tokens [texts, D], float64."""
    model, found = store.model, []
    for start in range(0, len(rows), EVALUATION_BATCH):
        batch = store.batch([rows[start : start + EVALUATION_BATCH]])
        blocks = range(model.first_block, model.backbone.depth)
        hidden = run_blocks(model, stack, batch, blocks).to(torch.float64)
        spread, mask = batch.packing.spread(hidden), batch.packing.mask[..., None]
        found.append(torch.where(mask, spread, 0.0).sum(1) / mask.sum(1).clamp_min(1))
    return torch.cat(found)
