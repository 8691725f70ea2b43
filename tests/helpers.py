"""Small clients and federations that tests share."""

import base64
import os
import signal

import numpy as np

from atlas.federation.clients import ClientData, Example, Task
from atlas.ops.lowrank.factors import rank_mask

BLANK = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg=="
)
"""A picture of one white point."""

WORDS = ("red", "blue", "green", "round", "square", "cold", "warm", "near", "far", "old", "new")


def make_task(name="colour", labels=("no", "yes")):
    return Task(name=name, kind="classification", text=("text",), label="label", labels=labels)


def make_examples(task, count, seed):
    """Short texts whose label is readable from one word."""
    draw = np.random.default_rng(seed)
    examples = []
    for _ in range(count):
        label = int(draw.integers(len(task.labels)))
        others = draw.integers(3, len(WORDS), draw.integers(1, 6))
        words = [WORDS[label], *(WORDS[i] for i in others)]
        examples.append(Example((" ".join(words),), label))
    return tuple(examples)


def make_client(name, task=None, *, train=10, validation=6, test=8, seed=0, backbone=""):
    task = task or make_task()
    return ClientData(
        id=name,
        task=task,
        train=make_examples(task, train, 3 * seed),
        validation=make_examples(task, validation, 3 * seed + 1),
        test=make_examples(task, test, 3 * seed + 2),
        group=task.name,
        backbone=backbone,
    )


def make_config(**changes):
    """Settings of a small, fast federation on the tiny backbone."""
    from atlas.config.federation import FederationConfig

    settings = {
        "name": "small",
        "rounds": 2,
        "threads": 1,
        "backbone": {"name": "tiny", "max_length": 32},
        "adapter": {"modules": ["query", "value"], "blocks": 2, "rank": 3},
        "train": {"epochs": 1, "batch": 4, "lr": 0.02},
    }
    for key, value in changes.items():
        nested = isinstance(value, dict) and isinstance(settings.get(key), dict)
        settings[key] = {**settings[key], **value} if nested else value
    return FederationConfig.model_validate(settings)


def make_clients():
    """Two tasks with two clients each, and one client with three labels."""
    colour, shape = make_task(), make_task("shape", ("flat", "round"))
    three = make_task("size", ("small", "middle", "large"))
    return [
        make_client("a1", colour, train=9, seed=1),
        make_client("a2", colour, train=14, seed=2),
        make_client("b1", shape, train=11, seed=3),
        make_client("b2", shape, train=8, seed=4),
        make_client("c1", three, train=10, seed=5),
    ]


def padding_is_zero(cohort):
    """Whether every unused rank slot is still exactly zero."""
    for i, module in enumerate(cohort.layout.modules):
        a, b = cohort.tensors[f"lora_a/{module}"], cohort.tensors[f"lora_b/{module}"]
        unused = ~rank_mask(cohort.ranks(i), a.shape[1])
        if bool(a[unused].any()) or bool(b.transpose(1, 2)[unused].any()):
            return False
    return True


def stop_after(number):
    """A watcher that asks the run to stop in a round, as Ctrl-C would."""

    def watch(event, fields):
        if event == "round_started" and fields["round"] == number:
            os.kill(os.getpid(), signal.SIGINT)

    return watch


def reloaded(first, config):
    """A new federation of `make_clients` that goes on where `first` is, from saved clients."""
    from atlas.build.federation import assemble
    from atlas.federation.exchange.message import encode
    from atlas.federation.exchange.transport import Failure

    blobs = first.engine.ask("save", dict.fromkeys(first.holders, encode({}, {})))
    second = assemble(config, make_clients())
    assert not any(isinstance(r, Failure) for r in second.engine.ask("load", blobs).values())
    second.state.round, second.state.examples = first.state.round, first.state.examples
    second.state.cohorts = first.state.cohorts
    return second


def wide_tiny(folder, width=48, blocks=4):
    """A random BERT of another width and depth than `tiny`, with its tokenizer, in a folder."""
    import torch
    from transformers import BertConfig, BertModel

    from atlas.backbones.load import build_tiny

    config = BertConfig(
        vocab_size=261,
        hidden_size=width,
        num_hidden_layers=blocks,
        num_attention_heads=4,
        intermediate_size=2 * width,
        max_position_embeddings=64,
        initializer_range=0.1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        BertModel(config).save_pretrained(folder)
    build_tiny(torch.float32)[1].save_pretrained(folder)
    return str(folder)
