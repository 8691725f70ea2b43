"""Exported adapters on disk: folders that appear whole or not at all, and their strict reader."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from atlas.backbones.transformer import TransformerBackbone
from atlas.errors import InputError
from atlas.federation.clients import Task
from atlas.runs.files import FILE_MODE, sync_folder

MARKER = "atlas.json"


def cache_folder() -> Path:
    """Where models are kept that are made once."""
    return Path(os.environ.get("ATLAS_CACHE") or "~/.cache/atlas").expanduser()


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of `folder` once it is filled.

    An earlier export is replaced; any other folder that holds something is left alone.

    Args:
        folder: Where the files are to be in the end.

    Yields:
        The folder to write into.

    Raises:
        InputError: If `folder` holds something else than an earlier export.
    """
    if folder.exists() and not _replaceable(folder):
        raise InputError(f"{folder} holds other files; choose a new or empty folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    stale = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    for left in (fresh, stale):
        shutil.rmtree(left, ignore_errors=True)
    fresh.mkdir()
    try:
        yield fresh
        _seal(fresh)
        if folder.exists():
            folder.rename(stale)
        fresh.rename(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(stale, ignore_errors=True)


def _replaceable(folder: Path) -> bool:
    return folder.is_dir() and ((folder / MARKER).is_file() or not any(folder.iterdir()))


def _seal(folder: Path) -> None:
    """Makes the files readable (safetensors writes them as private) and puts them on disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(FILE_MODE)
            with path.open("rb") as file:
                os.fsync(file.fileno())
    sync_folder(folder)


Layers = Mapping[str, tuple[Tensor, Tensor]]
CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
ROOT = "base_model.model."
_FACTOR = re.compile(r".+\.lora_[AB]\.(weight|bias)")


class ExportedAdapter(NamedTuple):
    """An exported adapter.

    Attributes:
        layers: Name of a linear module inside the body to A [r, d_in] and B [d_out, r].
        alpha: The update of a module is alpha / r times B A.
        head: Tensors of the classification head by full name; empty for causal tasks.
        meta: What atlas.json says of task and base model.
        biases: What a module adds beside that, over alpha / r; empty if none does.
    """

    layers: dict[str, tuple[Tensor, Tensor]]
    alpha: float
    head: dict[str, Tensor]
    meta: dict[str, Any]
    biases: dict[str, Tensor] = {}  # noqa: RUF012 - a field's default, never written to

    @property
    def task(self) -> Task:
        """The task the adapter was trained for."""
        return _read_task(self.meta["task"])


def load_adapter(folder: Path) -> ExportedAdapter:
    """Reads a folder that `export_adapter` wrote.

    Args:
        folder: The exported folder.

    Raises:
        InputError: If a file or tensor is missing, damaged or not of this kind.
    """
    config, meta = _read_json(folder / CONFIG), _read_json(folder / MARKER)
    path = folder / WEIGHTS
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    try:
        pattern, rank, names = config["rank_pattern"], config["r"], config["target_modules"]
        ranks = {name: int(pattern.get(name, rank)) for name in sorted(names)}
        alpha = float(config["lora_alpha"])
        start = f"{meta['backbone']['prefix']}."
        head_names = set(meta["head"])
        _read_task(meta["task"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{folder} is not an exported adapter: {error!r}") from error
    found = {key.removeprefix(ROOT): tensor for key, tensor in tensors.items()}
    wanted = {f"{name}.lora_{factor}.weight" for name in ranks for factor in "AB"}
    if config.get("lora_bias"):
        wanted |= {f"{name}.lora_B.bias" for name in ranks}
    wrong = sorted((wanted | head_names) ^ set(found))
    if wrong:
        raise InputError(f"{path}: tensors missing or unknown: {', '.join(wrong[:3])}")
    layers, biases = {}, {}
    for name, rank in ranks.items():
        a, b = found[f"{name}.lora_A.weight"], found[f"{name}.lora_B.weight"]
        if a.dim() != 2 or b.dim() != 2 or not a.shape[0] == b.shape[1] == rank:
            shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
            raise InputError(f"{path}: {name} should have rank {rank}, its shapes are {shapes}")
        layers[name.removeprefix(start)] = (a, b)
        if (bias := found.get(f"{name}.lora_B.bias")) is not None:
            if tuple(bias.shape) != (b.shape[0],):
                raise InputError(f"{path}: {name} should have {b.shape[0]} biases")
            biases[name.removeprefix(start)] = bias
    head = {name: tensor for name, tensor in found.items() if not _FACTOR.fullmatch(name)}
    return ExportedAdapter(layers, alpha, head, meta, biases)


def check_base(adapter: ExportedAdapter, backbone: TransformerBackbone) -> None:
    """Refuses a base model that is not the one the adapter was trained on.

    Args:
        adapter: What `load_adapter` returned.
        backbone: The model it is to be used with.

    Raises:
        InputError: If the model is another one.
    """
    trained, given = adapter.meta["backbone"], describe_base(backbone)
    # Weights of another precision have other bits and may still be the same model.
    keys = ["prefix", "width", "depth", "tokenizer", "quant"]
    if trained.get("dtype") == given["dtype"]:
        keys.append("weights")
    differing = [key for key in keys if trained.get(key) != given[key]]
    if differing:
        raise InputError(
            f"the adapter was trained on {trained.get('source')!r}, not on {given['source']!r}: "
            f"{', '.join(differing)} differ"
        )
    check_layers(backbone, adapter.layers)
    check_head(backbone, adapter.task, adapter.head)


def describe_base(backbone: TransformerBackbone) -> dict[str, object]:
    """What an export notes of its base model."""
    return {
        "name": backbone.name,
        "source": backbone.source,
        "prefix": backbone.family.prefix,
        "depth": backbone.depth,
        "width": backbone.width,
        "dtype": str(backbone.dtype).removeprefix("torch."),
        "quant": backbone.quant,
        "tokenizer": backbone.tokenizer_id,
        "weights": backbone.weights_id,
        "pad_token_id": backbone.specials.pad,
    }


def check_layers(backbone: TransformerBackbone, layers: Layers) -> None:
    """Refuses factors that do not fit the modules they are named for."""
    modules = {n: m for i in range(backbone.depth) for n, m in backbone.linears(i).items()}
    if not layers:
        raise InputError("the adapter has no layer of rank one or more; there is nothing to write")
    for name, (a, b) in layers.items():
        if name not in modules:
            raise InputError(f"layer {name!r} is not a linear module of {backbone.name}")
        module, rank = modules[name], a.shape[0]
        wanted = (rank, module.in_features), (module.out_features, rank)
        if (tuple(a.shape), tuple(b.shape)) != wanted:
            raise InputError(
                f"layer {name!r}: A {tuple(a.shape)} and B {tuple(b.shape)} should be "
                f"{wanted[0]} and {wanted[1]}"
            )


def check_head(backbone: TransformerBackbone, task: Task, head: Mapping[str, Tensor]) -> None:
    """Refuses a head that is not the one of the task's classification model."""
    wanted: dict[str, tuple[int, ...]] = {}
    for layer in backbone.head_layers if task.kind == "classification" else ():
        rows = layer.d_out or len(task.labels)
        wanted[f"{layer.name}.weight"] = (rows, layer.d_in)
        if layer.bias:
            wanted[f"{layer.name}.bias"] = (rows,)
    given = {name: tuple(tensor.shape) for name, tensor in head.items()}
    if given != wanted:
        raise InputError(f"the head of {task.name!r} should be {wanted}, it is {given}")


def _read_task(fields: Mapping[str, Any]) -> Task:
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return Task(**values)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} should hold a JSON object")
    return value
