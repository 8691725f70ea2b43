"""Atlas models with a head: next tokens, or labels of whole texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_layers import GenericForSequenceClassification
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils.generic import can_return_tuple

from atlas.backbones.memory_lm.cache import AtlasCache
from atlas.backbones.memory_lm.config import AtlasConfig
from atlas.backbones.memory_lm.model import AtlasModel, AtlasPreTrainedModel
from atlas.memory.layer.state import BlockState


@dataclass
class AtlasCausalOutput(CausalLMOutputWithPast):  # type: ignore[misc]
    """What the language model gives: `past_key_values` is an `AtlasCache`.

    Attributes:
        memory: If asked for, what the memories did (see `observe`).
    """

    memory: dict[str, float] | None = None


class AtlasForCausalLM(AtlasPreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A language model that goes on learning while it reads."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: AtlasConfig) -> None:
        """A model with random weights."""
        super().__init__(config)
        self.model = AtlasModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def start_states(self, batch: int) -> list[BlockState]:
        """The state of every block before the first token."""
        return self.model.start_states(batch)

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,  # noqa: ANN401
    ) -> AtlasCausalOutput:
        """Read T tokens and say what comes next.

        Args:
            input_ids: [B, T].
            attention_mask: Zero at padding.
            labels: The tokens themselves, -100 where no loss is taken; shifted here. What is
                already shifted goes in as `shift_labels` beside it.
            logits_to_keep: Of how many last tokens logits are wanted; zero is all.
            **kwargs: Of `AtlasModel.forward` (the state, floors, measures), and of the loss.
        """
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        logits = self.lm_head(slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep))
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs
            )
        return AtlasCausalOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            memory=outputs.memory,
        )

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: AtlasCache | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> dict[str, Any]:
        """As in the library, which takes the ids it is given to begin where the text began.

        It looks at the names of these arguments to know what `generate` may be given.

        Raises:
            ValueError: If they do not, so that some would be left out unread.
        """
        if next_sequence_length is not None and next_sequence_length < 1:
            raise ValueError(
                f"input_ids: {input_ids.shape[1]} tokens, none after those already read; give the "
                "whole text, or new tokens with attention_mask=past_key_values.mask_for(input_ids)"
            )
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=next_sequence_length,
            past_key_values=past_key_values,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        return inputs

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """No: a cache of keys and values has no place for a memory. `AtlasModel` makes its own."""
        return False


class AtlasForSequenceClassification(
    GenericForSequenceClassification,  # type: ignore[misc]
    AtlasPreTrainedModel,
):
    """A label for each text, read from its last token."""
