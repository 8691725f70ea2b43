"""Do cores of another backbone help? On a case of which it is known that they can.

    python benchmarks/planted_backbones.py --seeds 0 1 2

There is a small Llama (stories260K beside `ATLAS_DATA`), and a wider and deeper one that computes
the same (`atlas.bench.planted`). A teacher, the small one with cores drawn at random, answers
generated texts; all clients learn these answers from few examples each, so what one finds is what
the others seek. Told is the mean loss on unseen texts, lower is better, of: training alone; mixing
among equal backbones only; mixing across backbones; and the same with bases that mean nothing to
each other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

import torch

from atlas.backbones.load import load_backbone
from atlas.bench.planted import widened_twin
from atlas.build.federation import build_federation
from atlas.config.federation import FederationConfig
from atlas.data.anchors import anchor_texts
from atlas.federation.batching.forward import stack_cohorts
from atlas.federation.training.evaluate import Limits, generate_answers
from atlas.jobs.runner import start_run

TEXTS = 720
ARMS = {
    "equal backbones": {"strategy": "simgrad", "adapter": {"kind": "pq"}},
    "across, paired": {"strategy": "mosaic"},
    "across, own cores sent": {"strategy": "mosaic", "adapter": {"sends": "local"}},
    "across, rotated": {"strategy": "mosaic", "align": {"method": "rotated"}},
    "across, unpaired": {"strategy": "mosaic", "align": {"method": "unpaired"}},
    "across, 40 %": {"strategy": "mosaic-adaptive"},
    "across, 40 % at random": {"strategy": "mosaic-adaptive", "route": {"choice": "random"}},
}


def settings(
    names: list[str], seed: int, arm: dict, given: argparse.Namespace, data: Path
) -> FederationConfig:
    """One arm's settings."""
    probe = names[0]
    whole = {
        "seed": seed,
        "rounds": given.rounds,
        "validate_every": 0,
        "threads": 1,
        "backbone": {
            "name": names[0],
            "deal": [names[0], *[names[1]] * 3],
            "max_length": 96,
            "max_new_tokens": 4,
        },
        "adapter": {"modules": ["query", "value"], "blocks": 4, "rank": 8},
        "train": {"epochs": given.epochs, "batch": 8, "lr": given.lr, "gate_lr": given.gate_lr},
        "relevance": {"probe": probe},
        "tasks": {
            "story": {
                "kind": "causal",
                "text": ["text"],
                "label": "answer",
                "prompt": "{text}\n",
                "metric": "exact_match",
            }
        },
        "data": {
            "source": "files",
            "tasks": ["story"],
            "path": data,
            "clients_per_task": 4,
            "train": given.train,
            "validation": 8,
            "test": 200,
            "tests": "shared",
        },
        "alone": True,
    }
    for key, value in arm.items():
        whole[key] = {**whole.get(key, {}), **value} if isinstance(value, dict) else value
    return FederationConfig.model_validate(whole)


def teach(names: list[str], given: argparse.Namespace, folder: Path) -> None:
    """Write texts and what the teacher makes of them."""
    (folder / "story").mkdir(parents=True)
    texts = anchor_texts(TEXTS, seed=99)
    records = [{"text": text, "answer": "so"} for text in texts]
    _write(folder, records)
    config = settings(names, 0, {"strategy": "mosaic"}, given, folder)
    group = build_federation(config).engine.groups[0]
    held = group.arms["held"]
    client = held.clients[0]
    draw = torch.Generator().manual_seed(7)
    core = {
        name: given.strength * torch.randn(value.shape, generator=draw)
        for name, value in held.take(client).items()
        if name.startswith("core")
    }
    teacher = stack_cohorts([held.put({client: core}).select([client])])
    prompts, limits = [f"{text}\n" for text in texts], Limits(96, 6)
    said = generate_answers(group.model, teacher, prompts, limits)
    plain = stack_cohorts([held.select([client])])
    before = generate_answers(group.model, plain, prompts[:50], limits)
    kept = [
        {"text": text, "answer": answer.strip()}
        for text, answer in zip(texts, said, strict=True)
        if answer.strip()
    ]
    changed = sum(one != two for one, two in zip(before, said, strict=False))
    print(f"{len(kept)} texts, {len({r['answer'] for r in kept})} different answers,", end=" ")
    print(f"{changed} of 50 unlike the plain model's, such as {kept[0]['answer']!r}")
    _write(folder, kept)


def _write(folder: Path, records: list[dict[str, str]]) -> None:
    half = len(records) // 2
    for name, some in (("train", records[:half]), ("test", records[half:])):
        lines = "".join(json.dumps(record) + "\n" for record in some)
        (folder / "story" / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def main() -> None:
    """Run all arms and print their losses."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--train", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--gate-lr", type=float, default=0.03)
    parser.add_argument("--strength", type=float, default=0.25)
    parser.add_argument("--arms", nargs="+", default=list(ARMS))
    given = parser.parse_args()
    models = Path(os.environ["ATLAS_DATA"]).parent / "models"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        source = load_backbone(str(models / "stories260K"))
        narrow = widened_twin(source, folder / "narrow", width=64, before=())
        wide = widened_twin(source, folder / "wide", width=96, before=(0, 0))
        names = [str(narrow), str(wide)]
        teach(names, given, folder / "data")
        traffic: dict[str, tuple[int, int]] = {}
        found: dict[str, list[float]] = {name: [] for name in given.arms}
        solo: dict[str, list[float]] = {name: [] for name in given.arms}
        for seed in given.seeds:
            for name in given.arms:
                config = settings(names, seed, ARMS[name], given, folder / "data")
                summary = start_run(config, folder / "runs").summary
                assert summary is not None
                losses = summary["loss"]
                traffic[name] = summary["bytes"]["up"], summary["bytes"]["down"]
                found[name].append(statistics.fmean(losses["clients"].values()))
                solo[name].append(statistics.fmean(losses["alone"].values()))
            told = {k: (round(v[-1], 4), round(solo[k][-1], 4)) for k, v in found.items()}
            print(seed, told, flush=True)
    print(f"{'arm':24}" + "".join(f"  seed {s}" for s in given.seeds) + "    mean   alone")
    for name, values in found.items():
        cells = "".join(f"{value:8.4f}" for value in values)
        up, down = traffic.get(name, (0, 0))
        sent = f"  {up / 1e3:.0f} kB up, {down / 1e3:.0f} kB down" if up else ""
        print(
            f"{name:24}{cells}{statistics.fmean(values):8.4f}{statistics.fmean(solo[name]):8.4f}{sent}"
        )


if __name__ == "__main__":
    main()
