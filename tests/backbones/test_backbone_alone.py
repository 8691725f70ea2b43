"""Exports of every family are asked by the code on their cards, in a process without Atlas."""

import json
import subprocess
import sys

import pytest
import torch

from atlas.backbones.export import complete_export, export_adapter, load_adapter
from atlas.federation.clients import Example
from atlas.federation.training.evaluate import Limits
from tests.backbones.conftest import CAUSALS, ENCODERS
from tests.backbones.test_whole_model import OTHERS

KINDS = [*ENCODERS, *(kind for kind in CAUSALS if kind != "atlas"), *OTHERS]
TEXTS = ("a text, longer than it may be, so that its end is cut off", "and more")
PROGRAM = """
import json, sys, traceback
sys.modules["atlas"] = None
texts, *folders = sys.argv[1:]
found = {}
for folder in folders:
    code = open(folder + "/README.md").read().split("```python\\n")[1].split("```")[0]
    lines = [f"texts = {texts}" if l.startswith("texts = ") else l for l in code.splitlines()]
    scope = {}
    try:
        exec("\\n".join(lines).replace("this-folder", folder), scope)
        found[folder] = scope["logits"].tolist()
    except Exception:
        found[folder] = traceback.format_exc()
assert not [name for name in sys.modules if name.startswith("atlas.")]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def asked(backbone_of, tools, tmp_path_factory):
    """What the run's model and the one loaded alone say, by kind."""
    place, ours = tmp_path_factory.mktemp("alone"), {}
    for kind in KINDS:
        backbone = backbone_of(kind)
        layers, head = tools.layers(backbone), tools.head(backbone, 3)
        about = {"backbone": backbone, "task": tools.classify, "limits": Limits(24, 8)}
        export_adapter(place / kind, **about, layers=layers, alpha=6.0, head=head, card={})
        complete_export(place / kind, backbone=backbone, adapter=load_adapter(place / kind))
        inputs = backbone.tokenize(tools.classify, [Example(TEXTS, 0)], 24)
        with tools.adapted(backbone, layers, 6.0), torch.no_grad():
            ours[kind] = tools.logits(backbone, inputs, head)[0]
    words = [sys.executable, "-c", PROGRAM, repr(list(TEXTS)), *(str(place / k) for k in KINDS)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout.splitlines()[-1])
    return ours, {kind: theirs[str(place / kind)] for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_the_code_on_the_card_gives_the_same_logits(kind, asked):
    ours, theirs = asked
    assert isinstance(theirs[kind], list), theirs[kind]
    torch.testing.assert_close(torch.tensor(theirs[kind]), ours[kind], atol=1e-5, rtol=1e-5)
