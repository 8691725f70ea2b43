"""What the weights of a backbone take on a device, part by part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from atlas.backbones.blocks import is_linear, starting_block
from atlas.backbones.families import Family
from atlas.errors import InputError
from atlas.federation.batching.backbone import Footprint


def weigh(
    model: nn.Module, family: Family, embeddings: Sequence[nn.Module], blocks: nn.ModuleList
) -> Footprint:
    """The footprint of a loaded model; weights that two parts share count where they come first.

    Args:
        model: The whole model.
        family: How it is cut.
        embeddings: Its parts below the first block.
        blocks: Its blocks.

    Raises:
        InputError: If its blocks can be neither taken apart nor run by themselves.
    """
    if family.parts is None and family.run is not starting_block:
        raise InputError(
            f"ranks.method, split.point: what a step of a model of the {family.name} family keeps "
            "is not known, so neither can be planned; allowed: ranks.method=fixed and no split"
        )
    seen: set[int] = set()
    below = sum(_new_bytes(part.parameters(), seen) for part in embeddings)
    each = tuple(_new_bytes(_kept_weights(block), seen) for block in blocks)
    return Footprint(embeddings=below, blocks=each, top=_new_bytes(model.parameters(), seen))


def _kept_weights(block: nn.Module) -> Iterable[Tensor]:
    """Parameters, and what quantised modules have in their place."""
    yield from block.parameters()
    for module in block.modules():
        if is_linear(module):
            yield from module.buffers(recurse=False)


def _new_bytes(parameters: Iterable[Tensor], seen: set[int]) -> int:
    total = 0
    for parameter in parameters:
        if id(parameter) not in seen:
            seen.add(id(parameter))
            total += parameter.numel() * parameter.element_size()
    return total
