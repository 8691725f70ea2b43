"""W as a round handles it: a matrix for few clients, sparse rows for many."""

from __future__ import annotations

import numpy as np
import scipy
import torch
from torch import Tensor

from atlas.ops.graph import sparse_rows as sparse
from atlas.ops.graph.sparse_rows import SharedRows
from atlas.ops.lowrank import mixing

Weights = Tensor | SharedRows
"""Row-stochastic [n, n]; as a tensor also one per module, [modules, n, n]."""


def identity(n: int) -> Weights:
    """Nobody learns from anybody."""
    if n <= sparse.LARGEST_DENSE:
        return torch.eye(n, dtype=torch.float64)
    return SharedRows(sparse.tidy(scipy.sparse.eye_array(n)), np.arange(n))


def settle(weights: Weights, usable: Tensor, present: Tensor | None) -> Weights:
    """Check W, and leave out whom nothing is known of.

    Args:
        weights: What a relation says.
        usable: Whom others may learn from, bool [n].
        present: Who receives a mixture, bool [n]; None: everybody.
    """
    if isinstance(weights, SharedRows):
        sparse.check_rows(weights)
        kept = sparse.restrict_columns(weights, usable.numpy())
        return kept if present is None else sparse.keep_own(kept, ~present.numpy())
    mixing.check_mixing(weights)
    found = mixing.restrict(weights, usable)
    if present is None:
        return found
    own = torch.eye(len(usable), dtype=found.dtype, device=found.device)
    return torch.where(present[:, None], found, own)


def keeps_own(weights: Weights) -> Tensor:
    """Which clients learn from nobody, bool [n]."""
    if isinstance(weights, SharedRows):
        return torch.from_numpy(sparse.keeps_own_row(weights))
    return mixing.keeps_own(weights)


def same(one: Weights, two: Weights) -> bool:
    """Whether both are equal to the bit."""
    if isinstance(one, SharedRows) and isinstance(two, SharedRows):
        return sparse.same_rows(one, two)
    return isinstance(one, Tensor) and isinstance(two, Tensor) and torch.equal(one, two)
