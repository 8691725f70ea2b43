"""A backbone cut to its lowest blocks: a smaller model of the same width.

Embeddings, final norm, pooler and vocabulary head are those of the whole model, tensor for tensor,
so both together take no more room than the whole one.
"""

from __future__ import annotations

import copy
from typing import cast

from torch import nn

from atlas.backbones.blocks import Config
from atlas.backbones.transformer import TransformerBackbone
from atlas.errors import InputError


def keep_lowest(whole: TransformerBackbone, blocks: str, name: str) -> TransformerBackbone:
    """The backbone without all but its lowest blocks; its tensors are the whole one's own.

    Args:
        whole: The loaded model.
        blocks: How many are kept, as the user wrote it.
        name: The cut model's own, as the user wrote it.

    Raises:
        InputError: If the model has no list of blocks, or not more of them than that.
    """
    if not whole.family.blocks:
        raise InputError(f"backbone {name!r}: {whole.name} has no list of blocks that could be cut")
    count = int(blocks) if blocks.isascii() and blocks.isdigit() else 0
    if not 1 <= count < whole.depth:
        allowed = f"@1 to @{whole.depth - 1}" if whole.depth > 1 else "none, it has a single one"
        raise InputError(
            f"backbone {name!r}: {whole.name} has {whole.depth} blocks; allowed to keep: {allowed}"
        )
    shared = [*whole.model.parameters(), *whole.model.buffers()]
    model = copy.deepcopy(whole.model, {id(one): one for one in shared})
    body = getattr(model, whole.family.prefix) if whole.can_generate else model
    del cast(nn.ModuleList, body.get_submodule(whole.family.blocks))[count:]
    for config in {id(c): c for c in (model.config, body.config)}.values():
        cut_config(config, count)
    cut = type(whole)(
        model,
        whole.tokenizer,
        name=f"{whole.name}@{count}",
        source=whole.source,
        device=whole.device,
        pooled=whole._pooled,  # noqa: SLF001 - the same class
    )
    cut.family = whole.family  # with its compiled parts
    cut.location, cut.stops = whole.location, whole.stops
    cut.lowest, cut.quant = count, whole.quant
    return cut


def cut_config(config: Config, count: int) -> None:
    """Say how many blocks there are, also where each one is described."""
    if getattr(config, "layer_types", None):
        config.layer_types = list(config.layer_types)[:count]
    config.num_hidden_layers = count
