"""Model settings from a user, refused in the words of those who know why."""

from __future__ import annotations

from typing import Any

from huggingface_hub.errors import StrictDataclassError

from atlas.backbones.memory_lm.config import AtlasConfig
from atlas.errors import InputError


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
