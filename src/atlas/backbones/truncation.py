"""How many texts a backbone would cut."""

from __future__ import annotations

from collections.abc import Sequence

from atlas.backbones.tokenizer import causal_inputs, classification_inputs
from atlas.backbones.transformer import TransformerBackbone
from atlas.federation.clients import Example, Task

AT_ONCE = 1024
"""Texts that are looked at together, so that a large file needs little memory."""


def count_truncated(
    backbone: TransformerBackbone, task: Task, examples: Sequence[Example], max_length: int
) -> int:
    """Examples of more tokens than are kept, special tokens included.

    Args:
        backbone: Whose tokenizer reads them.
        task: Theirs.
        examples: Any number.
        max_length: Tokens that are kept of a text.
    """
    build = classification_inputs if task.kind == "classification" else causal_inputs
    found = 0
    for start in range(0, len(examples), AT_ONCE):
        # One more token than is kept: who fills it has been cut.
        some = examples[start : start + AT_ONCE]
        inputs = build(backbone.tokenizer, some, max_length + 1, backbone.specials)
        found += int((inputs.mask.sum(1) > max_length).sum())
    return found
