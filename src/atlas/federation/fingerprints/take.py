"""What a client tells of its data before training: gradients at the shared start, sketched.

The gradient of a loss with respect to a linear layer is a sum over tokens of (gradient of its
output) x (its input). Both are caught by hooks, so the frozen backbone needs no gradients of its
own. Every part of a fingerprint is a weighted sum over examples:

- `mean`: the plain mean gradient of the loss.
- `label`: the mean over classes of the class means. At a fresh head all classes are predicted
  alike, and what is left is what tells the labels apart; opposite labellings have opposite signs.
- `text`: the gradient of the first logit against the mean of the others, each class counting the
  same: the mean Jacobian, what the text is, whatever its labels. With two classes at a fresh head
  it is the difference of the class means of the gradient (up to sign and scale), and unlike that
  difference it needs no class to be present and is comparable between label counts.

Causal tasks have no classes: `text` is their mean gradient and `label` is nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from atlas.config.plan import FingerprintSettings, Part
from atlas.federation.adapters.adapter import is_head, is_head_weight
from atlas.federation.batching.forward import Model, Outcome, Stack, run
from atlas.federation.batching.store import ExampleStore, Rows
from atlas.federation.fingerprints.layer_gradients import (
    catch_calls,
    last_linears,
    layer_gradients,
)
from atlas.federation.training.evaluate import EVALUATION_BATCH
from atlas.federation.training.loop import Lesson
from atlas.ops.sketch import count_sketch
from atlas.runs.seeds import generator

BATCH = 16
"""Examples counted as one batch of `fingerprint.batches`, whatever batch training uses."""

LEAST = 1e-30
"""A layer without any gradient stays zero."""


@dataclass(frozen=True)
class Print:
    """One client's fingerprint.

    Attributes:
        sketches: By `part` and `part/head`: one row per fold [folds, width]. The rows of a part
            add up to the sketch of its gradient, every layer scaled to length one.
        norms: By part: length of every layer's gradient, for whoever grants ranks.
        examples: Examples that were used.
    """

    sketches: dict[str, Tensor]
    norms: dict[str, dict[str, float]]
    examples: int


def print_shapes(
    model: Model, head: Mapping[str, tuple[int, ...]], settings: FingerprintSettings
) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a fingerprint.

    Args:
        model: The client's model.
        head: Shapes of the client's head tensors; empty without a head.
        settings: Parts, folds and size.
    """
    blocks = range(model.backbone.depth - settings.blocks, model.backbone.depth)
    linears = [linear for block in blocks for linear in model.backbone.linears(block).values()]
    body = settings.sketch or sum(linear.in_features * linear.out_features for linear in linears)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(settings.parts, (settings.folds, body))
    if settings.head and head:
        sizes = [math.prod(shape) for name, shape in head.items() if _is_head_weight(name)]
        width = settings.sketch or sum(sizes)
        shapes |= {f"{part}/head": (settings.folds, width) for part in settings.parts}
    return shapes


def take_print(
    store: ExampleStore, stack: Stack, lesson: Lesson, settings: FingerprintSettings, seed: int
) -> Print:
    """The fingerprint of one client, a stack of a single row.

    Args:
        store: Where its training examples are; its model must leave the last `settings.blocks`
            blocks out of the prefix.
        stack: The adapter at which gradients are taken.
        lesson: Which examples, and whose draw.
        settings: Parts, folds and size.
        seed: Run seed; all clients share the sketch it gives.
    """
    folds = fold_examples(store, lesson, settings, seed)
    weights = example_weights(store, stack, np.concatenate(folds))
    totals: dict[tuple[Part, str], Tensor] = {}
    written: dict[tuple[Part, str], list[Tensor]] = {}
    for fold in folds:
        for key, gradient in fold_gradients(store, stack, fold, weights, settings).items():
            flat = gradient.flatten()
            totals[key] = totals[key] + flat if key in totals else flat
            written.setdefault(key, []).append(sketch_layer(flat, key[1], settings.sketch, seed))
    norms: dict[str, dict[str, float]] = {part: {} for part in settings.parts}
    for (part, layer), total in totals.items():
        norms[part][layer] = float(total.norm())
    sketches = join_layers(written, norms, settings)
    return Print(sketches, norms, sum(len(fold) for fold in folds))


def fold_examples(
    store: ExampleStore, lesson: Lesson, settings: FingerprintSettings, seed: int
) -> list[Rows]:
    """Up to `batches` batches of the client's examples, dealt to folds class by class.

    Folds that hold the classes in like numbers differ by their texts alone.
    """
    draw = generator(seed, "fingerprint", lesson.client)
    order = lesson.train[draw.permutation(len(lesson.train))][: settings.batches * BATCH]
    labels = store.labels[torch.from_numpy(order).to(store.labels.device)].cpu().numpy()
    order = order[labels.argsort(kind="stable")]
    return [order[fold :: settings.folds] for fold in range(settings.folds)]


def example_weights(store: ExampleStore, stack: Stack, rows: Rows) -> dict[Part, Tensor]:
    """Weight of every example of the store in each part; zero for those not among `rows`."""
    chosen = torch.from_numpy(rows).to(store.labels.device)
    labels = store.labels[chosen]
    mean = torch.zeros(len(store.labels), dtype=torch.float64, device=chosen.device)
    mean[chosen] = 1 / len(chosen)
    if not int(stack.labels[0]):
        return {"mean": mean, "text": mean, "label": torch.zeros_like(mean)}
    counts = torch.bincount(labels)
    balanced = torch.zeros_like(mean)
    balanced[chosen] = 1 / (counts[labels] * (counts > 0).sum()).to(mean.dtype)
    return {"mean": mean, "text": balanced, "label": balanced}


def objective(part: Part, outcome: Outcome, classes: int) -> Tensor:
    """What each example adds to a part before it is weighted, [1, b]."""
    if part == "text" and outcome.logits is not None:
        logits = outcome.logits[..., :classes]
        return logits[..., 0] - logits[..., 1:].mean(-1) if classes > 1 else logits[..., 0]
    return outcome.losses / outcome.counts.clamp_min(1)


def fold_gradients(
    store: ExampleStore,
    stack: Stack,
    fold: Rows,
    weights: Mapping[Part, Tensor],
    settings: FingerprintSettings,
) -> dict[tuple[Part, str], Tensor]:
    """Gradients over one fold by part and layer; a fold without examples has none."""
    found: dict[tuple[Part, str], Tensor] = {}
    classes = int(stack.labels[0])
    wanted = settings.head and classes
    names = [name for name in stack.tensors if _is_head_weight(name)] if wanted else []
    head = {name: stack.tensors[name].detach().requires_grad_() for name in names}
    for start in range(0, len(fold), EVALUATION_BATCH):
        pick = fold[start : start + EVALUATION_BATCH]
        batch = store.batch([pick])
        # Nothing else here asks for gradients; the graph has to begin somewhere.
        batch = batch.at(batch.hidden.detach().requires_grad_())
        with catch_calls(last_linears(store.model, settings.blocks)) as calls:
            # Gradients of all modules are wanted, so all of them must be called.
            own = replace(stack, tensors={**stack.tensors, **head})
            outcome = run(store.model, own, batch, reading="whole")
        here = torch.from_numpy(pick).to(store.labels.device)
        for part in settings.parts:
            each = objective(part, outcome, classes)
            total = (each * weights[part][here].to(each.dtype)).sum()
            for layer, gradient in layer_gradients(total, calls, head).items():
                key = (part, layer)
                if is_head(layer, store.model.layout.head[-1].name):
                    gradient = gradient[0, :classes]  # the rows beyond are padding
                found[key] = found[key] + gradient if key in found else gradient
    return found


def _is_head_weight(name: str) -> bool:
    """Biases are left out: balanced classes leave them next to nothing, which is all noise."""
    return is_head_weight(name)


def sketch_layer(flat: Tensor, layer: str, width: int, seed: int) -> Tensor:
    """A layer's gradient as it is sent; layers have sketches of their own in the same buckets."""
    if not width:
        return flat
    return count_sketch(flat, width, int(generator(seed, "sketch", layer).integers(2**63)))


def join_layers(
    written: Mapping[tuple[Part, str], list[Tensor]],
    norms: Mapping[str, Mapping[str, float]],
    settings: FingerprintSettings,
) -> dict[str, Tensor]:
    """Layers scaled to length one and put together: added if sketched, side by side if not."""
    sketches: dict[str, Tensor] = {}
    for (part, layer), folds in written.items():
        name = f"{part}/head" if is_head(layer) else part
        rows = torch.stack(folds).to(torch.float32) / max(norms[part][layer], LEAST)
        # Fewer examples than folds: the folds that stayed empty are rows of zeros.
        rows = torch.cat([rows, rows.new_zeros(settings.folds - len(rows), rows.shape[1])])
        if name not in sketches:
            sketches[name] = rows
        elif settings.sketch:
            sketches[name] = sketches[name] + rows
        else:
            sketches[name] = torch.cat([sketches[name], rows], dim=1)
    return sketches
