"""Losses of causal tasks, computed at the places that carry one and nowhere else.

Letters in shapes: N texts, T tokens of the longest, Q places of the longest answer, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atlas.federation.batches import Batch, Outcome
from atlas.federation.batching.backbone import Backbone

SPARSE = 0.75
"""If places to be read are more than this share of all tokens, the last block runs whole."""


def predict_tokens(backbone: Backbone, hidden: Tensor, batch: Batch, context: object) -> Outcome:
    """Losses of every text's answer.

    Args:
        backbone: The model, adapters active.
        hidden: The last block's packed input.
        batch: The examples.
        context: As the backbone gave it for them.
    """
    assert batch.targets is not None
    packing, (n, b) = batch.packing, batch.present.shape
    expected = torch.where(packing.mask, batch.targets.flatten()[packing.slots], -100)
    # A text that is not present borrows another one's tokens, but not its answer.
    wanted = (expected >= 0) & batch.present.reshape(-1, 1)
    at, there = _first_places(wanted)
    if at.numel() <= SPARSE * packing.real.numel():
        answered = backbone.packed_places(hidden, packing, context, at)[there]
    else:
        whole = backbone.packed_block(backbone.depth - 1, hidden, packing, context)
        answered = whole.flatten(0, 1)[packing.slots.gather(1, at)[there]]
    # Only places that carry loss meet the vocabulary, by far the largest matrix.
    found = backbone.vocabulary_losses(answered, expected.gather(1, at)[there])
    text = torch.nonzero(there)[:, 0]
    losses = found.new_zeros(n * b).index_add(0, text, found)
    counts = there.sum(1).to(losses.dtype)
    return Outcome(losses.reshape(n, b), counts.reshape(n, b), torch.zeros_like(batch.labels))


def _first_places(wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The places that are wanted [N, T] as a table of them [N, Q], and which entries count."""
    counts = wanted.sum(1)
    most = max(1, int(counts.max()))
    order = torch.argsort(wanted.to(torch.int8), dim=1, descending=True, stable=True)
    return order[:, :most], torch.arange(most, device=wanted.device) < counts[:, None]
