"""Do cores of another backbone help? On a case of which it is known that they can.

    python benchmarks/planted_backbones.py --seeds 0 1 2

There is a small Llama (stories260K beside `ATLAS_DATA`), and a wider and deeper one that computes
the same (`atlas.bench.planted`). A teacher, the small one with cores drawn at random, answers
generated texts. Clients of the narrow backbone train on texts whose answers begin with one half of
the first letters, those of the wide one with the other half, and all are tested on both: what one
backbone's clients lack, the other's have found. Told is the mean loss on unseen texts, lower is
better, of: training alone; mixing among equal backbones only; mixing across backbones; the same
with bases that mean nothing to each other; and with fewer bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
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

TEST = 300
KINDS = ("narrow", "wide")
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
    whole = {
        "seed": seed,
        "rounds": given.rounds,
        "validate_every": 0,
        "threads": 1,
        "backbone": {"name": names[0], "max_length": 96, "max_new_tokens": 4},
        "adapter": {"modules": ["query", "value"], "blocks": 4, "rank": 8},
        "train": {"epochs": given.epochs, "batch": 8, "lr": given.lr, "gate_lr": given.gate_lr},
        "relevance": {"probe": names[0], "temperature": given.temperature},
        "tasks": {
            "story": {
                "kind": "causal",
                "text": ["text"],
                "label": "answer",
                "prompt": "{text}\n",
                "metric": "exact_match",
            }
        },
        "data": {"train": given.train, "validation": 8},
        "clients": clients(names, given, data),
        "alone": True,
    }
    for key, value in arm.items():
        whole[key] = {**whole.get(key, {}), **value} if isinstance(value, dict) else value
    return FederationConfig.model_validate(whole)


def clients(names: list[str], given: argparse.Namespace, data: Path) -> list[dict[str, object]]:
    """Narrow ones and wide ones, each with a file of its own and all with one test."""
    counts = {"narrow": given.narrow, "wide": given.wide}
    return [
        {
            "id": f"{kind}-{place}",
            "task": "story",
            "data": data / f"{kind}-{place}.jsonl",
            "test_data": data / "test.jsonl",
            "backbone": name,
        }
        for (kind, count), name in zip(counts.items(), names, strict=True)
        for place in range(count)
    ]


def teach(names: list[str], given: argparse.Namespace, folder: Path) -> None:
    """Write texts and what the teacher makes of them: one test, and half of the rest a backbone."""
    folder.mkdir(parents=True)
    texts = anchor_texts(given.texts, seed=99)
    draft = [{"text": text, "answer": "so"} for text in texts]
    files = [Path(str(entry["data"])) for entry in clients(names, given, folder)]
    for place, file in enumerate([*files, folder / "test.jsonl"]):
        _write(file, draft[place :: len(files) + 1])  # a teacher is taken from a whole federation
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
    taught = sorted({name.partition("/")[2] for name in core})[-given.taught :]
    core = {n: v * float(n.partition("/")[2] in taught) for n, v in core.items()}
    teacher = stack_cohorts([held.put({client: core}).select([client])])
    said = generate_answers(group.model, teacher, [f"{text}\n" for text in texts], Limits(96, 6))
    records = [
        {"text": text, "answer": answer.strip()}
        for text, answer in zip(texts, said, strict=True)
        if answer.strip()
    ]
    _write(folder / "test.jsonl", records[:TEST])
    halves = _halves(records[TEST:]) if given.apart else [records[TEST::2], records[TEST + 1 :: 2]]
    rows = given.train + 8
    for kind, half, count in zip(KINDS, halves, (given.narrow, given.wide), strict=True):
        if len(half) < rows * count:
            raise SystemExit(f"{len(half)} texts for {count} {kind} clients of {rows}")
        for place in range(count):
            _write(folder / f"{kind}-{place}.jsonl", half[place * rows : (place + 1) * rows])
    answers = [len({record["answer"] for record in half}) for half in halves]
    print(f"{len(records)} texts; answers that each backbone's clients meet: {answers}", flush=True)


def _halves(records: list[dict[str, str]]) -> list[list[dict[str, str]]]:
    """By the answers' first letters, dealt in turn from the most frequent one on."""
    first = Counter(record["answer"][0] for record in records)
    letters = [letter for letter, _ in first.most_common()]
    sides: list[list[str]] = [[], []]
    for letter in letters:  # to the side that has fewer texts so far
        sides[sum(first[x] for x in sides[0]) > sum(first[x] for x in sides[1])].append(letter)
    return [[record for record in records if record["answer"][0] in side] for side in sides]


def _write(file: Path, records: Sequence[Mapping[str, str]]) -> None:
    file.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")


def main() -> None:
    """Run all arms and print their losses."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--texts", type=int, default=1200)
    parser.add_argument("--apart", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--narrow", type=int, default=2, help="clients on the narrow backbone")
    parser.add_argument("--wide", type=int, default=2, help="clients on the wide backbone")
    parser.add_argument("--train", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--temperature", type=float, default=10.0)
    parser.add_argument("--gate-lr", type=float, default=0.003)
    parser.add_argument("--strength", type=float, default=0.25)
    parser.add_argument("--taught", type=int, default=8, help="modules that the teacher differs in")
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
