"""A client's model as PEFT itself knows it: a plain transformers model with its adapter on top."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from atlas.backbones.export import base_state, task_config
from atlas.backbones.read_model import quiet_library
from atlas.backbones.transformer import TransformerBackbone
from atlas.errors import InputError
from atlas.federation.clients import Task


def plain_peft_model(folder: Path, *, backbone: TransformerBackbone, task: Task) -> Any:  # noqa: ANN401
    """A PeftModel that shares nothing with the backbone: merging into it harms nobody.

    Args:
        folder: An exported adapter.
        backbone: The model it was trained on; its weights are copied.
        task: What it was trained for.

    Returns:
        The model in eval mode, on the backbone's device.

    Raises:
        InputError: The library's class for such a task has other weights than the backbone.
    """
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    causal = task.kind == "causal"
    auto = AutoModelForCausalLM if causal else AutoModelForSequenceClassification
    # The library draws new weights, all of which are replaced: nobody's generator is to move.
    with torch.random.fork_rng(devices=[]), quiet_library():
        model = auto.from_config(task_config(backbone, task), dtype=backbone.dtype)
        state = {
            name: tensor.detach().clone() for name, tensor in base_state(backbone, task).items()
        }
        unread = model.load_state_dict(state, strict=False)
        heads = {layer.name.split(".")[0] for layer in backbone.head_layers}
        heads |= {layer.name.rpartition(".")[0] for layer in backbone.head_layers}
        tied = "lm_head" if backbone.config.tie_word_embeddings else ""
        missing = [name for name in unread.missing_keys if not _under(name, {*heads, tied})]
        if missing or unread.unexpected_keys:
            some = ", ".join([*missing, *unread.unexpected_keys][:3])
            raise InputError(f"backbone {backbone.name}: no plain model can be made of it: {some}")
        model.tie_weights()
        return PeftModel.from_pretrained(model.to(backbone.device), str(folder)).eval()


def _under(name: str, parts: set[str]) -> bool:
    """Whether a tensor belongs to one of some modules."""
    return any(part and (name == part or name.startswith(f"{part}.")) for part in parts)
