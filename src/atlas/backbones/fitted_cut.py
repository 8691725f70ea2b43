"""A causal model cut to its lowest blocks, with a head that reads what they write.

The head of a model reads what its last block writes. Behind an earlier block it reads nonsense:
SmolLM2 cut to 12 of its 30 blocks is worse than guessing. So the head is given a linear map in
front: from what the cut model shows its head to what the whole model would show it, by ridge
regression over some texts. Both together are one matrix, and the result is an ordinary model, saved
in a folder of its own.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from atlas.backbones.blocks import Model
from atlas.backbones.peft_folder import cache_folder, whole_folder
from atlas.backbones.transformer import TransformerBackbone
from atlas.errors import InputError
from atlas.ops.alignment import ridge_map

ENDING = "-fitted"
"""What stands behind `NAME@N` where the head is to be fitted."""
RIDGE = 0.03
LENGTH = 128
"""Tokens of a text that are read."""


def fitted_folder(
    whole: TransformerBackbone, cut: TransformerBackbone, texts: Sequence[str]
) -> Path:
    """The folder of the cut model with its own head; made on first use.

    Args:
        whole: The model.
        cut: Its lowest blocks.
        texts: What the head is fitted on; any will do that are not all alike.

    Raises:
        InputError: If the model writes no text, or its blocks are kept in four bits.
    """
    if not whole.can_generate or whole.quant is not None:
        what = "is an encoder" if not whole.can_generate else f"is kept in {whole.quant}"
        raise InputError(f"backbone {cut.name}{ENDING}: {whole.name} {what} and has no head to fit")
    key = hashlib.sha256(f"{whole.weights_id}|{RIDGE}|{LENGTH}|{texts}".encode()).hexdigest()
    folder = cache_folder() / "fitted" / key[:16] / f"{cut.name.replace('/', '--')}{ENDING}"
    if not (folder / "model.safetensors").is_file():
        weight = fit_head(whole, cut, texts)
        _save(cut, weight, folder)
    return folder


@torch.no_grad()
def fit_head(whole: TransformerBackbone, cut: TransformerBackbone, texts: Sequence[str]) -> Tensor:
    """The head's weight behind the cut: the whole model's own, with the map in front of it."""
    pairs = [[shown_to_head(one, text) for one in (cut, whole)] for text in texts]
    shown, wanted = (torch.cat(side) for side in zip(*pairs, strict=True))
    weight: Tensor = _head(whole.model).weight
    turned = weight.double() @ ridge_map(shown, wanted, RIDGE).mT
    return turned.to(weight.dtype)


@torch.no_grad()
def shown_to_head(backbone: TransformerBackbone, text: str) -> Tensor:
    """What a model's head is given for a text, float64 [tokens, width].

    The first token is left out: models keep an outlier there that says nothing of the text.
    """
    ids = backbone.tokenizer(text, return_tensors="pt").input_ids[:, :LENGTH]
    seen: list[Tensor] = []

    def keep(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        del module
        seen.append(given[0][0, 1:].double())

    hook = _head(backbone.model).register_forward_pre_hook(keep)
    try:
        backbone.model(input_ids=ids.to(backbone.device), use_cache=False)
    finally:
        hook.remove()
    return seen[0]


def _head(model: Model) -> nn.Linear:
    head: nn.Linear = model.get_output_embeddings()
    return head


def _save(cut: TransformerBackbone, weight: Tensor, folder: Path) -> None:
    """Write a plain model whose head is no longer its embeddings."""
    model, head = cut.model, _head(cut.model)
    name = next(name for name, module in model.named_modules() if module is head)
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    state[f"{name}.weight"] = weight.contiguous()
    config = copy.deepcopy(model.config)
    config.tie_word_embeddings = False
    with whole_folder(folder) as fresh:
        save_file(state, fresh / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(fresh)
        cut.tokenizer.save_pretrained(fresh)
