"""Causal Q-K projection (TNT, arXiv 2511.07343): read along the keys seen so far.

q'_t = sum over tau <= t of k_tau (k_tau . q_t) / ||k_tau||^2, a running sum of rank-one projectors
since the start of the sequence or shard: with unit keys, q'_t = q_t P_t and P_t = P_{t-1} + k^T k.
It is not an orthogonal projector, and its norm grows with the number of keys.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

BLOCK = 64


def project(queries: Tensor, keys: Tensor, prefix: Tensor) -> tuple[Tensor, Tensor]:
    """Project T queries, block by block.

    Args:
        queries: [B, H, T, d_k].
        keys: [B, H, T, d_k], of any length.
        prefix: P before the first token, [B, H, d_k, d_k].

    Returns:
        The projected queries, and P after the last token.
    """
    length = queries.shape[2]
    block = min(BLOCK, length)
    # Keys of zero add nothing, so the last block may be filled up.
    fill = (0, 0, 0, -length % block)
    unit = torch.unflatten(pad(normalize(keys, dim=-1), fill), 2, (-1, block))
    rows = torch.unflatten(pad(queries, fill), 2, (-1, block))
    sums = torch.cat([prefix[:, :, None], unit.mT @ unit], 2).cumsum(2)
    within = (rows @ unit.mT).tril() @ unit
    projected = (rows @ sums[:, :, :-1] + within).flatten(2, 3)[:, :, :length]
    return projected, sums[:, :, -1]
