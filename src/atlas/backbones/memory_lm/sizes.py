"""Model sizes by name, the same size without a memory, and whole models on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from atlas.backbones.memory_lm.card import put_card
from atlas.backbones.memory_lm.config import AtlasConfig
from atlas.backbones.memory_lm.heads import AtlasForCausalLM
from atlas.backbones.memory_lm.model import AtlasBlock
from atlas.backbones.read_model import quiet_library


def small(vocab_size: int = 4096) -> AtlasConfig:
    """About 10 million parameters: 8 blocks of width 256; 9.8 with a vocabulary of 4096."""
    return AtlasConfig(
        vocab_size=vocab_size,
        hidden_size=256,
        num_hidden_layers=8,
        num_attention_heads=4,
        intermediate_size=704,
        attention_window=64,
        persistent_tokens=4,
    )


def omega_300m() -> AtlasConfig:
    """The 300 M Omega class, 389.5 million parameters: 20 blocks of width 1024.

    Each token's step weighs the errors of the last four tokens.
    """
    return AtlasConfig(
        vocab_size=32000,
        hidden_size=1024,
        num_hidden_layers=20,
        num_attention_heads=16,
        intermediate_size=3008,
        attention_window=512,
        persistent_tokens=10,
        rule={"window": 4},
    )


SIZES = {"small": small, "omega-300m": omega_300m}


def without_memory(config: AtlasConfig) -> AtlasConfig:
    """The same model with window attention alone, its feed-forward part wider by what is gone."""
    settings = {**config.to_dict(), "placement": "none"}
    bare = AtlasConfig(**settings)
    gone = _block_size(config) - _block_size(bare)
    wider = config.intermediate_size + round(gone / (3 * config.hidden_size))
    return AtlasConfig(**{**settings, "intermediate_size": wider})


def _block_size(config: AtlasConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in AtlasBlock(config).parameters())


def save_model(
    model: AtlasForCausalLM, place: Path, facts: Mapping[str, object] | None = None
) -> None:
    """Write a folder that `from_pretrained` reads, without the library's progress bars.

    Args:
        model: Any.
        place: The folder.
        facts: Results for its model card; mappings may be nested.
    """
    with quiet_library():
        model.save_pretrained(place)
    if facts:
        put_card(place, model.card(facts))
