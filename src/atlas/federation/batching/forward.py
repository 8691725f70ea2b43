"""One forward pass for many clients: the backbone once, each client's adapter on its own rows.

`Batch` goes in and `Outcome` comes out. Losses of causal tasks are computed at the places that
carry one and nowhere else.

Letters in shapes: n clients, b examples per client, S tokens per client, D width, R rank, L labels;
of causal tasks also N texts, T tokens of the longest, Q places of the longest answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from atlas.federation.adapters.adapter import Frozen, Layout, head_names, is_a
from atlas.federation.adapters.changes import Beside, changes_of
from atlas.federation.adapters.cohort import Cohort
from atlas.federation.adapters.lora_hooks import LoraChange, Projected
from atlas.federation.batching.backbone import ACTIVATIONS, Backbone
from atlas.federation.batching.packing import Packing
from atlas.federation.batching.prefix_cache import PrefixCache


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


Reading = Literal["folded", "whole"]
"""How the last block is read where a head asks for one place of each text."""


@dataclass(frozen=True)
class Model:
    """A frozen backbone and where adapters sit in it.

    Attributes:
        backbone: The frozen model.
        layout: Its adapted modules.
        first_block: Blocks below this one have no adapters.
        prefix: Keeps what those blocks put out; None to compute it for every batch.
        autocast: Precision of products while adapters are active; None for that of the weights.
        bases: What is frozen around every core, by module.
    """

    backbone: Backbone
    layout: Layout
    first_block: int
    prefix: PrefixCache | None = None
    autocast: torch.dtype | None = None
    bases: Mapping[str, Frozen] = field(default_factory=dict)

    def starting_at(self, block: int) -> Model:
        """The same model, with texts entering at a lower block."""
        return replace(self, first_block=block, prefix=None)

    def twins(self, count: int) -> list[Model]:
        """The same model so many times, each free to be used by a thread of its own."""
        return [replace(self, backbone=twin) for twin in self.backbone.twins(count)]


@dataclass(frozen=True)
class Stack:
    """Adapters of n rows to be run together; one client may own several rows.

    Attributes:
        tensors: As in `Cohort`, dimension 0 the row.
        scales: alpha / rank of each row, one vector per module.
        labels: Label count of each row; zero for causal tasks.
        still: Rows whose A is not trained [n]; None if there are none.
        deltas: Dense changes of each row by module, [d_out, d_in]; empty if no row has any.
        beside: What was delivered to stand beside the rows' adapters; None if nothing ever is.
    """

    tensors: dict[str, Tensor]
    scales: tuple[Tensor, ...]
    labels: Tensor
    still: Tensor | None = None
    deltas: tuple[Mapping[str, Tensor], ...] = ()
    beside: Beside | None = None

    def rows(self, index: Tensor) -> Stack:
        """The stack of some rows only."""
        return Stack(
            {name: value.index_select(0, index) for name, value in self.tensors.items()},
            tuple(scale.index_select(0, index) for scale in self.scales),
            self.labels.index_select(0, index),
            None if self.still is None else self.still.index_select(0, index),
            tuple(self.deltas[row] for row in index.tolist()) if self.deltas else (),
            None if self.beside is None else self.beside.rows(index),
        )

    def moving(self, name: str) -> Tensor:
        """Which rows train the tensor of that name [n]."""
        if self.still is not None and is_a(name):
            return ~self.still
        return torch.ones_like(self.labels, dtype=torch.bool)


def stack_cohorts(cohorts: Sequence[Cohort]) -> Stack:
    """All rows of cohorts with one layout and padding, one after another."""
    first = cohorts[0]
    device = next(iter(first.tensors.values())).device
    tensors = {name: torch.cat([c.tensors[name] for c in cohorts]) for name in first.tensors}
    scales = tuple(
        torch.cat([c.scales(i) for c in cohorts]).to(device)
        for i in range(len(first.layout.modules))
    )
    labels = torch.tensor([member.labels for c in cohorts for member in c.members], device=device)
    still = torch.tensor([c.trains == "b" for c in cohorts for _ in c.members], device=device)
    deltas = tuple(c.deltas.get(client, {}) for c in cohorts for client in c.clients)
    some_still = any(c.trains == "b" for c in cohorts)
    return Stack(
        tensors,
        scales,
        labels,
        still if some_still else None,
        deltas if any(deltas) else (),
        Beside.of(cohorts),
    )


@contextmanager
def adapters_active(model: Model, stack: Stack) -> Iterator[dict[str, LoraChange]]:
    """Within this context every adapted linear module adds its rows' changes.

    Hooks live only inside the context, so the shared backbone is left as it was found. The model's
    autocast holds inside it too, and so never for heads and what optimisers do.

    Yields:
        The changes, for those who need not call the modules.
    """
    linears: dict[str, nn.Linear] = {}
    for block in range(model.first_block, model.backbone.depth):
        linears.update(model.backbone.linears(block))
    changes, handles = changes_of(model.layout, model.bases, stack), []
    try:
        for module, change in changes.items():
            handles.append(linears[module].register_forward_hook(change.hook()))
        with _precision(model):
            yield changes
    finally:
        for handle in handles:
            handle.remove()


def _precision(model: Model) -> AbstractContextManager[object]:
    if model.autocast is None:
        return nullcontext()
    return torch.autocast(model.backbone.device.type, dtype=model.autocast)


def run(model: Model, stack: Stack, batch: Batch, reading: Reading = "folded") -> Outcome:
    """Losses and predictions of every example under its row's adapter."""
    return run_top(model, stack, batch, model.first_block, reading)


def run_blocks(model: Model, stack: Stack, batch: Batch, blocks: range) -> Tensor:
    """A batch through some blocks, [n, S, D]; its `hidden` is the first one's input."""
    with adapters_active(model, stack) as changes:
        return _through(model, batch, blocks, _context(model, batch), changes)


def run_top(
    model: Model, stack: Stack, batch: Batch, first: int, reading: Reading = "folded"
) -> Outcome:
    """Losses and predictions of a batch whose `hidden` is the input of block `first`.

    Args:
        model: The model.
        stack: Its adapters.
        batch: The examples.
        first: The first block to run.
        reading: Whether the last block may do without keys and values, and the first with those
            that are known; `whole` calls all their modules, for those who watch them.
    """
    last = model.backbone.depth - 1
    context = _context(model, batch)
    with adapters_active(model, stack) as changes:
        known = changes if reading == "folded" else None
        hidden = _through(model, batch, range(first, last), context, known)
        if batch.targets is not None:
            return predict_tokens(model.backbone, hidden, batch, context)
        features = model.backbone.packed_features(hidden, batch.packing, context, known)
    return _classify(model.layout, stack, features.reshape(*batch.labels.shape, -1), batch)


def _context(model: Model, batch: Batch) -> object:
    return model.backbone.context(batch.packing.frame(batch.hidden), batch.packing.mask)


def _through(
    model: Model,
    batch: Batch,
    blocks: range,
    context: object,
    changes: Mapping[str, LoraChange] | None,
) -> Tensor:
    """Through blocks; what is known of the first is used if `changes` says what adapters add."""
    hidden, projected = batch.hidden, None
    if batch.projected and changes is not None:
        projected = Projected(batch.projected, changes)
    for block in blocks:
        hidden = model.backbone.packed_block(block, hidden, batch.packing, context, projected)
        projected = None
    return hidden


def head_logits(layout: Layout, stack: Stack, features: Tensor) -> Tensor:
    """Each row's head on its own features [n, b, D] -> [n, b, L], padded labels at -inf."""
    x = features
    for layer in layout.head:
        weight_name, bias_name = head_names(layer.name)
        weight = stack.tensors[weight_name]
        x = torch.bmm(x.to(weight.dtype), weight.transpose(1, 2))
        if layer.bias:
            x = x + stack.tensors[bias_name][:, None]
        x = ACTIVATIONS[layer.activation](x)
    padded = torch.arange(x.shape[2], device=x.device) >= stack.labels[:, None, None]
    return x.masked_fill(padded, float("-inf"))


def _classify(layout: Layout, stack: Stack, features: Tensor, batch: Batch) -> Outcome:
    logits = head_logits(layout, stack, features)
    losses = functional.cross_entropy(
        logits.flatten(0, 1), batch.labels.flatten(), reduction="none"
    ).reshape(batch.labels.shape)
    if batch.weights is not None:
        losses = losses * batch.weights.to(losses.dtype)
    counts = batch.present.to(losses.dtype)
    return Outcome(torch.where(batch.present, losses, 0.0), counts, logits.argmax(-1), logits)
