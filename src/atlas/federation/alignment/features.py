"""What adapted modules of a frozen model take in and put out over texts, one mean for each text.

Tokens of two models do not correspond, whole texts do: a text's inputs to a module are averaged
over its tokens as they are computed, and nothing is kept of single tokens. The first token is left
out: causal attention rests on it with the same large values in every text, so that divided by the
number of tokens it would tell how long a text is and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from atlas.federation.batching.backbone import Inputs
from atlas.federation.batching.forward import Model
from atlas.federation.batching.prefix_cache import run_prefix
from atlas.federation.clients import Example, Task

BATCH = 16
"""Texts that run together."""

TEXTS = Task(name="anchors", kind="classification", text=("text",), label="")
"""Whole texts as any model reads them, encoder or causal."""


@dataclass(frozen=True)
class Features:
    """Paired over models: row t of every tensor is text t.

    Attributes:
        inputs: Of each adapted module in block order [texts, d_in], float64.
        outputs: Likewise [texts, d_out].
        identity: Of the model they are of, wherever it lies: addresses what is drawn for it.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    identity: str

    def rows(self, some: slice) -> Features:
        """Of some texts only."""
        parts = (self.inputs, self.outputs)
        inputs, outputs = (tuple(value[some] for value in part) for part in parts)
        return Features(inputs, outputs, self.identity)


@torch.no_grad()
def text_features(model: Model, texts: Sequence[str], max_length: int) -> Features:
    """Mean inputs and outputs of a model's adapted modules, with no adapter active.

    Args:
        model: Its layout names the modules.
        texts: In the order that pairs them with other models'.
        max_length: Tokens that are kept of a text.
    """
    backbone, count = model.backbone, len(texts)
    inputs = backbone.tokenize(TEXTS, [Example((text,), 0) for text in texts], max_length)
    # Like lengths together, so that little padding is computed; rows go back to their places.
    order = torch.argsort(inputs.mask.sum(1), stable=True)
    sizes = zip(*model.layout.widths, strict=True)
    means = tuple(
        tuple(torch.zeros(count, width, dtype=torch.float64) for width in side) for side in sizes
    )
    for chosen in torch.split(order, BATCH):
        longest = int(inputs.mask[chosen].sum(1).max())
        parts = (value[chosen, :longest] for value in (inputs.ids, inputs.mask, inputs.types))
        ids, mask, types = parts
        with _pooling(model, mask) as caught:
            run_prefix(backbone, Inputs(ids, mask, types), _blocks(model))
        for number, module in enumerate(model.layout.modules):
            for side, value in zip(means, caught[module], strict=True):
                side[number][chosen.cpu()] = value
    ins, outs = means
    return Features(ins, outs, backbone.weights_id)


def _blocks(model: Model) -> int:
    """How many blocks must run to reach all adapted modules."""
    wanted, depth = set(model.layout.modules), model.backbone.depth
    if not model.backbone.cut_into_blocks:
        return depth
    return 1 + max(b for b in range(depth) if wanted & set(model.backbone.linears(b)))


@contextmanager
def _pooling(model: Model, mask: Tensor) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Within this context, means over texts of what adapted modules take in and put out."""
    counted = mask.clone()
    counted[:, 0] &= mask.sum(1) == 1  # unless it is all there is
    share = counted.double() / counted.double().sum(1, keepdim=True)
    found: dict[str, tuple[Tensor, Tensor]] = {}
    handles = []

    def pooled(value: Tensor) -> Tensor:
        whole = value.reshape(*mask.shape, value.shape[-1]).double()
        return torch.einsum("nt,ntd->nd", share, whole).cpu()

    def hook_for(name: str) -> Any:  # noqa: ANN401 - torch's hook type
        def keep(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            del module
            found[name] = pooled(args[0]), pooled(output)

        return keep

    try:
        for block in range(model.backbone.depth):
            for name, linear in model.backbone.linears(block).items():
                if name in model.layout.modules:
                    handles.append(linear.register_forward_hook(hook_for(name)))
        yield found
    finally:
        for handle in handles:
            handle.remove()
