"""A client as users of PEFT write it: a model with LoRA, AdamW, batches padded to their longest."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from transformers.utils import logging

from atlas.backbones.tokenizer import Specials, causal_inputs, classification_inputs
from atlas.bench.federation_work import FederationWork, read_work
from atlas.federation.adapters.adapter import Adapter, factor_names, head_name
from atlas.federation.batching.backbone import Inputs

ROOT = "base_model.model."


class Trainer:
    """One model that takes every client's place in turn.

    Attributes:
        work: What is to be done.
        start: Tensors that every client starts with, by Atlas's names.
    """

    def __init__(self, work: FederationWork, start: Mapping[str, Tensor]) -> None:
        self.work, self.start = work, dict(start)
        self._model = _load(work)
        trained = [(n, p) for n, p in self._model.named_parameters() if p.requires_grad]
        self._tensors = {_plain_name(name, work.prefix): value for name, value in trained}
        assert set(self._tensors) == set(start), "the adapters are not those of the work"
        tokenizer = AutoTokenizer.from_pretrained(work.folder)
        specials = Specials.of(tokenizer, self._model.config)
        build = causal_inputs if work.kind == "causal" else classification_inputs
        self._inputs = {
            client: build(tokenizer, share.examples, work.max_length, specials)
            for client, share in work.clients.items()
        }

    def fit(self, client: str, number: int, start: Mapping[str, Tensor]) -> float:
        """Train one client's round from `start`; returns its mean loss."""
        for name, value in start.items():
            self._tensors[name].data.copy_(value)
        optimiser, parameters = self.work.optimiser, list(self._tensors.values())
        adamw = torch.optim.AdamW(parameters, lr=optimiser.lr, weight_decay=optimiser.weight_decay)
        losses: list[float] = []
        for batch in self.work.clients[client].batches[number - 1]:
            loss = self._model(**self._batch(client, batch)).loss
            adamw.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, optimiser.clip)
            adamw.step()
            losses.append(loss.item())
        return sum(losses) / len(losses)

    def trained(self) -> Adapter:
        """Copies of the trained tensors."""
        return Adapter({name: v.detach().clone() for name, v in self._tensors.items()})

    def _batch(self, client: str, chosen: list[int]) -> dict[str, Tensor]:
        """Arguments of the model, cut to the longest text that was chosen."""
        inputs: Inputs = self._inputs[client]
        mask = inputs.mask[chosen]
        longest = int(mask.sum(1).max())
        mask = mask[:, :longest].long()
        found = {"input_ids": inputs.ids[chosen, :longest], "attention_mask": mask}
        if inputs.targets is not None:
            targets = inputs.targets[chosen, :longest]
            return {**found, "labels": targets, "shift_labels": targets}
        examples = self.work.clients[client].examples
        labels = torch.tensor([examples[i].label for i in chosen])
        return {**found, "token_type_ids": inputs.types[chosen, :longest], "labels": labels}


@cache
def trainer_of(folder: Path) -> Trainer:
    """The trainer of a folder of work; one per process."""
    return Trainer(*read_work(folder))


def _load(work: FederationWork) -> Any:  # noqa: ANN401 - PEFT is not typed
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    given: dict[str, Any] = {"dtype": torch.float32, "local_files_only": True}
    if work.kind == "causal":
        model = AutoModelForCausalLM.from_pretrained(work.folder, **given)
    else:
        model = AutoModelForSequenceClassification.from_pretrained(
            work.folder, num_labels=work.labels, **given
        )
    lora = LoraConfig(
        r=work.rank,
        lora_alpha=work.alpha,
        target_modules=[f"{work.prefix}.{module}" for module in work.modules],
        task_type="CAUSAL_LM" if work.kind == "causal" else "SEQ_CLS",
    )
    # Dropout is off for everybody: with it no two contenders could be compared.
    return get_peft_model(model, lora).eval()


def _plain_name(name: str, prefix: str) -> str:
    """Atlas's name of a parameter of PEFT's."""
    bare = name.removeprefix(ROOT)
    for factor, theirs in enumerate((".lora_A.default.weight", ".lora_B.default.weight")):
        if bare.endswith(theirs):
            return factor_names(bare.removesuffix(theirs).removeprefix(f"{prefix}."))[factor]
    return head_name(bare.replace(".modules_to_save.default", ""))
