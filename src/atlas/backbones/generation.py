"""Greedy text from a causal model."""

from __future__ import annotations

from collections.abc import Sequence

from atlas.backbones.blocks import Model
from atlas.backbones.tokenizer import Specials, pad_rows, row_mask


def take_stop_tokens(model: Model, specials: Specials) -> tuple[int, ...]:
    """A checkpoint's stop tokens; its sampling settings and penalties are dropped for good."""
    from transformers import GenerationConfig  # brings the library's models along

    stops = model.generation_config.eos_token_id
    listed = stops if isinstance(stops, list) else [stops]
    model.generation_config = GenerationConfig()
    return tuple(sorted({s for s in [*listed, specials.eos] if s is not None}))


def generate_greedily(
    model: Model, rows: Sequence[list[int]], length: int, pad: int, stops: Sequence[int]
) -> list[list[int]]:
    """The most likely continuation of each row, without its stop token.

    All rows go through the model as one left-padded batch, so that hooks see one row per prompt.

    Args:
        model: A causal language model.
        rows: Token ids of the prompts.
        length: Tokens to make, at most.
        pad: Token id for padding.
        stops: Token ids that end a text.
    """
    from transformers import GenerationConfig

    ids = pad_rows(rows, pad, left=True).to(model.device)
    settings = GenerationConfig(
        max_new_tokens=length,
        do_sample=False,
        pad_token_id=pad,
        eos_token_id=list(stops) or None,
    )
    mask = row_mask(rows, left=True).long().to(model.device)
    out = model.generate(ids, attention_mask=mask, generation_config=settings)
    return [_until_stop(row, stops) for row in out[:, ids.shape[1] :].tolist()]


def _until_stop(tokens: list[int], stops: Sequence[int]) -> list[int]:
    """Cuts the padding that follows a stop token; it may stand for a word elsewhere."""
    stop = next((i for i, token in enumerate(tokens) if token in stops), len(tokens))
    return tokens[:stop]
