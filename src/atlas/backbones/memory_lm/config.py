"""The settings of an Atlas language model, and the parts they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from atlas.backbones.families import ATLAS
from atlas.errors import InputError
from atlas.memory.layer.continuum import ContinuumFeedForward, SwiGLU
from atlas.memory.layer.gates import Floors
from atlas.memory.layer.settings import LayerSettings, MemoryGradient, PlacementName, Stage
from atlas.memory.rules.rule import Rule


@strict
class AtlasConfig(PreTrainedConfig):  # type: ignore[misc]
    """A causal language model whose blocks hold a memory that learns at test time.

    Attributes:
        vocab_size: Tokens of the vocabulary.
        hidden_size: Width of a token.
        num_hidden_layers: Blocks.
        num_attention_heads: Heads of attention and memory.
        intermediate_size: Width of the feed-forward part.
        attention_window: Tokens that attention sees, itself included.
        placement: Where the memory stands: `gate`, `context`, `layer`; `none` leaves it out.
        rule: The memory's rule, as keyword arguments of `atlas.memory.rules.rule.Rule`; with
            `queries: projected`, queries are projected onto the keys seen so far.
        local_rules: Rules of memories beside it that go back to a learned start every shard.
        local_shard: Tokens of a shard; to be given with `local_rules` only.
        share_bias: Whether the memory's share of an output has a bias.
        memory_gradient: `full`, or `detached`: written outside the graph, as a control.
        feature_degree: Of the polynomial features of keys and queries; 1 is none.
        convolution_width: Tokens that the convolution before the memory sees.
        persistent_tokens: Learned tokens of each layer that belong to no text.
        segment: Tokens for which the memory is asked at once (`context`).
        gate_floors: The lowest value of gates, by name: alpha, eta, theta, gamma, mix.
        feed_forward: `swiglu`, or `continuum`: levels that learn at different speeds.
        continuum_base: The fastest level is renewed every so many tokens.
        continuum_levels: How many levels there are.
        max_position_embeddings: The longest text for which room is made elsewhere; the model
            itself has no limit, its positions being relative.
        rope_base: Of the rotary positions within a window.
        rms_norm_eps: Of the norms.
        initializer_range: Spread of the weights at the start.
        tie_word_embeddings: Whether the output layer is the table of embeddings.
    """

    model_type = ATLAS
    keys_to_ignore_at_inference = ["past_key_values"]

    vocab_size: int = 32000
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    intermediate_size: int = 704
    attention_window: int = 64
    placement: PlacementName = "gate"
    rule: dict[str, Any] | None = None
    local_rules: list[dict[str, Any]] | None = None
    local_shard: int | None = None
    share_bias: bool = False
    memory_gradient: MemoryGradient = "full"
    feature_degree: int = 1
    convolution_width: int = 4
    persistent_tokens: int = 4
    segment: int = 64
    gate_floors: dict[str, float] | None = None
    feed_forward: Literal["swiglu", "continuum"] = "swiglu"
    continuum_base: int = 16
    continuum_levels: int = 2
    max_position_embeddings: int = 32768
    rope_base: float = 10000.0
    rms_norm_eps: float = 1e-6
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - the library's signature
        """Give every field that may be left out its value."""
        self.rule = self.rule or {}
        self.local_rules = self.local_rules or []
        self.gate_floors = self.gate_floors or {}
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
        """Refuse what no model can be made of; the library calls it."""
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of "
                f"num_attention_heads {self.num_attention_heads}"
            )
        try:
            self.floors()
            self.layer_settings()
        except (TypeError, InputError) as error:
            raise ValueError(str(error)) from error

    def floors(self) -> Floors:
        """The lowest value of each gate."""
        return Floors(**(self.gate_floors or {}))

    def layer_settings(self) -> LayerSettings:
        """What each memory layer is made of."""
        return LayerSettings(
            heads=self.num_attention_heads,
            head_width=self.hidden_size // self.num_attention_heads,
            window=self.attention_window,
            placement=self.placement,
            rule=_rule("rule", self.rule or {}),
            local_rules=tuple(
                _rule(f"local_rules[{i}]", own) for i, own in enumerate(self.local_rules or ())
            ),
            local_shard=self.local_shard,
            share_bias=self.share_bias,
            memory_gradient=self.memory_gradient,
            convolution=self.convolution_width,
            degree=self.feature_degree,
            persistent=self.persistent_tokens,
            segment=self.segment,
            rope_base=self.rope_base,
            eps=self.rms_norm_eps,
        )

    def set_chunks(self, stage: Stage) -> None:
        """The same model with the chunks of a stage; see `AtlasPreTrainedModel.set_chunks`.

        Raises:
            InputError: Its memories cannot have such chunks.
        """
        layer = self.layer_settings().at(stage)
        self.rule = {**(self.rule or {}), "chunk": layer.rule.chunk}
        pairs = zip(self.local_rules or (), layer.local_rules, strict=True)
        self.local_rules = [{**own, "chunk": rule.chunk} for own, rule in pairs]

    def feed_forward_part(self) -> SwiGLU | ContinuumFeedForward:
        """A feed-forward part with random weights."""
        makers: dict[str, Callable[[], SwiGLU | ContinuumFeedForward]] = {
            "swiglu": lambda: SwiGLU(self.hidden_size, self.intermediate_size),
            "continuum": lambda: ContinuumFeedForward(
                self.hidden_size,
                self.intermediate_size,
                self.continuum_base,
                self.continuum_levels,
            ),
        }
        return makers[self.feed_forward]()

    @property
    def padding_before(self) -> bool:
        """Whether texts of one batch may be padded on the left."""
        return self.feed_forward == "swiglu" and self.layer_settings().padding_before


def _rule(key: str, settings: Mapping[str, Any]) -> Rule:
    allowed = [field.name for field in fields(Rule)]
    for name in settings:
        if name not in allowed:
            raise InputError(f"{key}: {name}; allowed: {', '.join(allowed)}")
    try:
        return Rule(**settings)
    except InputError as error:
        raise InputError(f"{key}.{error}") from error


def checked_config(**settings: Any) -> AtlasConfig:  # noqa: ANN401 - those of `AtlasConfig`
    """An `AtlasConfig`.

    Raises:
        InputError: No model can be made of these settings.
    """
    try:
        return AtlasConfig(**settings)
    except StrictDataclassError as error:
        # The library wraps what the settings themselves said.
        raise InputError(f"model: {error.__cause__ or error}") from error
