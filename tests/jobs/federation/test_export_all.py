"""All clients of a run in one folder: one plain PEFT process answers as each of them would."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import atlas
from atlas.backbones.adapter_folder import Collected, one_rank
from atlas.backbones.peft_folder import ExportedAdapter
from atlas.cli.clients import _exported
from atlas.errors import InputError
from atlas.federation.clients import Example
from atlas.jobs.answer import Asked, export_clients
from atlas.jobs.federation.answer import open_client, predict_texts
from tests.helpers import wide_tiny
from tests.jobs.federation.test_exports import build_tiny_causal, saved_model

TEXTS = {
    1: [["The plot was thin, but the music saved it."], ["Nothing worked."]],
    2: [["a warm day", "a day that is warm"], ["far", "near"]],
}
SMALL = {"threads": 1, "alone": False, "keep_best": False, "train": {"lr": 0.02, "epochs": 4}}
ALONE = """
import json, sys
sys.modules["atlas"] = None
page = open(sys.argv[1] + "/README.md").read()
found = {}
for part in page.split("```python\\n")[1:]:
    scope = {}
    exec(part.split("```")[0].replace("this-folder", sys.argv[1]), scope)
    for client, texts in json.loads(sys.argv[2]).items():
        if client in scope["clients"]:
            told = [scope["ask"](client, *some) for some in texts]
            found[client] = [t if isinstance(t, str) else t[1].tolist() for t in told]
assert not [name for name in sys.modules if name.startswith("atlas.")]
print(json.dumps(found))
"""


def asked_alone(folder, texts):
    """What the page's own code answers, in one process that cannot import Atlas."""
    words = [sys.executable, "-c", ALONE, str(folder), json.dumps(texts)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def our_logits(folder, client, texts):
    chosen = open_client(folder, client)
    store = chosen.store([Example(tuple(some), 0) for some in texts])
    from atlas.federation.batching.forward import run

    with torch.no_grad():
        logits = run(chosen.model, chosen.stack, store.batch([store.rows("all")])).logits[0]
    return logits[:, : len(chosen.task.labels)]


@pytest.fixture(scope="module")
def nine(tmp_path_factory):
    place = tmp_path_factory.mktemp("nine")
    ranks = {"sentiment-1": [1, 4], "order-2": [5, 2], "paraphrase-3": [3, 3]}
    adapter = {"blocks": 1, "rank": 4, "ranks": ranks}
    run = atlas.run(
        "demo",
        out=place,
        rounds=1,
        strategy="fedavg",
        ranks={"method": "fixed"},
        adapter=adapter,
        backbone={"name": wide_tiny(place / "model")},
        data={"train": 16, "validation": 8, "test": 8},
        **SMALL,
    )
    run.export_all(place / "served")
    return run, place / "served"


def test_nine_clients_in_one_plain_peft_process(nine):
    run, served = nine
    assert len(run.clients) == 9
    texts = {name: TEXTS[2 if name.startswith("paraphrase") else 1] for name in run.clients}
    for client, logits in asked_alone(served, texts).items():
        ours = our_logits(run.folder, client, texts[client])
        assert torch.allclose(torch.tensor(logits), ours, atol=1e-5, rtol=0), client
        texts.pop(client)
    assert not texts, "all of them were asked"


def test_one_rank_each_and_scaled_for_it(nine):
    run, served = nine
    for client in run.clients:
        config = json.loads((served / client / "adapter_config.json").read_text())
        assert not config["rank_pattern"], "servers know one rank only"
    config = json.loads((served / "order-2" / "adapter_config.json").read_text())
    own = json.loads((run.folder.adapters / "order-2" / "adapter_config.json").read_text())
    assert config["r"] == 5 and own["rank_pattern"]
    a, b = torch.randn(2, 7, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64)
    constant = {"m": torch.randn(6, dtype=torch.float64)}
    before = ExportedAdapter({"m": (a, b)}, 16.0, {}, {}, constant)
    after = one_rank(before, 8)
    wide, tall = after.layers["m"]
    assert wide.shape == (8, 7) and tall.shape == (6, 8)
    assert torch.allclose(16 / 8 * tall @ wide, 16 / 2 * b @ a)
    assert torch.allclose(16 / 8 * after.biases["m"], 16 / 2 * constant["m"])
    assert not torch.allclose(tall[:, :2] @ wide[:2], b @ a), "without the scale it would differ"


def test_classifiers_are_for_peft_and_told_why(nine):
    run, served = nine
    listed = {about["client"]: about for about in json.loads((served / "clients.json").read_text())}
    assert listed["order-1"]["servers"] == ["peft"]
    assert "classification head" in listed["order-1"]["only_peft_because"]
    page = (served / "README.md").read_text()
    assert "Not for vLLM and LoRAX" in page and "vllm serve" not in page
    assert str(run.path) not in page


def own_run(place, model, task_of, rows_of, **adapter):
    """A run of clients with files of their own on a folder with a model."""
    clients = {client: rows_of(client) for client in task_of}
    tasks = {task_of[c]: described for c, (described, _) in clients.items()}
    return atlas.federate(
        {client: rows for client, (_, rows) in clients.items()},
        task=task_of,
        tasks=tasks,
        backbone={"name": str(model), "max_length": 24, "max_new_tokens": 4},
        strategy="local",
        out=place,
        rounds=1,
        adapter={"blocks": 2, "rank": 3, **adapter},
        **SMALL,
    )


def test_heads_of_different_sizes_share_one_model(tmp_path):
    def rows_of(client):
        labels = ["no", "yes"] if client == "a" else ["small", "middle", "large"]
        rows = [
            {"text": f"{labels[i % len(labels)]} {i}", "label": i % len(labels)} for i in range(30)
        ]
        return {"text": ["text"], "labels": labels}, rows

    model = wide_tiny(tmp_path / "model")
    run = own_run(tmp_path, model, {"a": "two", "b": "three"}, rows_of)
    run.export_all(tmp_path / "served")
    texts = {"a": TEXTS[1], "b": TEXTS[1]}
    for client, logits in asked_alone(tmp_path / "served", texts).items():
        ours = our_logits(run.folder, client, TEXTS[1])
        assert torch.allclose(torch.tensor(logits), ours, atol=1e-5, rtol=0)
        assert ours.shape[1] == (2 if client == "a" else 3)


def test_causal_clients_are_for_every_server(tmp_path):
    def rows_of(client):
        task = {"kind": "causal", "text": ["question"], "label": "answer"}
        task |= {"metric": "exact_match", "prompt": f"{client}: {{question}} A:"}
        return task, [{"question": f"how much is {i}?", "answer": "yes"} for i in range(30)]

    model = saved_model(tmp_path / "model", build_tiny_causal)
    ranks = {"a": [1, 2, 3, 4], "b": [9, 2, 2, 2]}
    run = own_run(tmp_path, model, {"a": "first", "b": "second"}, rows_of, ranks=ranks)
    told = export_clients(Asked(run.path.name, tmp_path), tmp_path / "served")
    assert told["clients"] == ["a", "b"] and told["only_peft"] == []
    texts = {client: [["how much is 7?"]] for client in "ab"}
    for client, (answer,) in asked_alone(tmp_path / "served", texts).items():
        ours = predict_texts(run.folder, client, texts[client][0])
        assert answer == ours["answer"] != ""
    page = (tmp_path / "served" / "README.md").read_text()
    assert "--max-lora-rank 16 " in page and "--lora-modules a=./a b=./b" in page
    assert "adapter_id" in page and "--max-loras 2 --max-cpu-loras 2 " in page
    assert "they were not run" in page
    assert told["max_lora_rank"] == 16 and "--max-lora-rank" not in _exported(told)


def test_what_vllm_would_refuse_is_told_at_export(nine, tmp_path):
    run, _ = nine
    told = run.export_all(tmp_path / "served")
    assert told["max_lora_rank"] is None and set(told["refused"]) == set(told["only_peft"])
    words = _exported(told)
    assert "modules_to_save" in words and "and 4 more; each because" in words
    wide = {**told, "refused": {}, "max_lora_rank": 32}
    assert "vLLM must be started with --max-lora-rank 32" in _exported(wide)


def test_a_damaged_client_is_left_out_and_named(nine, tmp_path):
    run, _ = nine
    weights = run.folder.adapters / "order-1" / "adapter_model.safetensors"
    kept = weights.read_bytes()
    try:
        weights.write_bytes(kept[:50])
        told = run.export_all(tmp_path / "served")
    finally:
        weights.write_bytes(kept)
    assert "cannot be read" in told["left_out"]["order-1"] and len(told["clients"]) == 8
    assert "## Left out" in (tmp_path / "served" / "README.md").read_text()
    with pytest.raises(InputError, match="exists already"):
        run.export_all(tmp_path / "served")


def test_what_all_does_not_go_with_is_told(nine, tmp_path):
    run, _ = nine
    with pytest.raises(InputError, match="--client order-1: --all exports every client"):
        export_clients(Asked(str(run.path), tmp_path, "order-1"), tmp_path / "x")
    with pytest.raises(InputError, match="--merged"):
        export_clients(Asked(str(run.path), tmp_path), tmp_path / "x", merged=True)


def test_cores_are_for_peft_and_told_why():
    factors = {"m": (torch.ones(2, 3), torch.ones(3, 2))}
    task = {"name": "t", "kind": "causal", "text": ["text"], "label": "answer"}
    plain = ExportedAdapter(factors, 4.0, {}, {"task": task})
    core = plain._replace(biases={"m": torch.ones(3)})
    base = SimpleNamespace(quant=None, name="b")
    assert Collected("a", base, plain, None).refused() == ""
    assert "PQ core adds a constant" in Collected("a", base, core, None).refused()
