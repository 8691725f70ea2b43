"""What a backbone takes on a device: bytes of weights, and numbers that training keeps.

What a block of an ordinary transformer keeps is counted from its parts. A block with a memory is
run once instead, and what its backward pass holds is added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from atlas.backbones.blocks import Config, as_it_is, is_linear, starting_block
from atlas.backbones.families import Family
from atlas.backbones.packed_blocks import can_fold
from atlas.errors import InputError
from atlas.federation.batching.backbone import Footprint

CHUNK = 64
"""Tokens per chunk of a rule that names none."""


def weigh(
    model: nn.Module,
    family: Family,
    embeddings: Sequence[nn.Module],
    blocks: nn.ModuleList,
    config: Config,
) -> Footprint:
    """The footprint of a loaded model; weights that two parts share count where they come first.

    Args:
        model: The whole model.
        family: How it is cut.
        embeddings: Its parts below the first block.
        blocks: Its blocks.
        config: Of its body.

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
    # Blocks of one model are alike; the last one speaks for all.
    widths = _widths(family, blocks[-1])
    if family.parts is None:
        kept = read = 0
        # Such a block sees padded texts, and all of them even where one place is read.
        spread = read_spread = _measured(family, blocks[-1], config)
    else:
        kept, read = _kept_by_tokens(family, config.hidden_size, widths), config.hidden_size
        spread, read_spread = _kept_by_attention(family, widths)
    return Footprint(
        embeddings=below,
        blocks=each,
        top=_new_bytes(model.parameters(), seen),
        itemsize=next(model.parameters()).element_size(),
        width=config.hidden_size,
        kept=kept,
        spread=spread,
        read=read,
        read_spread=read_spread,
        passing=config.hidden_size + widths["up"],
        scores=config.num_attention_heads * family.scores,
        inputs=_adapter_inputs(family, blocks, config.hidden_size, widths["up"]),
        vocabulary=config.vocab_size if family.mask == "causal" else 0,
    )


def _measured(family: Family, block: nn.Module, config: Config) -> int:
    """Numbers per place that a block keeps, found by running it on one text.

    The text is as long as the largest of its chunks and windows: what is kept of pairs of tokens
    grows up to there, so that shorter texts take less, and longer ones the same per place.
    """
    like = next(block.parameters())
    rules = [config.rule or {}, *(config.local_rules or [])]
    length = max(config.attention_window, *(int(rule.get("chunk", CHUNK)) for rule in rules))
    hidden = torch.zeros(1, length, config.hidden_size, dtype=like.dtype, device=like.device)
    frozen = {weights.untyped_storage().data_ptr() for weights in block.parameters()}
    held: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in frozen:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    trained = [weights for weights in block.parameters() if weights.requires_grad]
    for weights in trained:
        weights.requires_grad_(False)
    try:
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept):
            out = family.run(block, hidden.requires_grad_(), hidden, None)
    finally:
        for weights in trained:
            weights.requires_grad_()
    del out  # until here, so that no storage was freed and its place taken by another
    each: int = length * like.element_size()
    return -(-sum(held.values()) // each)


def _kept_by_tokens(family: Family, width: int, widths: Mapping[str, int]) -> int:
    """Numbers per token that a block keeps beside attention.

    Its input, what its two norms were given (those of a gated model keep it twice, before and after
    they scale it), and the inputs of the feed-forward part's activation (three where a gate
    multiplies, five where it is GPT-2's, written out as products and a tanh). The first norm of
    a block that begins with one was given the block's input.
    """
    if "gate" in widths:
        return 4 * width + 3 * widths["up"]
    if _begins_with_norm(family):
        return 2 * width + 5 * widths["up"]
    return 3 * width + widths["up"]


def _kept_by_attention(family: Family, widths: Mapping[str, int]) -> tuple[int, int]:
    """Numbers per place that attention keeps: in a whole block, and where one place is read.

    Queries, keys, values and what it gave; heads that share keys and values get copies of them.
    Where one place is read, tokens stand in for keys and values if positions do not turn keys.
    """
    query, key, value = widths["query"], widths["key"], widths["value"]
    if "gate" in widths:
        key = value = query
    attended = 0 if family.scores else query
    read = query if can_fold(family) else key + value
    return query + key + value + attended, read


def _widths(family: Family, block: nn.Module) -> dict[str, int]:
    found = {}
    for short, path in family.modules.items():
        module = block.get_submodule(path)
        assert is_linear(module)
        found[short] = int(cast(Any, module).out_features)
    if len(family.projections) == 1:
        found |= {short: found[short] // 3 for short in ("query", "key", "value")}
    return found


def _begins_with_norm(family: Family) -> bool:
    return family.parts is not None and family.parts.enter is not as_it_is


def _adapter_inputs(
    family: Family, blocks: nn.ModuleList, width: int, mlp: int
) -> dict[str, tuple[str, int]]:
    """What an adapter keeps beyond its block's own needs, by full module name."""
    inputs = {"up": ("mlp", width), "gate": ("mlp", width), "down": ("down", mlp)}
    if _begins_with_norm(family):
        inputs |= dict.fromkeys(("query", "key", "value"), ("attention", width))
    if family.scores:
        inputs["output"] = ("output", width)
    return {
        f"{family.blocks}.{index}.{family.modules[short]}": entry
        for index in range(len(blocks))
        for short, entry in inputs.items()
        if short in family.modules
    }


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
