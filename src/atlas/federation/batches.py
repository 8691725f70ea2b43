"""What goes into a forward pass and what comes out of it.

Letters in shapes: n clients, b examples per client, S tokens per client, D width, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from atlas.federation.batching.packing import Packing


@dataclass(frozen=True)
class Batch:
    """Examples of n rows, already run through the blocks below the first adapter.

    Attributes:
        hidden: Packed tokens [n, S, D].
        projected: What the first block's frozen projections make of them [n, S, .]; empty if that
            is not known.
        packing: Where the texts are in them.
        present: False where a row has fewer than b examples [n, b].
        labels: [n, b]; for causal tasks unused.
        targets: Expected next tokens [n, S], -100 where no loss is taken; None for labels.
        weights: What each example's loss counts [n, b]; None if all count alike.
    """

    hidden: Tensor
    packing: Packing
    present: Tensor
    labels: Tensor
    targets: Tensor | None
    projected: tuple[Tensor, ...] = ()
    weights: Tensor | None = None

    def at(self, hidden: Tensor) -> Batch:
        """The same examples with other tokens, of which no projections are known."""
        return replace(self, hidden=hidden, projected=())


@dataclass(frozen=True)
class Outcome:
    """Losses and predictions per example, [n, b] each.

    Attributes:
        losses: Summed over an example's answer tokens (one for classification), times what the
            example counts.
        counts: Number of those tokens; zero where no example is present.
        predicted: Predicted label; zeros for causal tasks.
        logits: [n, b, L], -inf at padded labels; None for causal tasks.
    """

    losses: Tensor
    counts: Tensor
    predicted: Tensor
    logits: Tensor | None = None

    def client_losses(self) -> Tensor:
        """Mean loss of each row [n]."""
        return self.losses.sum(1) / self.counts.sum(1).clamp_min(1)
