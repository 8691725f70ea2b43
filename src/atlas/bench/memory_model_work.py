"""One contender of `atlas bench memory-model`, measured in a process of its own.

Reads a `ModelWork` as JSON from its first argument and prints what it found as JSON. A step is a
forward pass, the loss of the next token, a backward pass, clipping and AdamW, the same for all.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from atlas.backbones.memory_lm import AtlasConfig, AtlasForCausalLM
from atlas.backbones.memory_lm.sizes import without_memory

VOCABULARY, CLIP = 256, 1.0
SHAPES = {
    "quick": {"width": 64, "blocks": 2, "heads": 2, "feed_forward": 128, "window": 16},
    "full": {"width": 256, "blocks": 9, "heads": 4, "feed_forward": 704, "window": 64},
}
"""Those of the preset shakespeare; `full` has 9.9 million parameters."""
PERSISTENT = 4
PRODUCTS = ("aten::mm", "aten::addmm")
"""Products with weights; those of attention and of the memory are batched ones."""
KERNEL = ("_ExactScan", "_ExactScanBackward", "_Unroll", "_UnrollBackward")
"""The rule of the memory: products of gates, and the scan over chunks."""


@dataclass(frozen=True)
class ModelWork:
    """What is measured: a contender, the models' size, a batch, and how often."""

    name: str
    size: str
    batch: int
    length: int
    repeats: int


def memory_model(size: str) -> nn.Module:
    """The model with its memory."""
    return AtlasForCausalLM(_config(size))


def window_model(size: str) -> nn.Module:
    """The same with window attention alone, its feed-forward part wider by what is gone."""
    return AtlasForCausalLM(without_memory(_config(size)))


def llama(size: str) -> nn.Module:
    """A Llama of as many parameters, blocks and heads, with attention to the whole text."""
    from transformers import LlamaConfig, LlamaForCausalLM

    own = SHAPES[size]
    with torch.device("meta"):
        wanted = sum(value.numel() for value in memory_model(size).parameters())
    width, blocks = own["width"], own["blocks"]
    rest = wanted - VOCABULARY * width - width - blocks * (4 * width * width + 2 * width)
    model: nn.Module = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=width,
            num_hidden_layers=blocks,
            num_attention_heads=own["heads"],
            num_key_value_heads=own["heads"],
            intermediate_size=round(rest / (3 * width * blocks)),
            tie_word_embeddings=True,
        )
    )
    return model


def _config(size: str) -> AtlasConfig:
    own = SHAPES[size]
    return AtlasConfig(
        vocab_size=VOCABULARY,
        hidden_size=own["width"],
        num_hidden_layers=own["blocks"],
        num_attention_heads=own["heads"],
        intermediate_size=own["feed_forward"],
        attention_window=own["window"],
        persistent_tokens=PERSISTENT,
    )


CONTENDERS: dict[str, Callable[[str], nn.Module]] = {
    "memory": memory_model,
    "window": window_model,
    "llama": llama,
}


def measure(work: ModelWork) -> dict[str, Any]:
    """Seconds of the fastest step, by the clock and of the processor, and where they go."""
    torch.manual_seed(0)
    model = CONTENDERS[work.name](work.size).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.randint(VOCABULARY, (work.batch, work.length + 1))
    best, processor = float("inf"), float("inf")
    train_step(model, optimiser, ids)  # the first one also makes the optimiser's moments
    for _ in range(work.repeats):
        wall, own = time.perf_counter(), time.process_time()
        train_step(model, optimiser, ids)
        best = min(best, time.perf_counter() - wall)
        processor = min(processor, time.process_time() - own)
    return {
        "parameters": sum(value.numel() for value in model.parameters()),
        "threads": torch.get_num_threads(),
        "seconds": best,
        "cpu_seconds": processor,
        **profile_step(model, optimiser, ids),
    }


def train_step(model: nn.Module, optimiser: torch.optim.Optimizer, ids: Tensor) -> None:
    """One step on sequences of T + 1 tokens."""
    out = model(input_ids=ids[:, :-1], use_cache=False)
    loss = cross_entropy(out.logits.flatten(0, 1), ids[:, 1:].flatten())
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimiser.step()


def profile_step(
    model: nn.Module, optimiser: torch.optim.Optimizer, ids: Tensor
) -> dict[str, float]:
    """Shares of a step's time in products with weights and in the memory's rule."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as watched:
        train_step(model, optimiser, ids)
    events = {event.key: event for event in watched.key_averages()}
    total = sum(event.self_cpu_time_total for event in events.values())
    products = sum(events[key].self_cpu_time_total for key in PRODUCTS if key in events)
    kernel = sum(events[key].cpu_time_total for key in KERNEL if key in events)
    return {"products": products / total, "kernel": kernel / total}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(ModelWork(**json.loads(sys.argv[1])))) + "\n")
