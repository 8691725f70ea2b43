"""The page of a folder with many adapters: what is in it, and the exact commands that serve it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atlas.backbones.card_parts import card_table
from atlas.backbones.model_card import base_arguments
from atlas.backbones.transformer import TransformerBackbone
from atlas.federation.clients import TaskKind

_LOAD = """import json
from pathlib import Path

import torch
from peft import PeftModel
from transformers import {auto}, AutoTokenizer{more}

here = Path("this-folder")
listed = json.loads((here / "clients.json").read_text(encoding="utf-8"))
clients = {{about["client"]: about for about in listed if about["group"] == {group!r}}}
first, *others = clients
config = json.loads((here / first / "adapter_config.json").read_text(encoding="utf-8"))
place = config["base_model_name_or_path"]
base = {auto}.from_pretrained({arguments})
model = PeftModel.from_pretrained(base, here / first, adapter_name=first)
for client in others:
    model.load_adapter(here / client, adapter_name=client)
model.eval()
tokenizer = AutoTokenizer.from_pretrained(place)
"""
_CLASSIFY = """

def ask(client, *texts):
    about = clients[client]
    model.set_adapter(client)
    inputs = tokenizer(
        *texts, truncation="longest_first", max_length=about["max_length"],
        return_token_type_ids={segments}, return_tensors="pt",
    )
    with torch.no_grad():  # rows beyond the client's own labels are only there to fill up
        logits = model(**inputs).logits[0, : len(about["labels"])]
    return about["labels"][int(logits.argmax())], logits
"""
_ANSWER = """

def ask(client, *texts):
    about = clients[client]
    model.set_adapter(client)
    fields = dict(zip(about["text"], texts))
    prompt = about["prompt"].format(**fields) if about["prompt"] else "\\n".join(texts) + "\\n"
    ids = tokenizer(prompt, add_special_tokens=False).input_ids
    start, room = {start}, min({positions} - about["max_new_tokens"], about["max_length"])
    ids = (start + ids[max(0, len(start) + len(ids) - room) :])[:room]
    told = torch.tensor([ids])
    made = model.generate(
        input_ids=told, attention_mask=torch.ones_like(told), do_sample=False,
        max_new_tokens=about["max_new_tokens"], pad_token_id={pad}, eos_token_id={stops},
    )
    return tokenizer.decode(made[0, len(ids) :], skip_special_tokens=True).strip()
"""
_BASE = (
    "BASE=$(python -c \"import json; print(json.load(open('{first}/adapter_config.json'))"
    "['base_model_name_or_path'])\")"
)
VLLM_BATCH = 8
"""Adapters that vLLM is told to have room for in one batch."""


@dataclass(frozen=True)
class ServedGroup:
    """Clients that one model in memory serves.

    Attributes:
        name: As in clients.json.
        backbone: Their base model.
        kind: Of their tasks.
        clients: Their ids.
        labels: The most labels that one of them has.
        served: Those that vLLM and LoRAX serve, too.
        largest_rank: What vLLM is told as the largest rank.
        refused: Why the others are served by PEFT alone, by id.
    """

    name: str
    backbone: TransformerBackbone
    kind: TaskKind
    clients: Sequence[str]
    labels: int
    served: Sequence[str]
    largest_rank: int
    refused: Mapping[str, str]


def folder_card(groups: Sequence[ServedGroup], left_out: Mapping[str, str]) -> str:
    """The text of README.md."""
    count = sum(len(group.clients) for group in groups)
    lines = [
        f"# LoRA adapters of {count} client{'' if count == 1 else 's'}",
        "",
        "Each folder is a plain PEFT adapter with one rank in all its modules, so that servers "
        "which know one rank per adapter compute the same as PEFT. Base models are not part of "
        "this folder. `clients.json` has each client's task, labels, prompt and limits.",
    ]
    for group in groups:
        lines += ["", f"## {group.name}", "", *_group_lines(group)]
    if left_out:
        lines += ["", "## Left out", "", *card_table(dict(left_out))]
    return "\n".join([*lines, ""])


def _group_lines(group: ServedGroup) -> list[str]:
    lines = [f"Base model `{group.backbone.source}`; clients {', '.join(group.clients)}.", ""]
    lines += ["PEFT, all of them in one process:", "", "```python", _peft_code(group), "```", ""]
    if group.served:
        lines += ["vLLM, then ask for a client by `model`:", "", "```bash", _vllm(group), "```", ""]
        lines += ["LoRAX, then ask with `adapter_id`, a path as the server sees it (in a container "
                  "that of the folder mounted there):", "", "```bash", _lorax(group), "```", "",
                  "The commands for vLLM and LoRAX follow their documentation; they were not run "
                  "by who wrote this folder.", ""]  # fmt: skip
    if group.refused:
        reasons: dict[str, list[str]] = {}
        for client, reason in group.refused.items():
            reasons.setdefault(reason, []).append(client)
        lines += ["Not for vLLM and LoRAX:", ""]
        lines += [f"- {', '.join(some)}: {reason}" for reason, some in reasons.items()]
    return lines


def _peft_code(group: ServedGroup) -> str:
    backbone, arguments = group.backbone, base_arguments(group.backbone)
    auto = "AutoModelForCausalLM"
    if group.kind == "classification":
        auto = "AutoModelForSequenceClassification"
        arguments.append(f"num_labels={group.labels}")
        if backbone.can_generate:
            arguments.append(f"pad_token_id={backbone.specials.pad}")
    more = "" if backbone.quant is None else ", BitsAndBytesConfig"
    load = _LOAD.format(auto=auto, arguments=", ".join(arguments), group=group.name, more=more)
    if group.kind == "classification":
        return (load + _CLASSIFY.format(segments=backbone.reads_segments)).rstrip()
    asking = _ANSWER.format(
        start=backbone.specials.start([0]),
        positions=backbone.max_positions,
        pad=backbone.specials.pad,
        stops=list(backbone.stops) or None,
    )
    return (load + asking).rstrip()


def _vllm(group: ServedGroup) -> str:
    modules = " ".join(f"{client}=./{client}" for client in group.served)
    override = ""
    if group.backbone.lowest is not None:
        facts = json.dumps({"num_hidden_layers": group.backbone.lowest})
        override = f" --hf-overrides '{facts}'"
    count = len(group.served)
    # Room for those of one batch is taken on the GPU, for all others in main memory.
    rooms = f"--max-loras {min(count, VLLM_BATCH)} --max-cpu-loras {count}"
    return "\n".join(
        [
            _BASE.format(first=group.served[0]),
            f'vllm serve "$BASE" --enable-lora {rooms} '
            f"--max-lora-rank {group.largest_rank}{override} \\",
            f"    --lora-modules {modules}",
        ]
    )


def _lorax(group: ServedGroup) -> str:
    first = group.served[0]
    asked = json.dumps(
        {"inputs": "...", "parameters": {"adapter_id": first, "adapter_source": "local"}}
    ).replace(f'"{first}"', f"\"'$PWD'/{first}\"")
    return "\n".join(
        [
            _BASE.format(first=first),
            'lorax-launcher --model-id "$BASE" --port 8080',
            "curl 127.0.0.1:8080/generate -H 'Content-Type: application/json' \\",
            f"    -d '{asked}'",
        ]
    )
