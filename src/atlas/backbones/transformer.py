"""A frozen transformers model behind the `Backbone` protocol."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import cast

import torch
from torch import Tensor, nn

from atlas.backbones.blocks import (
    Context,
    Model,
    Tokenizer,
    attention_kinds,
    attention_mask,
    is_linear,
    tell_widths,
)
from atlas.backbones.device_cost import weigh
from atlas.backbones.families import Family, need_family
from atlas.backbones.generation import generate_greedily, take_stop_tokens
from atlas.backbones.packed_blocks import (
    calling,
    can_fold,
    folded_read,
    paged_block,
    project,
    projection_widths,
    read_block,
    recalling,
)
from atlas.backbones.tokenizer import (
    Specials,
    causal_inputs,
    classification_inputs,
    encode,
    prompt_row,
    tokenizer_identity,
)
from atlas.errors import InputError
from atlas.federation.adapters.lora_hooks import LoraChange, Projected
from atlas.federation.batching.backbone import Footprint, Inputs
from atlas.federation.batching.packing import Packing
from atlas.federation.clients import Example, Task
from atlas.ops.vocabulary import token_losses


class TransformerBackbone:
    """A frozen model in eval mode, cut into embed, blocks and head.

    Attributes:
        name: Short name: `minilm`, `tiny`, a hub id, or a folder's own name.
        source: What model cards call the base model; never a local path.
        location: Where loaders find it: a hub id, or a folder of this machine.
        lowest: How many blocks it keeps of a deeper model; None if it is that model.
        quant: How the weights of its blocks are kept, `nf4`; None if they are plain.
        family: How the model is cut.
        model: The whole model: the body alone for encoders, with `lm_head` for causal models.
        body: The model without any head; names of linear modules are relative to it.
        tokenizer: Its tokenizer.
        tokenizer_id: By which equal tokenizers are known.
        specials: Padding, start and end tokens.
        max_positions: The longest input the model can take.
        stops: Tokens that end a text it makes; empty for encoders.
        reads_segments: Whether it is told which of two texts a token is of.
        cut_into_blocks: Whether blocks can be run one by one.
    """

    cut_into_blocks = True

    def __init__(  # noqa: PLR0913
        self,
        model: Model,
        tokenizer: Tokenizer,
        *,
        name: str,
        source: str,
        device: torch.device,
        pooled: bool = True,
        family: Family | None = None,
    ) -> None:
        """Freezes a loaded model.

        Args:
            model: Encoder body, or causal language model.
            tokenizer: Its fast tokenizer.
            name: Short name.
            source: Public name of the base model.
            device: Where to hold it.
            pooled: Whether the checkpoint brought the weights of the pooler, if there is one.
            family: How it is cut; None to look it up.
        """
        self.name = name
        self.source = source
        self.location = source
        self.lowest: int | None = None
        self.quant: str | None = None
        self.family = family = family or need_family(model.config.model_type)
        self.reads_segments = family.segments
        self.can_generate = self.family.mask == "causal"
        self.model = model
        self.body = getattr(model, self.family.prefix) if self.can_generate else model
        self.config = self.body.config
        self._pooled = self._settle_pooler(pooled=pooled)
        self.model.eval().requires_grad_(False).to(device)
        tell_widths(model)
        self.device = device
        self.dtype: torch.dtype = model.dtype
        self._kinds = attention_kinds(self.family.mask, self.config)
        self._embeddings = self.body.get_submodule(self.family.embeddings)
        self._places = self.body.get_submodule(family.places) if family.places else None
        blocks = self.body.get_submodule(family.blocks)
        # A body without a list of blocks is one itself.
        self._blocks = cast(nn.ModuleList, blocks) if family.blocks else nn.ModuleList([blocks])
        self.depth = len(self._blocks)
        self.width: int = self.config.hidden_size
        self.head_layers = self.family.head_layers(self.width, pooled=self._pooled)
        self.tokenizer = tokenizer
        self.tokenizer_id = tokenizer_identity(tokenizer)
        self.specials = Specials.of(tokenizer, self.config)
        self.max_positions = family.max_positions(self.config)
        self.stops = take_stop_tokens(model, self.specials) if self.can_generate else ()
        self._twins: list[TransformerBackbone] = []

    def _settle_pooler(self, *, pooled: bool) -> bool:
        """Whether features are what the body's pooler makes; one that is not read is dropped."""
        read = bool(self.family.pooler) and pooled
        if hasattr(self.body, "pooler") and not read:
            # Random, or not part of the classification model: it must not pass for the checkpoint.
            self.body.pooler = None
        return read

    def tokenize(
        self, task: Task, examples: Sequence[Example], max_length: int, *, ends: bool = True
    ) -> Inputs:
        """Tokenise examples; causal answers are never truncated away, prompts are."""
        if not 1 <= max_length <= self.max_positions:
            raise InputError(
                f"max_length {max_length}: backbone {self.name} takes 1 to {self.max_positions}"
            )
        self._check_task(task)
        build = classification_inputs
        if task.kind == "causal":
            build = partial(causal_inputs, ends=ends)
        inputs = build(self.tokenizer, examples, max_length, self.specials)
        targets = None if inputs.targets is None else inputs.targets.to(self.device)
        ids, mask, types = (t.to(self.device) for t in (inputs.ids, inputs.mask, inputs.types))
        return Inputs(ids, mask, types, targets)

    def _check_task(self, task: Task) -> None:
        if task.kind == "causal":
            self._require_causal(f"the causal task {task.name!r}")

    def _inside_block(self, index: int) -> str:
        """How names of a block's modules begin."""
        return f"{self.family.blocks}.{index}."

    def embed(self, inputs: Inputs) -> Tensor:
        """The input of block 0 [N, T, D]."""
        if self.reads_segments:
            hidden: Tensor = self._embeddings(inputs.ids, token_type_ids=inputs.types)
        else:
            hidden = self._embeddings(inputs.ids)
        if self._places is not None:
            hidden = hidden + self._places(torch.arange(hidden.shape[1], device=hidden.device))
        return hidden

    def context(self, hidden: Tensor, mask: Tensor) -> object:
        """What every block needs beside its input: attention masks and positions."""
        masks = {
            kind: attention_mask(self.family.mask, self.config, kind, hidden, mask)
            for kind in sorted(set(self._kinds))
        }
        return Context(masks, self.family.position(self.body, hidden))

    def block(self, index: int, hidden: Tensor, context: object) -> Tensor:
        """Block `index` applied to [N, T, D]."""
        given = cast(Context, context)
        mask = given.masks[self._kinds[index]]
        return self.family.run(self._blocks[index], hidden, mask, given.position)

    def linears(self, index: int) -> dict[str, nn.Linear]:
        """The linear modules of a block by full name inside the body."""
        return {
            self._inside_block(index) + name: module
            for name, module in self._blocks[index].named_modules()
            if is_linear(module)
        }

    def select(self, block: int, modules: Sequence[str]) -> tuple[str, ...]:
        """Full names of the linear modules of a block that are meant, in the model's order.

        Args:
            block: Index of the block.
            modules: Short names such as `query`, or endings of the modules' own names.
        """
        start = self._inside_block(block)
        own = [name.removeprefix(start) for name in self.linears(block)]
        chosen: set[str] = set()
        for module in modules:
            # A short name means one module, though its path may also be another one's ending.
            exact = self.family.modules.get(module)
            found = {n for n in own if n == exact or not exact and f".{n}".endswith(f".{module}")}
            if not found:
                allowed = ", ".join([*self.family.modules, *own])
                raise InputError(f"module {module!r} is not in {self.name}; allowed: {allowed}")
            chosen |= found
        return tuple(start + name for name in own if name in chosen)

    def features(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """What the classification head reads [N, D], from the last block's output."""
        rows = torch.arange(len(hidden), device=hidden.device)
        return self._read(hidden[rows, self._read_places(mask)][:, None])

    def projections(self, index: int) -> tuple[int, ...]:
        """Widths of what `project` gives; none if a block cannot be taken apart."""
        return projection_widths(self.family, self._blocks[index])

    def project(self, index: int, hidden: Tensor) -> tuple[Tensor, ...]:
        """A block's queries, keys and values [..., .], from its input [..., D]."""
        return project(self.family, self._blocks[index], hidden)

    def packed_block(
        self,
        index: int,
        hidden: Tensor,
        packing: Packing,
        context: object,
        projected: Projected | None = None,
    ) -> Tensor:
        """Block `index` applied to packed tokens [n, S, D]."""
        given, block, family = cast(Context, context), self._blocks[index], self.family
        if family.parts is None:
            return packing.gather(self.block(index, packing.spread(hidden), context))
        if projected is None:
            projecting = calling(family, block, hidden)
        else:
            own = replace(projected, changes=self._inside(index, projected.changes))
            projecting = recalling(family, block, hidden, own)
        mask = self._paged(given, self._kinds[index], packing)
        return paged_block(family, block, hidden, mask, given.position, packing, projecting)

    def _inside(self, index: int, changes: Mapping[str, LoraChange]) -> dict[str, LoraChange]:
        """The changes of a block's modules by their paths inside it."""
        start = self._inside_block(index)
        return {k.removeprefix(start): c for k, c in changes.items() if k.startswith(start)}

    def _paged(self, given: Context, kind: str, packing: Packing) -> Tensor:
        """What places of pages see; found once for all blocks of a kind."""
        if kind not in given.paged:
            both_ways = self.family.mask == "bidirectional"
            pages = packing.pages
            given.paged[kind] = pages.apart() if both_ways else pages.seen(given.masks[kind])
        return given.paged[kind]

    def packed_features(
        self,
        hidden: Tensor,
        packing: Packing,
        context: object,
        changes: Mapping[str, LoraChange] | None,
    ) -> Tensor:
        """What the classification head reads [N, D], from the last block's packed input."""
        given, last = cast(Context, context), self.depth - 1
        read = read_block
        inside = None if changes is None else self._inside(last, changes)
        if inside is not None and can_fold(self.family, inside.values()):
            read = partial(folded_read, inside)
        at = self._read_places(packing.mask)[:, None]
        mask = given.masks[self._kinds[last]]
        block = self._blocks[last]
        return self._read(read(self.family, block, hidden, mask, given.position, packing, at))

    def packed_places(
        self, hidden: Tensor, packing: Packing, context: object, at: Tensor
    ) -> Tensor:
        """The last block's output at places `at` [N, Q] of each text, from its packed input."""
        given, last = cast(Context, context), self.depth - 1
        mask, block = given.masks[self._kinds[last]], self._blocks[last]
        return read_block(self.family, block, hidden, mask, given.position, packing, at)

    def _read_places(self, mask: Tensor) -> Tensor:
        """Where the head reads: an encoder's first token, a causal model's last [N]."""
        if not self.can_generate:
            return torch.zeros(len(mask), dtype=torch.long, device=mask.device)
        return (mask.long().sum(dim=1) - 1).clamp_min(0)

    def _read(self, here: Tensor) -> Tensor:
        """From the last block's output at the place that is read [N, 1, D] to features [N, D]."""
        if self.can_generate:
            return self._normed(here)[:, 0]
        first: Tensor = self.body.pooler(here) if self._pooled else here[:, 0]
        return first

    def _normed(self, hidden: Tensor) -> Tensor:
        """What is above the last block of a causal model reads."""
        final: Tensor = self.body.get_submodule(self.family.norm)(hidden)
        return final

    def vocabulary_logits(self, hidden: Tensor) -> Tensor:
        """Language-model logits [..., V] from rows of the last block's output [..., D]."""
        self._require_causal("language-model logits")
        logits: Tensor = self.model.lm_head(self._normed(hidden))
        return logits

    def vocabulary_losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The loss of each expected token [M], from rows of the last block's output [M, D]."""
        self._require_causal("losses of tokens")
        return token_losses(self._normed(hidden), self.model.lm_head.weight, targets)

    def generate(
        self, prompts: Sequence[str], max_new_tokens: int, max_length: int | None = None
    ) -> list[str]:
        """Greedy continuations of prompts, all in one batch [len(prompts), T, D]."""
        self._require_causal("generation")
        if max_new_tokens >= self.max_positions:
            raise InputError(f"max_new_tokens {max_new_tokens}: must be below {self.max_positions}")
        if not prompts or max_new_tokens < 1:
            return [""] * len(prompts)
        room = min(self.max_positions - max_new_tokens, max_length or self.max_positions)
        rows = [prompt_row(ids, room, self.specials) for ids in encode(self.tokenizer, prompts)]
        new = generate_greedily(self.model, rows, max_new_tokens, self.specials.pad, self.stops)
        texts: list[str] = self.tokenizer.batch_decode(new, skip_special_tokens=True)
        return texts

    def twins(self, count: int) -> list[TransformerBackbone]:
        """This one and others with the same weights in modules of their own, `count` in all."""
        while len(self._twins) < count - 1:
            shared = [*self.model.parameters(), *self.model.buffers(), self.tokenizer]
            known: dict[int, object] = {id(one): one for one in shared}
            known[id(self._twins)] = []
            self._twins.append(copy.deepcopy(self, known))
        return [self, *self._twins[: count - 1]]

    def _require_causal(self, what: str) -> None:
        if not self.can_generate:
            raise InputError(
                f"backbone {self.name} ({self.family.name}) is an encoder: {what} needs a causal "
                "model, such as tiny-causal or a folder with a llama, mistral or qwen model"
            )

    def fingerprint(self) -> str:
        """sha256 over all parameters and buffers, to show that they never change."""
        digest = hashlib.sha256()
        tensors = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        for name in sorted(tensors):
            value = tensors[name].detach().cpu().contiguous()
            digest.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
            digest.update(value.reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    @cached_property
    def size(self) -> Footprint:
        """What the model's weights take on a device."""
        family = self.family
        tables = [self._embeddings, *([self._places] if self._places is not None else [])]
        return weigh(self.model, family, tables, self._blocks)

    @cached_property
    def weights_id(self) -> str:
        """The fingerprint as first taken, for exports: hashing anew for each would be slow."""
        return self.fingerprint()
