"""Adapters as plain PEFT folders with a model card, and merged models on request."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from atlas.backbones.blocks import Config, is_transposed
from atlas.backbones.card_parts import card_facts
from atlas.backbones.model_card import write_card
from atlas.backbones.peft_folder import (
    CONFIG,
    MARKER,
    ROOT,
    WEIGHTS,
    ExportedAdapter,
    Layers,
    check_base,
    check_head,
    check_layers,
    describe_base,
    load_adapter,
    whole_folder,
)
from atlas.backbones.quantised import plain_state
from atlas.backbones.transformer import TransformerBackbone
from atlas.errors import InputError
from atlas.federation.clients import Task
from atlas.federation.training.evaluate import Limits

__all__ = ["ExportedAdapter", "check_base", "export_adapter", "load_adapter", "merge_adapter"]


def export_adapter(  # noqa: PLR0913
    folder: Path,
    *,
    backbone: TransformerBackbone,
    task: Task,
    limits: Limits,
    layers: Layers,
    alpha: float,
    head: Mapping[str, Tensor],
    card: Mapping[str, object],
    biases: Mapping[str, Tensor] | None = None,
) -> None:
    """Writes an adapter as a folder that plain PEFT loads.

    Args:
        folder: Where to write; an earlier export there is replaced as a whole.
        backbone: The base model.
        task: What the adapter was trained for.
        limits: How much text it was trained to read and to make.
        layers: Name of a linear module inside the body to A [r, d_in] and B [d_out, r]; modules
            of rank zero are left out, PEFT has no such thing.
        alpha: The update of a module is alpha / r times B A.
        head: Tensors of the classification head by full name, such as `classifier.weight`.
        card: Facts for the model card.
        biases: By module what it adds beside B A, times alpha / r: PEFT's `lora_bias`. None for
            none; where some modules have one, the others get zeros.

    Raises:
        InputError: If tensors do not fit the base model, or `folder` holds something else.
    """
    kept = {name: pair for name, pair in layers.items() if pair[0].shape[0]}
    check_layers(backbone, kept)
    check_head(backbone, task, head)
    about = {"format": 1, "task": asdict(task), "id2label": dict(enumerate(task.labels))}
    about |= {"head": sorted(head), "backbone": describe_base(backbone)}
    about |= {"limits": asdict(limits), "card": card_facts(card)}
    with whole_folder(folder) as fresh:
        parts = ExportedAdapter(kept, alpha, dict(head), {}, dict(biases or {}))
        write_peft_files(fresh, backbone=backbone, task=task, adapter=parts)
        _write_json(fresh / MARKER, about)
        (fresh / "README.md").write_text(write_card(backbone, task, limits, card), encoding="utf-8")


def write_peft_files(
    folder: Path, *, backbone: TransformerBackbone, task: Task, adapter: ExportedAdapter
) -> None:
    """Writes the two files that PEFT reads: weights and settings."""
    start = f"{backbone.family.prefix}."
    tensors = {ROOT + name: tensor for name, tensor in adapter.head.items()}
    for name, (a, b) in adapter.layers.items():
        tensors[f"{ROOT}{start}{name}.lora_A.weight"] = a
        tensors[f"{ROOT}{start}{name}.lora_B.weight"] = b
        if adapter.biases:
            zeros = b.new_zeros(b.shape[0])
            tensors[f"{ROOT}{start}{name}.lora_B.bias"] = adapter.biases.get(name, zeros)
    ranks = {start + name: a.shape[0] for name, (a, _) in adapter.layers.items()}
    save_file(_plain(tensors), folder / WEIGHTS, metadata={"format": "pt"})
    settings = _peft_config(backbone, task, ranks, adapter.alpha)
    _write_json(folder / CONFIG, settings | {"lora_bias": bool(adapter.biases)})


def complete_export(
    folder: Path, *, backbone: TransformerBackbone, adapter: ExportedAdapter
) -> None:
    """Make a copied adapter folder one that needs nothing but its base model: add the tokenizer.

    Run folders do without: every client's would be the same.

    Args:
        folder: A copy of what `export_adapter` wrote.
        backbone: The base model.
        adapter: What `load_adapter` read from it.
    """
    limits = Limits(**adapter.meta["limits"]) if "limits" in adapter.meta else None
    tokenizer = copy.deepcopy(backbone.tokenizer)
    if limits is not None:
        tokenizer.model_max_length = limits.max_length
        card = write_card(backbone, adapter.task, limits, adapter.meta["card"], tokenizer="here")
        (folder / "README.md").write_text(card, encoding="utf-8")
    tokenizer.save_pretrained(folder)


def merge_adapter(folder: Path, *, backbone: TransformerBackbone, adapter: ExportedAdapter) -> None:
    """Writes the base model with the adapter added in, as a full transformers folder.

    Args:
        folder: Where to write; an earlier export there is replaced as a whole.
        backbone: The base model.
        adapter: What `load_adapter` returned.

    Raises:
        InputError: If the adapter was trained on another base model.
    """
    check_base(adapter, backbone)
    start = f"{backbone.family.prefix}."
    config, state = task_config(backbone, adapter.task), base_state(backbone, adapter.task)
    for name, (a, b) in adapter.layers.items():
        key = f"{start}{name}.weight"
        across = is_transposed(backbone.body.get_submodule(name))
        # Added in double: the sum is rounded once, to the base model's own precision.
        update = b.double() @ a.double() * (adapter.alpha / a.shape[0])
        state[key] = (state[key].cpu().double() + (update.T if across else update).cpu()).to(
            backbone.dtype
        )
    if adapter.biases:
        state |= _merged_biases(backbone, adapter, config, state)
    state |= {name: tensor.to(backbone.dtype) for name, tensor in adapter.head.items()}
    with whole_folder(folder) as fresh:
        save_file(_plain(state), fresh / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(fresh)
        backbone.tokenizer.save_pretrained(fresh)
        _write_json(fresh / MARKER, adapter.meta)


def base_state(backbone: TransformerBackbone, task: Task) -> dict[str, Tensor]:
    """The frozen weights by the names that the library's model for such a task has for them."""
    if task.kind == "causal":
        state = plain_state(backbone.model)
        if backbone.config.tie_word_embeddings:
            del state["lm_head.weight"]  # one tensor under two names cannot be saved
        return state
    start = f"{backbone.family.prefix}."
    return {start + name: tensor for name, tensor in plain_state(backbone.body).items()}


def _merged_biases(
    backbone: TransformerBackbone,
    adapter: ExportedAdapter,
    config: Config,
    state: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Biases of the merged model; those of attention are switched on where the base has none.

    Raises:
        InputError: If the base model's class has no biases where the adapter adds some.
    """
    start, found = f"{backbone.family.prefix}.", {}
    bare = [name for name in adapter.biases if f"{start}{name}.bias" not in state]
    if bare:
        block = backbone.family.modules
        attention = {block[name] for name in ("query", "key", "value", "output") if name in block}
        inside = all(any(name.endswith(path) for path in attention) for name in bare)
        if not inside or not hasattr(config, "attention_bias"):
            raise InputError(
                f"--merged: {bare[0]} has no bias in {backbone.name}, and the adapter adds one; "
                "export without --merged, or choose adapter.kind=lora"
            )
        config.attention_bias = True
        for i in range(backbone.depth):
            for name, module in backbone.linears(i).items():
                if any(name.endswith(path) for path in attention):
                    width = int(module.out_features)
                    found[f"{start}{name}.bias"] = torch.zeros(width, dtype=backbone.dtype)
    for name, bias in adapter.biases.items():
        key, rank = f"{start}{name}.bias", adapter.layers[name][0].shape[0]
        before = found[key] if key in found else state[key]
        whole = before.cpu().double() + bias.double() * (adapter.alpha / rank)
        found[key] = whole.to(backbone.dtype)
    return found


def _peft_config(
    backbone: TransformerBackbone, task: Task, ranks: Mapping[str, int], alpha: float
) -> dict[str, Any]:
    """The settings as PEFT itself would save them.

    `rank_pattern` holds the ranks that differ from `r`; PEFT divides alpha by a module's own rank.
    """
    from peft import LoraConfig  # takes seconds to import, and only exports need it

    largest = max(ranks.values())
    start = f"{backbone.family.prefix}."
    classifies = task.kind == "classification"
    across = [is_transposed(backbone.body.get_submodule(n.removeprefix(start))) for n in ranks]
    # PEFT saves whole modules: the pooler for `bert.pooler.dense`, MPNet's head for its layers.
    heads = [layer.name.removeprefix(start).split(".")[0] for layer in backbone.head_layers]
    config = LoraConfig(
        r=largest,
        lora_alpha=int(alpha) if float(alpha).is_integer() else alpha,
        target_modules=list(ranks),
        rank_pattern={name: rank for name, rank in ranks.items() if rank != largest},
        modules_to_save=list(dict.fromkeys(heads)) if classifies else None,
        task_type="SEQ_CLS" if classifies else "CAUSAL_LM",
        base_model_name_or_path=backbone.location,
        fan_in_fan_out=any(across),
        inference_mode=True,
    )
    # A set's order differs between processes; equal adapters are to be equal files.
    return {k: sorted(v) if isinstance(v, set) else v for k, v in config.to_dict().items()}


def task_config(backbone: TransformerBackbone, task: Task) -> Config:
    """The base model's config as that of the task's model."""
    from transformers.models.auto import modeling_auto  # brings the library's models along

    config = copy.deepcopy(backbone.config)
    models = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    if task.kind == "classification":
        models = modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
        config.id2label = dict(enumerate(task.labels))
        config.label2id = {label: index for index, label in enumerate(task.labels)}
        if backbone.can_generate:  # it finds a text's last token by it; RoBERTa counts from its own
            config.pad_token_id = backbone.specials.pad
    config.architectures = [models[type(config)].__name__]
    config.dtype = backbone.dtype
    return config


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that safetensors takes: no views, no gradients, on the CPU."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
