"""Where the parts of a model sit whose family no table knows: found by looking and by trying.

A model of any kind is asked for its list of blocks, the linear modules that it calls, and the head
of its classification model. What was found is tried on a short text: a head counts only if its
layers, one after the other, give the logits of the library's own model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atlas.backbones.blocks import Config, Model, is_linear
from atlas.backbones.families import Family
from atlas.federation.batching.backbone import ACTIVATIONS, HeadLayer

SHORT_NAMES: dict[str, tuple[str, ...]] = {
    "query": ("query", "query_proj", "q_proj", "q_lin", "query_key_value", "qkv_proj", "c_attn"),
    "key": ("key", "key_proj", "k_proj", "k_lin", "query_key_value", "qkv_proj", "c_attn"),
    "value": ("value", "value_proj", "v_proj", "v_lin", "query_key_value", "qkv_proj", "c_attn"),
    "output": (
        "attention.output.dense",
        "o_proj",
        "out_proj",
        "self_attn.dense",
        "attention.dense",
    ),
    "up": ("intermediate.dense", "up_proj", "fc1", "dense_h_to_4h"),
    "down": ("output.dense", "down_proj", "fc2", "dense_4h_to_h"),
    "gate": ("gate_proj",),
}
"""What modules of many models are called, by the short names of the settings."""
PROBE_TOKENS, PROBE_LABELS = 5, 3


def find_blocks(body: nn.Module, config: Config) -> str:
    """Path of the list of blocks inside the body; empty if the body has none."""
    depth: int | None = getattr(config, "num_hidden_layers", None)
    lists = (n for n, m in body.named_modules() if isinstance(m, nn.ModuleList) and len(m) == depth)
    return next(lists, "")


def short_names(linears: Sequence[str]) -> dict[str, str]:
    """Short names of linear modules, where one module alone is meant."""
    found = {}
    for short, endings in SHORT_NAMES.items():
        for ending in endings:
            own = [n for n in linears if n == ending] or [
                n for n in linears if n.endswith(f".{ending}")
            ]
            if len(own) == 1:
                found[short] = own[0]
                break
    return found


def probe_text(config: Config, device: torch.device) -> Tensor:
    """Token ids [1, T] that are neither padding nor each other's."""
    first = 1 + (config.pad_token_id if isinstance(config.pad_token_id, int) else 0)
    ids = torch.arange(first, first + PROBE_TOKENS, device=device)
    return ids.remainder(int(config.vocab_size))[None]


@contextmanager
def calls_of(modules: Mapping[str, nn.Module]) -> Iterator[list[tuple[str, Tensor, Tensor]]]:
    """Name, input and output of each call of some modules, in the order of the calls."""
    calls: list[tuple[str, Tensor, Tensor]] = []

    def keep_as(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def keep(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            del module
            calls.append((name, args[0], output))

        return keep

    handles = [m.register_forward_hook(keep_as(name)) for name, m in modules.items()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def called_linears(body: Model, ids: Tensor) -> dict[str, nn.Module]:
    """The linear modules that the body calls, by name.

    Others have weights that are read by other code: what an adapter adds would not be felt there.
    """
    linears = {name: module for name, module in body.named_modules() if is_linear(module)}
    with torch.no_grad(), calls_of(linears) as calls:
        body(input_ids=ids, attention_mask=torch.ones_like(ids))
    called = {name for name, _, _ in calls}
    return {name: module for name, module in linears.items() if name in called}


Readout = Callable[[Model, Tensor, Tensor], Tensor]
"""What a head reads [N, D], from the body, its output [N, T, D] and the mask [N, T]."""


def _last(body: Model, hidden: Tensor, mask: Tensor) -> Tensor:
    del body
    rows = torch.arange(len(hidden), device=hidden.device)
    return hidden[rows, mask.long().sum(1) - 1]


def _mean(body: Model, hidden: Tensor, mask: Tensor) -> Tensor:
    del body
    there = mask[:, :, None].to(hidden.dtype)
    return (hidden * there).sum(1) / there.sum(1)


def _flat_pooler(body: Model, hidden: Tensor, mask: Tensor) -> Tensor:
    del mask
    return torch.tanh(body.pooler(hidden[:, 0]))


READOUTS: dict[str, Readout] = {
    "first": lambda body, hidden, mask: hidden[:, 0],
    "last": _last,
    "mean": _mean,
    "pooler": lambda body, hidden, mask: body.pooler(hidden),
    "flat pooler": _flat_pooler,
}


@dataclass(frozen=True)
class FoundHead:
    """A classification head in pieces.

    Attributes:
        layers: Its linear layers.
        readout: What the first of them reads, one of `READOUTS`.
    """

    layers: tuple[HeadLayer, ...]
    readout: str


def find_head(body: Model, config: Config, family: Family, *, pooled: bool) -> FoundHead | None:
    """The head of the library's classification model; None if it has none that can be cut off.

    Args:
        body: The loaded body.
        config: Its config.
        family: Where the body is inside the classification model.
        pooled: Whether the body's pooler, if there is one, came with the checkpoint.
    """
    from transformers.models.auto import modeling_auto

    models = modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    if type(config) not in models:
        return None
    whole = _classifier(models[type(config)], body, config, family.prefix)
    if whole is None:
        return None
    linears = _outside(whole, family.prefix)
    ids = probe_text(config, next(body.parameters()).device)
    mask = torch.ones_like(ids)
    with torch.no_grad(), calls_of(linears) as calls:
        logits = whole(input_ids=ids, attention_mask=mask).logits
        hidden = body(input_ids=ids, attention_mask=mask).last_hidden_state
        layers = _chain(calls, logits, linears)
        if layers is None:
            return None
        read = calls[0][1]
        given = _last(body, read, mask) if read.dim() == 3 else read
        for name, readout in READOUTS.items():
            if "pooler" in name and (not pooled or getattr(body, "pooler", None) is None):
                continue
            if _same(_tried(readout, body, hidden, mask), given):
                return FoundHead(layers, name)
    return None


def _classifier(kind: type[Model], body: Model, config: Config, prefix: str) -> Model | None:
    """A classification model around the body, its head drawn at random."""
    own = copy.deepcopy(config)
    own.num_labels = PROBE_LABELS
    own.pad_token_id = config.pad_token_id if isinstance(config.pad_token_id, int) else 0
    with torch.device("meta"):
        whole: Model = kind(own)
    if prefix not in whole._modules:  # noqa: SLF001 - there is no other way to ask for children
        return None
    setattr(whole, prefix, body)
    linears = _outside(whole, prefix)
    inside = {id(p) for p in body.parameters()} | {
        id(p) for linear in linears.values() for p in linear.parameters()
    }
    if any(id(p) not in inside for p in whole.parameters()):
        return None  # norms and the like: no chain of linear layers
    draw = torch.Generator().manual_seed(0)
    some = next(body.parameters())
    for linear in linears.values():
        linear.to_empty(device=some.device).to(some.dtype)
        for p in linear.parameters():
            p.data.copy_(torch.randn(p.shape, generator=draw) * 0.1)
    return whole.eval()


def _outside(whole: nn.Module, prefix: str) -> dict[str, nn.Linear]:
    """The linear modules beside the body, by name."""
    return {
        name: module
        for name, module in whole.named_modules()
        if isinstance(module, nn.Linear) and not name.startswith(f"{prefix}.")
    }


def _chain(
    calls: Sequence[tuple[str, Tensor, Tensor]], logits: Tensor, linears: Mapping[str, nn.Linear]
) -> tuple[HeadLayer, ...] | None:
    """The layers of a head that were called one after the other; None if something is between."""
    if [name for name, _, _ in calls] != list(dict.fromkeys(linears)) or not calls:
        return None
    ends = [given for _, given, _ in calls[1:]]
    final = calls[-1][2]
    ends.append(logits if final.dim() == logits.dim() else logits[:, None])
    layers = []
    for (name, _, made), wanted in zip(calls, ends, strict=True):
        shown = made if made.dim() == wanted.dim() and made.shape == wanted.shape else made[:, -1:]
        activation = next((a for a, act in ACTIVATIONS.items() if _same(act(shown), wanted)), None)
        if activation is None:
            return None
        linear = linears[name]
        out = 0 if name == calls[-1][0] else linear.out_features
        layers.append(HeadLayer(name, linear.in_features, out, linear.bias is not None, activation))
    return tuple(layers)


def _tried(readout: Readout, body: Model, hidden: Tensor, mask: Tensor) -> Tensor | None:
    try:
        return readout(body, hidden, mask)
    except (TypeError, RuntimeError, AttributeError):  # the pooler is of another kind
        return None


def _same(one: Tensor | None, other: Tensor) -> bool:
    """Whether two ways of computing gave the same numbers, up to rounding."""
    if one is None or one.shape != other.shape:
        return False
    # Eight bits of a half-precision number, and no less than float32 gives.
    close = 2e-2 if one.element_size() == 2 else 1e-5
    return torch.allclose(one.double(), other.double(), atol=close, rtol=close)
