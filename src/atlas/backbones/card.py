"""The model card of an exported adapter.

PEFT's own card is an empty form that names the local folder of the base model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

from atlas.backbones.transformer import TransformerBackbone
from atlas.federation.clients import Task

_LOAD = """```python
from peft import PeftModel
from transformers import {auto}, AutoTokenizer

base = {auto}.from_pretrained({arguments})
model = PeftModel.from_pretrained(base, "this-folder")
tokenizer = AutoTokenizer.from_pretrained("{source}")
```"""


def write_card(backbone: TransformerBackbone, task: Task, card: Mapping[str, object]) -> str:
    """The text of README.md.

    Args:
        backbone: The base model.
        task: What the adapter was trained for.
        card: Facts to list, such as metric values; mappings may be nested.
    """
    front = ["library_name: peft", "tags:", "- lora", "- federated-learning"]
    if "/" in backbone.source:  # the hub refuses anything but its own ids here
        front.append(f"base_model: {backbone.source}")
    rows = {
        "base model": f"`{backbone.source}`",
        "tokenizer": f"`{backbone.tokenizer_id}`",
        "task": f"{task.name} ({task.kind})",
        "labels": ", ".join(task.labels) or "none, answers are text",
        "metric": task.metric,
    }
    facts = dict(_facts(card))
    return "\n".join(
        [
            "---",
            *front,
            "---",
            "",
            f"# LoRA adapter for {task.name}",
            "",
            "A low-rank adapter trained with Atlas. The base model is not part of this folder.",
            "",
            *_table(rows),
            *(["", "## Results", "", *_table(facts)] if facts else []),
            "",
            "## How to load it",
            "",
            _loading(backbone, task),
            "",
        ]
    )


def _loading(backbone: TransformerBackbone, task: Task) -> str:
    arguments = [f'"{backbone.source}"']
    auto = "AutoModelForCausalLM"
    if task.kind == "classification":
        auto = "AutoModelForSequenceClassification"
        arguments.append(f"num_labels={len(task.labels)}")
        arguments.append(f"id2label={dict(enumerate(task.labels))!r}")
        if backbone.can_generate:
            arguments.append(f"pad_token_id={backbone.specials.pad}")
    return _LOAD.format(auto=auto, source=backbone.source, arguments=", ".join(arguments))


def _facts(values: Mapping[str, object], before: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping):
            yield from _facts(value, f"{name}: ")
        else:
            yield name, _shown(value)


def _shown(value: object) -> str:
    """A value as text; of a path only its name, since the rest belongs to one machine."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(_shown(entry) for entry in value)
    text = str(value)
    for path in (PurePosixPath(text), PureWindowsPath(text)):
        if isinstance(value, Path) or path.is_absolute():
            return path.name
    return text


def _table(rows: Mapping[str, str]) -> list[str]:
    def cell(text: str) -> str:
        return " ".join(text.split()).replace("|", "\\|")

    lines = [f"| {cell(key)} | {cell(value)} |" for key, value in rows.items()]
    return ["| | |", "|---|---|", *lines]
