"""Reading a model folder or hub id: config, weights and tokenizer, behind the `Backbone` protocol.

What can be refused is refused before any library reads it; what a library makes of damaged files
becomes an `InputError`.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from atlas.backbones.bert import read_bert
from atlas.backbones.blocks import Config, Model
from atlas.backbones.families import ATLAS, find_family
from atlas.backbones.tokenizer import load_tokenizer
from atlas.backbones.transformer import TransformerBackbone
from atlas.errors import InputError

# What the libraries raise on files that are missing, damaged or at odds with each other.
UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    RuntimeError,
    SafetensorError,
    StrictDataclassError,
)


def read_backbone(
    where: Path | str, public: tuple[str, str], device: torch.device, dtype: torch.dtype
) -> TransformerBackbone:
    """Reads config, weights and tokenizer; whatever is wrong with the files is the user's."""
    own_kind = ATLAS if isinstance(where, str) else _check_folder(where)
    if own_kind == ATLAS:
        import atlas.backbones.memory_lm  # noqa: F401 - tells transformers of that kind
    try:
        with quiet_library():
            config = AutoConfig.from_pretrained(
                where, local_files_only=isinstance(where, Path), trust_remote_code=False
            )
            native = find_family(config.model_type) is not None
            if getattr(config, "is_decoder", False):
                raise InputError(f"backbone {where}: config.json says is_decoder; not supported")
            model, pooled = _load_model(where, config, dtype)
            tokenizer = load_tokenizer(where)
        if len(tokenizer) > config.vocab_size:
            raise InputError(
                f"backbone {where}: the tokenizer has {len(tokenizer)} tokens, "
                f"the model only {config.vocab_size}"
            )
    except InputError:
        raise
    except UNREADABLE as error:
        raise InputError(f"backbone {where} cannot be loaded: {error}") from error
    name, source = public
    make: type[TransformerBackbone] = TransformerBackbone
    if not native:
        from atlas.backbones.whole_model import WholeModelBackbone as make  # noqa: N813
    backbone = make(model, tokenizer, name=name, source=source, device=device, pooled=pooled)
    if isinstance(where, Path) and "/" not in source:  # a hub id is where anybody finds it
        backbone.location = str(where.resolve())
    return backbone


def _check_folder(folder: Path) -> str:
    """The `model_type`; refuses what can be refused before any library reads it, with a reason."""
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"backbone folder {folder} has no config.json")
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    kind = str(settings.get("model_type")) if isinstance(settings, dict) else ""
    if kind != ATLAS and kind not in CONFIG_MAPPING_NAMES:
        raise InputError(
            f"model_type {kind!r} is not supported; supported: {ATLAS} and the encoders and causal "
            "language models of transformers, such as bert, gpt2, llama"
        )
    if not any(folder.glob("*.safetensors")):
        if any(folder.glob("*.bin")):
            raise InputError(
                f"backbone folder {folder} has only pickled .bin weights, which are never read: "
                "convert them to safetensors (model.save_pretrained does)"
            )
        raise InputError(f"backbone folder {folder} has no weights (*.safetensors)")
    return kind


def _load_model(
    where: Path | str,
    config: Config,
    dtype: torch.dtype,
) -> tuple[Model, bool]:
    """The model, and whether its pooler came with the checkpoint."""
    own = read_bert(where, config, dtype) if isinstance(where, Path) else None
    if own is not None:
        return own
    from transformers import AutoModel, AutoModelForCausalLM

    from atlas.backbones.whole_model import is_causal

    family = find_family(config.model_type)
    causal = is_causal(config) if family is None else family.mask == "causal"
    loader = AutoModelForCausalLM if causal else AutoModel
    # What a checkpoint lacks is drawn at random: that must not move the process's generator.
    with torch.random.fork_rng(devices=[]):
        model, report = loader.from_pretrained(
            where,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=isinstance(where, Path),
            trust_remote_code=False,
            output_loading_info=True,
        )
    missing = set(report["missing_keys"])
    pooler = {name for name in missing if name.split(".")[0] == "pooler"}
    if missing - pooler:
        some = ", ".join(sorted(missing - pooler)[:3])
        raise InputError(f"backbone {where}: the weights lack {len(missing - pooler)}: {some}")
    return model, not pooler


@contextlib.contextmanager
def quiet_library() -> Iterator[None]:
    """Loading without progress bars and warnings; the library's settings are put back."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
