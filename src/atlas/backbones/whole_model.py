"""Any other model of transformers, run as a whole: slower than the table's families, and right.

Nothing is known of its blocks but their linear modules. So tokens travel as ids up to the last
block, which stands for the whole model; nothing below the adapters is kept, no text shares a page
with others and no model is split. Rows of a stack go through one by one: a model may call a linear
module on something that all texts share (DeBERTa on its table of distances), and what adapters
make of that differs from row to row.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from atlas.backbones.blocks import Config, Model, Tokenizer
from atlas.backbones.families import Family
from atlas.backbones.found_parts import (
    READOUTS,
    FoundHead,
    called_linears,
    find_blocks,
    find_head,
    probe_text,
    short_names,
)
from atlas.backbones.transformer import TransformerBackbone
from atlas.errors import InputError
from atlas.federation.adapters.lora_hooks import LoraChange, Projected, only_row
from atlas.federation.batching.backbone import Inputs
from atlas.federation.batching.packing import Packing
from atlas.federation.clients import Task


def is_causal(config: Config) -> bool:
    """Whether models of that config are language models that only look back.

    Raises:
        InputError: If they are neither that nor encoders of text.
    """
    from transformers.models.auto import modeling_auto

    kind = type(config)
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(
            f"model_type {config.model_type!r} is an encoder with a decoder; supported: encoders "
            "and causal language models"
        )
    # Encoders can be loaded as causal models too: BERT, ELECTRA.
    if kind in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING:
        return False
    if kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING:
        return True
    if kind in modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        return False
    raise InputError(
        f"model_type {config.model_type!r} is not a model of text; supported: encoders and causal "
        "language models"
    )


def find_parts(model: Model) -> Family:
    """How a model that no row of the table describes is cut, as far as it can be."""
    causal = is_causal(model.config)
    prefix: str = model.base_model_prefix
    body = getattr(model, prefix) if causal else model
    blocks = find_blocks(body, body.config)
    inside = body.get_submodule(f"{blocks}.0") if blocks else body
    return Family(
        name=model.config.model_type,
        model_types=(model.config.model_type,),
        prefix=prefix,
        embeddings="",
        blocks=blocks,
        mask="causal" if causal else "bidirectional",
        modules=short_names([name for name, _ in inside.named_modules()]),
        head=(),
        reserved=_reserved(body),
        parts=None,
    )


def _reserved(body: nn.Module) -> int:
    """Positions that no token takes: a table with a row for padding is read from the next on."""
    for name, module in body.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


class WholeModelBackbone(TransformerBackbone):
    """A frozen model that is run as a whole."""

    cut_into_blocks = False

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        *,
        name: str,
        source: str,
        device: torch.device,
        pooled: bool = True,
    ) -> None:
        """As of a native family, which is found here by looking at the model."""
        super().__init__(
            model,
            tokenizer,
            name=name,
            source=source,
            device=device,
            pooled=pooled,
            family=find_parts(model),
        )
        ids = probe_text(self.config, device)
        self._called = frozenset(called_linears(self.body, ids))
        self.reads_segments = self._takes_segments()
        self._head: FoundHead | None = find_head(self.body, self.config, self.family, pooled=pooled)
        self.head_layers = self._head.layers if self._head else ()
        if self.can_generate:
            self._check_vocabulary(ids)

    def _takes_segments(self) -> bool:
        known = getattr(self.config, "type_vocab_size", 0) or 0
        named = "token_type_ids" in inspect.signature(self.body.forward).parameters
        return known > 1 and named and not self.can_generate

    def _settle_pooler(self, *, pooled: bool) -> bool:
        """It stays: whether the head reads it is found out."""
        return pooled

    def _check_vocabulary(self, ids: Tensor) -> None:
        """Refuse a model whose logits are made of more than its body's last output."""
        with torch.no_grad():
            mask = torch.ones_like(ids)
            wanted = self.model(input_ids=ids, attention_mask=mask).logits
            found = self.vocabulary_logits(self._final(ids, torch.zeros_like(ids), mask.bool()))
        close = 5e-2 if wanted.element_size() == 2 else 1e-4
        if not torch.allclose(found.double(), wanted.double(), atol=close, rtol=close):
            raise InputError(
                f"backbone {self.name} ({self.family.name}): logits depend on more than the last "
                "hidden states; such models are not supported"
            )

    def _check_task(self, task: Task) -> None:
        super()._check_task(task)
        if task.kind == "classification" and self._head is None:
            raise InputError(
                f"backbone {self.name} ({self.family.name}): the head of its classification model "
                f"is no chain of linear layers that the checkpoint has all inputs of, so task "
                f"{task.name!r} cannot be trained; allowed: causal tasks, or another model"
            )

    def _inside_block(self, index: int) -> str:
        return super()._inside_block(index) if self.family.blocks else ""

    def linears(self, index: int) -> dict[str, nn.Linear]:
        """The linear modules of a block that the model calls, by full name inside the body."""
        found = super().linears(index)
        return {name: module for name, module in found.items() if name in self._called}

    def embed(self, inputs: Inputs) -> Tensor:
        """Token and segment ids [N, T, 2]: nothing is computed before the last block."""
        return torch.stack([inputs.ids, inputs.types], -1)

    def context(self, hidden: Tensor, mask: Tensor) -> object:
        """The padding mask."""
        del hidden
        return mask

    def block(self, index: int, hidden: Tensor, context: object) -> Tensor:
        """The whole model's last hidden states for the last block; ids for those below."""
        if index < self.depth - 1:
            return hidden
        ids, types = hidden.unbind(-1)
        return self._final(ids, types, cast(Tensor, context))

    def projections(self, index: int) -> tuple[int, ...]:
        """None: a block cannot be taken apart."""
        del index
        return ()

    def features(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """What the classification head reads [N, D], from the last hidden states."""
        assert self._head is not None
        return READOUTS[self._head.readout](self.body, hidden, mask)

    def packed_block(
        self,
        index: int,
        hidden: Tensor,
        packing: Packing,
        context: object,
        projected: Projected | None = None,
    ) -> Tensor:
        """As `block`, on packed ids [n, S, 2]."""
        del context, projected
        return hidden if index < self.depth - 1 else packing.gather(self._by_rows(hidden, packing))

    def packed_features(
        self,
        hidden: Tensor,
        packing: Packing,
        context: object,
        changes: Mapping[str, LoraChange] | None,
    ) -> Tensor:
        """What the classification head reads [N, D], from packed ids."""
        del context, changes
        return self.features(self._by_rows(hidden, packing), packing.mask)

    def packed_places(
        self, hidden: Tensor, packing: Packing, context: object, at: Tensor
    ) -> Tensor:
        """The last hidden states at places `at` [N, Q] of each text, from packed ids."""
        del context
        rows = torch.arange(len(at), device=at.device)[:, None]
        return self._by_rows(hidden, packing)[rows, at]

    def _by_rows(self, hidden: Tensor, packing: Packing) -> Tensor:
        """Last hidden states [N, T, D] of packed ids [n, S, 2], each row under its own adapter."""
        count, longest = len(packing.real), packing.mask.shape[1]
        texts = zip(*(t.chunk(count) for t in (packing.spread(hidden), packing.mask)), strict=True)
        found = []
        for row, (tokens, mask) in enumerate(texts):
            own = int(mask.sum(1).max())  # a row's numbers do not depend on its neighbours' length
            ids, types = tokens[:, :own].unbind(-1)
            with only_row(row):
                final = self._final(ids, types, mask[:, :own])
            found.append(functional.pad(final, (0, 0, 0, longest - own)))
        return torch.cat(found)

    def _final(self, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        """The body's output for padded texts [N, T, D].

        Text by text where padding is longer than a window of attention: it would see nothing, and
        what eager attention makes of that is NaN, which spreads to tokens by products with zero.
        """
        window = getattr(self.config, "sliding_window", None)
        if window is not None and mask.shape[1] > window and not bool(mask.all()):
            return self._text_by_text(ids, types, mask)
        given = {"input_ids": torch.where(mask, ids, self.specials.pad)}
        given["attention_mask"] = mask.long()
        if self.reads_segments:
            given["token_type_ids"] = torch.where(mask, types, 0)
        final: Tensor = self.body(**given).last_hidden_state
        return final

    def _text_by_text(self, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        found, longest = [], mask.shape[1]
        for text, length in enumerate(mask.sum(1).tolist()):
            own = (slice(text, text + 1), slice(length))
            final = self._final(ids[own], types[own], mask[own])
            found.append(functional.pad(final, (0, 0, 0, longest - length)))
        return torch.cat(found)

    def vocabulary_logits(self, hidden: Tensor) -> Tensor:
        """Language-model logits [..., V] from last hidden states [..., D].

        They are made by the model's own code, caps and scales included: its body is taken out and
        what it would give is put there.
        """
        self._require_causal("language-model logits")
        rows = hidden.reshape(-1, 1, hidden.shape[-1])
        top: Model = copy.copy(self.model)
        top._modules = {**self.model._modules, self.family.prefix: _Given(rows)}  # noqa: SLF001
        ids = torch.zeros(rows.shape[:2], dtype=torch.long, device=rows.device)
        logits: Tensor = top(input_ids=ids).logits
        return logits.reshape(*hidden.shape[:-1], -1)

    def vocabulary_losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The loss of each expected token [M], from rows of last hidden states [M, D]."""
        logits = self.vocabulary_logits(hidden)
        return functional.cross_entropy(logits, targets, reduction="none")


class _Given(nn.Module):
    """Stands for a body whose output is known."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden

    def forward(self, *args: object, **kwargs: object) -> object:
        """The output, whatever the input."""
        del args, kwargs
        from transformers.modeling_outputs import MoeModelOutputWithPast

        return MoeModelOutputWithPast(last_hidden_state=cast(torch.FloatTensor, self.hidden))
