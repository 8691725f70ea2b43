"""The model card of an exported adapter: what it is, what goes in, and code that asks it.

PEFT's own card is an empty form that names the local folder of the base model. This one names no
folder: where the base model lies is in adapter_config.json, where loaders look for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from atlas.backbones.card_parts import card_facts, card_table
from atlas.backbones.quantised import linears_outside
from atlas.backbones.transformer import TransformerBackbone
from atlas.federation.clients import Task
from atlas.federation.training.evaluate import Limits

TokenizerPlace = Literal["base", "here"]
"""Where the tokenizer's files are: with the base model, or in the adapter's own folder."""

_LOAD = """import torch
from peft import PeftConfig, PeftModel
from transformers import {auto}, AutoTokenizer{more}

here = "this-folder"
place = PeftConfig.from_pretrained(here).base_model_name_or_path
base = {auto}.from_pretrained({arguments})
model = PeftModel.from_pretrained(base, here).eval()
tokenizer = AutoTokenizer.from_pretrained({tokenizer})
"""
_CLASSIFY = """
texts = {texts}
inputs = tokenizer(
    *texts, truncation="longest_first", max_length={length},
    return_token_type_ids={segments}, return_tensors="pt",
)
with torch.no_grad():
    logits = model(**inputs).logits[0]
print(model.config.id2label[int(logits.argmax())], logits.softmax(-1).tolist())
"""
_ANSWER = """
texts = {texts}
prompt = {prompt}
ids = tokenizer(prompt, add_special_tokens=False).input_ids
start = {start}
ids = (start + ids[max(0, len(start) + len(ids) - {room}) :])[:{room}]
told = torch.tensor([ids])
made = model.generate(
    input_ids=told, attention_mask=torch.ones_like(told), do_sample=False,
    max_new_tokens={new}, pad_token_id={pad}, eos_token_id={stops},
)
answer = tokenizer.decode(made[0, len(ids) :], skip_special_tokens=True).strip()
print(answer)
"""


def write_card(
    backbone: TransformerBackbone,
    task: Task,
    limits: Limits,
    card: Mapping[str, object],
    tokenizer: TokenizerPlace = "base",
) -> str:
    """The text of README.md.

    Args:
        backbone: The base model.
        task: What the adapter was trained for.
        limits: How much text it was trained to read and to make.
        card: Facts to list, such as metric values; mappings may be nested.
        tokenizer: Where its files are.
    """
    front = ["library_name: peft", "tags:", "- lora", "- federated-learning"]
    if "/" in backbone.source:  # the hub refuses anything but its own ids here
        front.append(f"base_model: {backbone.source}")
    rows = {
        "base model": f"`{backbone.source}`{_which_blocks(backbone)}",
        "tokenizer": f"`{backbone.tokenizer_id}`",
        "task": f"{task.name} ({task.kind})",
        "labels": ", ".join(task.labels) or "none, answers are text",
        "metric": task.metric,
        "input": _input(task),
        "longest input": f"{limits.max_length} tokens; other lengths give other scores",
    }
    if backbone.quant is not None:
        rows["weights of its blocks"] = f"{backbone.quant}, by bitsandbytes; its heads are plain"
    facts = card_facts(card)
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
            *card_table(rows),
            *(["", "## Results", "", *card_table(facts)] if facts else []),
            "",
            "## How to ask it",
            "",
            "```python",
            asking(backbone, task, limits, tokenizer).rstrip(),
            "```",
            "",
        ]
    )


def _which_blocks(backbone: TransformerBackbone) -> str:
    """PEFT takes an adapter for the lowest blocks on the whole model, too, where it does harm."""
    if backbone.lowest is None:
        return ""
    return f", its lowest {backbone.lowest} blocks alone: the code below leaves the others out"


def _input(task: Task) -> str:
    fields = ", ".join(f"`{name}`" for name in task.text)
    if task.kind == "causal":
        return f"a prompt made of {fields}; what is too long is cut from its left"
    if len(task.text) == 2:
        return f"{fields} as a pair; what is too long is cut from the longer one"
    return f"{fields}; what is too long is cut from its end"


def asking(
    backbone: TransformerBackbone, task: Task, limits: Limits, tokenizer: TokenizerPlace
) -> str:
    """A program that loads the adapter with PEFT alone and asks it, as the run itself would."""
    arguments = base_arguments(backbone)
    auto = "AutoModelForCausalLM"
    if task.kind == "classification":
        auto = "AutoModelForSequenceClassification"
        arguments.append(f"num_labels={len(task.labels)}")
        arguments.append(f"id2label={dict(enumerate(task.labels))!r}")
        if backbone.can_generate:
            arguments.append(f"pad_token_id={backbone.specials.pad}")
    where = "here" if tokenizer == "here" else "place"
    more = "" if backbone.quant is None else ", BitsAndBytesConfig"
    load = _LOAD.format(auto=auto, arguments=", ".join(arguments), tokenizer=where, more=more)
    texts = [f"{field} goes here" for field in task.text]
    if task.kind == "classification":
        segments = backbone.reads_segments
        return load + _CLASSIFY.format(texts=texts, length=limits.max_length, segments=segments)
    values = ", ".join(f"{name}=texts[{i}]" for i, name in enumerate(task.text))
    prompt = f"{task.prompt!r}.format({values})" if task.prompt else '"\\n".join(texts) + "\\n"'
    return load + _ANSWER.format(
        texts=texts,
        prompt=prompt,
        start=backbone.specials.start([0]),
        room=min(backbone.max_positions - limits.max_new_tokens, limits.max_length),
        new=limits.max_new_tokens,
        pad=backbone.specials.pad,
        stops=list(backbone.stops) or None,
    )


def base_arguments(backbone: TransformerBackbone) -> list[str]:
    """Arguments under which the library loads the same base model from its `place`."""
    arguments = ["place", f"dtype={backbone.dtype}"]
    if backbone.lowest is not None:
        arguments.append(f"num_hidden_layers={backbone.lowest}")
        if getattr(backbone.config, "layer_types", None):
            arguments.append(f"layer_types={list(backbone.config.layer_types)!r}")
    if backbone.quant is not None:
        arguments.append(f"quantization_config={_quant_config(backbone)}")
    return arguments


def _quant_config(backbone: TransformerBackbone) -> str:
    """The library's own settings under which it makes the same weights of the base model."""
    return (
        f'BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="{backbone.quant}", '
        f"bnb_4bit_compute_dtype={backbone.dtype}, "
        f"llm_int8_skip_modules={linears_outside(backbone)!r})"
    )
