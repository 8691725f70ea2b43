"""A saved model as a folder for others: its tokenizer beside it, and a way to its classes.

transformers finds the classes of a model it does not know in a file of the folder, if it is told to
trust it (`trust_remote_code=True`). That file only imports them from this package, which must be
installed: there is one copy of the code.
"""

from __future__ import annotations

import json
from pathlib import Path

from atlas.backbones.read_model import quiet_library
from atlas.backbones.tokenizer import load_tokenizer, reads_bytes

BRIDGE = "modeling_atlas"
"""The file's name, without its ending."""
CODE = '''"""The classes of this model; needs the package atlas-personal."""

from atlas.backbones.memory_lm import (
    AtlasConfig,
    AtlasForCausalLM,
    AtlasForSequenceClassification,
    AtlasModel,
)
'''
CLASSES = {
    "AutoConfig": "AtlasConfig",
    "AutoModel": "AtlasModel",
    "AutoModelForCausalLM": "AtlasForCausalLM",
    "AutoModelForSequenceClassification": "AtlasForSequenceClassification",
}
USE = """
The file `{bridge}.py` lets transformers find them by itself where Atlas is installed:
`AutoModelForCausalLM.from_pretrained("this folder", trust_remote_code=True)`.
"""


def complete_folder(folder: Path) -> None:
    """Add to a folder that `save_model` wrote what it needs to be used anywhere."""
    if reads_bytes(folder) and not (folder / "tokenizer.json").is_file():
        with quiet_library():
            load_tokenizer(folder).save_pretrained(folder)
    (folder / f"{BRIDGE}.py").write_text(CODE, encoding="utf-8")
    path = folder / "config.json"
    settings = json.loads(path.read_bytes())
    settings["auto_map"] = {auto: f"{BRIDGE}.{name}" for auto, name in CLASSES.items()}
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    card = folder / "README.md"
    if card.is_file():
        words = card.read_text(encoding="utf-8") + USE.format(bridge=BRIDGE)
        card.write_text(words, encoding="utf-8")
