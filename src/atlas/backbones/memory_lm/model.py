"""The body of an Atlas language model: embeddings, blocks, and a norm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import setitem
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from atlas.backbones.memory_lm.cache import AtlasCache, read_padding
from atlas.backbones.memory_lm.card import memory_card, put_card
from atlas.backbones.memory_lm.config import AtlasConfig
from atlas.errors import InputError
from atlas.memory.layer.branch import CausalConvolution, MemoryBranch
from atlas.memory.layer.continuum import ContinuumLevel
from atlas.memory.layer.gates import Floors, Gate, GateMode, ReadMode
from atlas.memory.layer.layer import MemoryLayer
from atlas.memory.layer.observe import LayerView, observe
from atlas.memory.layer.settings import Stage
from atlas.memory.layer.state import BlockState

OWN_START = (CausalConvolution, ContinuumLevel, Gate, MemoryBranch, MemoryLayer)
"""Modules that say themselves where their weights start."""


@dataclass
class AtlasModelOutput(BaseModelOutputWithPast):  # type: ignore[misc]
    """What the body gives: `past_key_values` is an `AtlasCache`, `attentions` are never kept.

    Attributes:
        memory: If asked for, what the memories did (see `observe`).
    """

    memory: dict[str, float] | None = None


class AtlasBlock(GradientCheckpointingLayer):  # type: ignore[misc]
    """x + layer(norm(x)), then the same with the feed-forward part."""

    def __init__(self, config: AtlasConfig) -> None:
        """A block with random weights."""
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mixer = MemoryLayer(config.layer_settings())
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = config.feed_forward_part()
        self.floors = config.floors()

    def start(self, batch: int, mode: ReadMode | None = None) -> BlockState:
        """The state before the first token."""
        return BlockState(self.mixer.start(batch, self._mode(mode)), self.mlp.start(batch))

    def forward(
        self,
        hidden: Tensor,
        state: BlockState | None = None,
        real: Tensor | None = None,
        mode: ReadMode | None = None,
    ) -> tuple[Tensor, BlockState]:
        """Read T tokens.

        Args:
            hidden: [B, T, D].
            state: Before the first of them; None at the start of a text.
            real: False at padding, [B, T]; None if it need not be known.
            mode: How to read; None is as the config says.

        Returns:
            [B, T, D] and the state after the last token.
        """
        how = self._mode(mode)
        before = self.start(len(hidden), how) if state is None else state
        mixed, layer = self.mixer(self.input_layernorm(hidden), before.layer, real, how)
        hidden = hidden + mixed
        added, levels = self.mlp(self.post_attention_layernorm(hidden), before.levels)
        return hidden + added, BlockState(layer, levels)

    def _mode(self, mode: ReadMode | None) -> ReadMode:
        return ReadMode(self.floors) if mode is None else mode


class AtlasPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """What all Atlas models have in common."""

    config: AtlasConfig
    config_class = AtlasConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["AtlasBlock"]
    _skip_keys_device_placement = ["past_key_values"]
    _can_record_outputs = {"hidden_states": AtlasBlock}
    # What is read cannot be unread: the library then refuses assisted decoding.
    _is_stateful = True

    @classmethod
    def from_pretrained(cls, *args: Any, **settings: Any) -> Any:  # noqa: ANN401 - the library's
        """A saved model, its weights in memory of their own.

        The library maps them from the file, where they begin at any byte. On some processors matrix
        products then round otherwise than those of the model that was saved.

        Raises:
            InputError: A GGUF file is to be read; that format has no place for a memory.
        """
        if settings.get("gguf_file") is not None:
            raise InputError(
                f"gguf_file: {settings['gguf_file']}; allowed: none, as GGUF has no place for a "
                "memory that learns; a folder of safetensors is read"
            )
        loaded = super().from_pretrained(*args, **settings)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        for weights in (*model.parameters(), *model.buffers()):
            weights.data = weights.data.clone()
        return loaded

    def save_pretrained(self, save_directory: str | Path, *args: Any, **settings: Any) -> None:  # noqa: ANN401
        """As in the library, with a model card beside the weights."""
        super().save_pretrained(save_directory, *args, **settings)
        if settings.get("is_main_process", True) and Path(save_directory).is_dir():
            put_card(Path(save_directory), self.card({}))

    def card(self, facts: Mapping[str, object]) -> str:
        """The text of its model card, with results to list."""
        return memory_card(self.config, type(self).__name__, self.num_parameters(), facts)

    def set_chunks(self, stage: Stage) -> None:
        """Go on with the chunks of a stage (see `atlas.memory.layer.settings`); no weight changes.

        The config changes with it, so that what is saved is the model of that stage.

        Raises:
            InputError: Its memories cannot have such chunks.
        """
        self.config.set_chunks(stage)
        for module in self.modules():
            if isinstance(module, MemoryLayer):
                module.set_chunks(stage)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, OWN_START):
            module.reset_parameters()
        else:
            super()._init_weights(module)


class AtlasModel(AtlasPreTrainedModel):
    """The body without a head."""

    def __init__(self, config: AtlasConfig) -> None:
        """A body with random weights."""
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(AtlasBlock(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    def start_states(self, batch: int) -> list[BlockState]:
        """The state of every block before the first token."""
        return [cast(AtlasBlock, block).start(batch) for block in self.layers]

    @can_return_tuple  # type: ignore[untyped-decorator]
    @capture_outputs  # type: ignore[untyped-decorator]
    def forward(  # noqa: PLR0913 - the library's signature
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: AtlasCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        floors: Floors | None = None,
        output_memory: bool = False,
        gate_mode: GateMode = GateMode.STORAGE,
        watch: Callable[[str, LayerView], None] | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> AtlasModelOutput:
        """Read T tokens.

        Args:
            input_ids: [B, T].
            attention_mask: Zero at padding, [B, T] or with the tokens read before in front.
            past_key_values: The state before the first token; changed in place.
            inputs_embeds: [B, T, D] instead of ids.
            use_cache: Whether to give the state after the last token.
            floors: Of the gates, instead of the config's.
            output_memory: Whether to measure what the memories did.
            gate_mode: Whether they write, or only answer.
            watch: Is given what each layer did, by its name, gradients included.
            **kwargs: What the library passes on to other models.

        Raises:
            ValueError: If padding stands where it would change other tokens.
        """
        del kwargs
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        cache = AtlasCache() if past_key_values is None else past_key_values
        if not isinstance(cache, AtlasCache):
            raise InputError(
                f"past_key_values: a {type(cache).__name__}; allowed: an AtlasCache, as a cache of "
                "keys and values has no place for a memory"
            )
        padding = read_padding(attention_mask, hidden.shape[1])
        padding.check(self.config.padding_before, cache)
        floors = self.config.floors() if floors is None else floors
        states: list[BlockState] = []
        views: dict[str, LayerView] = {}
        for i, block in enumerate(self.layers):
            before = cache.states[i] if cache.states else None
            seen = partial(setitem, views, f"layers.{i}") if output_memory or watch else None
            mode = ReadMode(floors, seen, gate_mode)
            hidden, after = block(hidden, before, padding.real, mode)
            states.append(after)
        cache.states, cache.ended = states, padding.after
        if watch is not None:
            for name, view in views.items():
                watch(name, view)
        wanted = self.config.use_cache if use_cache is None else use_cache
        return AtlasModelOutput(
            last_hidden_state=self.norm(hidden),
            past_key_values=cache if wanted or past_key_values is not None else None,
            memory=observe(views) if output_memory else None,
        )
