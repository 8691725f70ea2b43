"""One contender of `atlas bench serve`, as a program: answers requests and prints how fast.

Peers do without Atlas: they read the exported folder with PEFT alone.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Request = tuple[str, str]
Answer = Callable[[Sequence[Request]], list[str]]
WORDS = (
    "the",
    "music",
    "was",
    "thin",
    "but",
    "saved",
    "a",
    "slow",
    "bright",
    "plot",
    "warm",
    "day",
)


def open_atlas(work: Mapping[str, Any]) -> Answer:
    """All clients as rows of one stack."""
    from atlas.jobs.federation.client_models import Question, open_clients
    from atlas.runs.folder import RunFolder

    models = open_clients(RunFolder(Path(work["run"])))

    def answer(window: Sequence[Request]) -> list[str]:
        told = models.answer([Question(client, (text,)) for client, text in window])
        return [one["answer"] for one in told]

    return answer


def open_models(work: Mapping[str, Any]) -> Answer:
    """A PEFT model for each client."""
    peft, auto, about, base, tokenizer = _library(work)
    models = {}
    for client in about:
        plain = auto.from_pretrained(base, num_labels=2)
        models[client] = peft.from_pretrained(plain, Path(work["served"]) / client).eval()
    return _by_client(about, tokenizer, models.__getitem__)


def open_adapters(work: Mapping[str, Any]) -> Answer:
    """One PEFT model with the adapters of all."""
    peft, auto, about, base, tokenizer = _library(work)
    served, (first, *others) = Path(work["served"]), about
    plain = auto.from_pretrained(base, num_labels=2)
    model = peft.from_pretrained(plain, served / first, adapter_name=first)
    for client in others:
        model.load_adapter(served / client, adapter_name=client)
    model.eval()

    def chosen(client: str) -> Any:  # noqa: ANN401 - a PeftModel
        model.set_adapter(client)
        return model

    return _by_client(about, tokenizer, chosen)


def _library(work: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any], str, Any]:
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    served = Path(work["served"])
    listed = json.loads((served / "clients.json").read_text(encoding="utf-8"))
    about = {one["client"]: one for one in listed}
    base = work["base"]  # where it lies here; adapter_config.json has its id at the hub
    tokenizer = AutoTokenizer.from_pretrained(base)
    return PeftModel, AutoModelForSequenceClassification, about, base, tokenizer


def _by_client(
    about: Mapping[str, Any],
    tokenizer: Any,  # noqa: ANN401
    model_of: Callable[[str], Any],
) -> Answer:
    import torch

    def answer(window: Sequence[Request]) -> list[str]:
        found = [""] * len(window)
        for client in dict.fromkeys(client for client, _ in window):
            places = [i for i, request in enumerate(window) if request[0] == client]
            texts = [window[i][1] for i in places]
            length = about[client]["max_length"]
            inputs = tokenizer(
                texts, truncation=True, max_length=length, padding=True, return_tensors="pt"
            )
            with torch.no_grad():
                labels = model_of(client)(**inputs).logits.argmax(-1).tolist()
            for place, label in zip(places, labels, strict=True):
                found[place] = about[client]["labels"][label]
        return found

    return answer


OPEN = {"atlas": open_atlas, "peft models": open_models, "peft adapters": open_adapters}


def main(work: Mapping[str, Any]) -> dict[str, Any]:
    """Rates of all turns, the answers, and the most memory that the process held."""
    import torch

    from atlas.bench.processes import high_water

    torch.set_num_threads(os.cpu_count() or 1)
    clients = sorted(path.name for path in Path(work["served"]).iterdir() if path.is_dir())
    draw = random.Random(0)
    asked = [
        (draw.choice(clients), " ".join(draw.choices(WORDS, k=draw.randint(4, 20))))
        for _ in range(work["requests"])
    ]
    windows = [asked[i : i + work["window"]] for i in range(0, len(asked), work["window"])]
    answer, rates, answers = OPEN[work["name"]](work), [], []
    for _ in range(work["turns"] + 1):
        began = time.perf_counter()
        answers = [one for window in windows for one in answer(window)]
        rates.append(len(asked) / (time.perf_counter() - began))
    return {"rates": rates[1:], "answers": answers, "peak": high_water(os.getpid())}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
