"""The model card of a memory model: what it is, how its memory learns, how to load it, its limits.

Every `save_pretrained` writes it, also those that the library makes itself, as its `Trainer` does:
transformers' own error does not say that these classes must be registered first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from atlas.backbones.card_parts import card_facts, card_table
from atlas.backbones.memory_lm.config import AtlasConfig
from atlas.config.rule import Rule

FRONT = """---
library_name: transformers
tags: [atlas, memory]
---
"""
"""By which a card of ours is known; another one is left as it is."""
LOADING = """transformers knows these classes only after Atlas is imported; without the first line
it says that it does not recognise this architecture and advises an upgrade, which does not help.

```python
import atlas.backbones.memory_lm  # registers the classes

from transformers import {auto}

model = {auto}.from_pretrained("this folder")
```
"""
LIMITS = """## Limits

What was read is kept in an `AtlasCache` (`past_key_values`), whose size does not grow with the
text. It cannot unread tokens, so assisted decoding and prompt lookup are refused. There is no GGUF
of this model: that format has no place for a memory that learns.
{padding}
"""
PADDING = {
    True: "Prompts of unequal length are padded on the left; each is read as if it were alone.",
    False: "Its chunks are counted from the first token, so padding before a text is refused: read "
    "prompts of unequal length one by one.",
}


def memory_card(
    config: AtlasConfig, kind: str, parameters: int, facts: Mapping[str, object]
) -> str:
    """The text of README.md.

    Args:
        config: Of the model.
        kind: The name of its class, such as AtlasForCausalLM.
        parameters: How many numbers it has.
        facts: Results to list; mappings may be nested.
    """
    rows = {
        "parameters": f"{parameters:,}",
        "blocks": f"{config.num_hidden_layers} of width {config.hidden_size}, "
        f"{config.num_attention_heads} heads, feed-forward {config.feed_forward}",
        "attention": f"the last {config.attention_window} tokens, "
        f"{config.persistent_tokens} persistent ones in sight of all",
        "memory that learns while it reads": _memory(config),
        "vocabulary": f"{config.vocab_size:,} tokens",
    }
    results = card_facts(facts)
    parts = [
        FRONT,
        "# An Atlas language model\n",
        "\n".join(card_table(rows)) + "\n",
        *(["## Results\n", "\n".join(card_table(results)) + "\n"] if results else []),
        "## How to load it\n",
        LOADING.format(auto="AutoModel" + kind.removeprefix("AtlasModel").removeprefix("Atlas")),
        LIMITS.format(padding=PADDING[config.padding_before]),
    ]
    return "\n".join(parts)


def put_card(place: Path, text: str) -> None:
    """Write a card, unless there is one that somebody else wrote."""
    path = place / "README.md"
    if not path.is_file() or path.read_text(encoding="utf-8").startswith(FRONT):
        path.write_text(text, encoding="utf-8")


def _memory(config: AtlasConfig) -> str:
    """Where the memory stands and which rule it follows, by what differs from the default."""
    layer = config.layer_settings()
    if layer.placement == "none":
        return "none, attention alone"
    local = f"; {len(layer.local_rules)} local ones" if layer.local_rules else ""
    return f"`{layer.placement}`, rule: {_rule(layer.rule)}{local}"


def _rule(rule: Rule) -> str:
    own = {field.name: getattr(rule, field.name) for field in fields(rule)}
    changed = {f.name: own[f.name] for f in fields(rule) if own[f.name] != f.default}
    return ", ".join(f"{name} {value}" for name, value in changed.items()) or "the default"
