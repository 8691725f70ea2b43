"""Whole models on disk."""

from __future__ import annotations

from pathlib import Path

from atlas.backbones.load import quiet_library
from atlas.backbones.memory_lm.heads import AtlasForCausalLM


def save_model(model: AtlasForCausalLM, place: Path) -> None:
    """Write a folder that `from_pretrained` reads, without the library's progress bars."""
    with quiet_library():
        model.save_pretrained(place)
