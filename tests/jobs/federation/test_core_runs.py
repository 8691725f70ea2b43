"""Whole runs with cores and gates: resumed to the same bits, exported, asked, and told of."""

import json
import shutil

import jsonschema
import pytest
import torch

from atlas.backbones.load import load_backbone
from atlas.errors import InputError
from atlas.federation.batching.forward import run, stack_cohorts
from atlas.federation.clients import Example
from atlas.jobs.federation.answer import export_client, export_merged, open_client, predict_texts
from atlas.jobs.federation.run import FederationJob
from atlas.jobs.runner import resume_run, start_run
from atlas.runs.events import read_events
from atlas.runs.folder import schema
from tests.helpers import make_config, stop_after, wide_tiny

DATA = {"train": 16, "validation": 8, "test": 12, "clients_per_task": 2, "tasks": ["sentiment"]}
TEXTS = ["The plot was thin, but the music saved it.", "Nothing worked.", "We went home smiling."]
CLIENT = "sentiment-1"


def settings(backbone, **changes):
    base = {
        "strategy": "mosaic",
        "rounds": 3,
        "data": DATA,
        "backbone": {"name": backbone, "max_length": 32},
        "adapter": {"rank": 3, "blocks": 2},
        "train": {"lr": 0.1, "gate_lr": 0.3, "keep_moments": True},
    }
    return make_config(**{**base, **changes})


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    return wide_tiny(tmp_path_factory.mktemp("models") / "wide")


@pytest.fixture(scope="module")
def finished(wide, tmp_path_factory):
    return start_run(settings(wide), tmp_path_factory.mktemp("runs"))


def held_logits(folder_run, config):
    """What the run's own client answers, from its last saved round."""
    from atlas.runs.checkpoint import latest_round

    job = FederationJob.open(config, None)
    job.restore(folder_run.folder, latest_round(folder_run.folder.rounds))
    group = job.federation.engine.groups[0]
    task = group.holders[CLIENT].data.task
    store = group.new_store({"all": (task, [Example((text,), 0) for text in TEXTS])})
    stack = stack_cohorts([group.arms["held"].select([CLIENT])])
    with torch.no_grad():
        return run(group.model, stack, store.batch([store.rows("all")])).logits[0]


def theirs(model, tokenizer):
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=32, return_tensors="pt")
    with torch.no_grad():
        return model.eval()(**batch).logits


def test_an_export_is_plain_peft_with_biases_and_the_same_logits(finished, wide, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    export_client(finished.folder, CLIENT, tmp_path / "mine")
    told = json.loads((tmp_path / "mine" / "adapter_config.json").read_text())
    assert told["lora_bias"] is True
    assert told["r"] == 3
    base = AutoModelForSequenceClassification.from_pretrained(wide, num_labels=2)
    model = PeftModel.from_pretrained(base, str(tmp_path / "mine"))
    tokenizer = AutoTokenizer.from_pretrained(wide)
    ours = held_logits(finished, settings(wide))
    assert torch.allclose(theirs(model, tokenizer), ours, atol=1e-5, rtol=0)
    with model.disable_adapter():
        assert not torch.allclose(theirs(model, tokenizer), ours, atol=1e-3)
    chosen = open_client(finished.folder, CLIENT)
    store = chosen.store([Example((text,), 0) for text in TEXTS])
    with torch.no_grad():
        asked = run(chosen.model, chosen.stack, store.batch([store.rows("all")])).logits[0]
    assert torch.allclose(asked, ours, atol=1e-5, rtol=0)
    assert predict_texts(finished.folder, CLIENT, TEXTS[:1])["answer"] in ("negative", "positive")


def test_a_merged_model_has_the_biases_in_its_own(finished, wide, tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    export_merged(finished.folder, CLIENT, tmp_path / "whole")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "whole")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "whole")
    ours = held_logits(finished, settings(wide))
    assert torch.allclose(theirs(model, tokenizer), ours, atol=5e-5, rtol=0)


def test_a_merged_llama_has_its_biases_switched_on(tmp_path):
    from transformers import AutoModelForCausalLM

    from atlas.backbones.export import export_adapter, load_adapter, merge_adapter
    from atlas.federation.clients import Task
    from atlas.federation.training.evaluate import Limits

    backbone = load_backbone("tiny-causal")
    task = Task("ask", "causal", ("question",), "answer", metric="exact_match")
    draw = torch.Generator().manual_seed(0)
    layers, biases = {}, {}
    for module in backbone.select(2, ["query", "value"]):
        linear = backbone.linears(2)[module]
        layers[module] = (
            torch.randn(2, linear.in_features, generator=draw) * 0.3,
            torch.randn(linear.out_features, 2, generator=draw) * 0.3,
        )
        biases[module] = torch.randn(linear.out_features, generator=draw)
    export_adapter(
        tmp_path / "adapter",
        backbone=backbone,
        task=task,
        limits=Limits(32, 8),
        layers=layers,
        alpha=4.0,
        head={},
        card={},
        biases=biases,
    )
    adapter = load_adapter(tmp_path / "adapter")
    merge_adapter(tmp_path / "whole", backbone=backbone, adapter=adapter)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "whole").eval()
    assert model.config.attention_bias is True
    x = torch.randn(5, 32, generator=draw)
    for module, (a, b) in layers.items():
        base = backbone.linears(2)[module]
        wanted = base(x) + 2.0 * (x @ a.T @ b.T + biases[module])
        found = model.model.get_submodule(module)(x)
        assert torch.allclose(found, wanted, atol=1e-5)
    untouched = model.model.layers[0].self_attn.q_proj
    assert not untouched.bias.any()


def test_resumed_runs_end_with_the_same_bits(wide, tmp_path, finished):
    stopped = start_run(settings(wide), tmp_path, stop_after(2))
    assert stopped.summary is None
    resumed = resume_run(stopped.folder.path)
    assert resumed.summary["adapters_sha256"] == finished.summary["adapters_sha256"]


def test_the_server_on_disk_gives_the_same_bits(wide, tmp_path, finished):
    on_disk = start_run(settings(wide, server={"state": "disk"}), tmp_path)
    assert on_disk.summary["adapters_sha256"] == finished.summary["adapters_sha256"]


def test_betas_and_schema(finished):
    jsonschema.validate(finished.summary, schema())
    fitted = [e for e in read_events(finished.folder.events) if e["event"] == "fitted"]
    assert all(len(entry["beta"]) == 4 for entry in fitted)
    assert any(0 < beta < 1 for entry in fitted if entry["round"] == 3 for beta in entry["beta"])


def test_a_gate_over_tokens_has_no_export_and_says_why(wide, tmp_path):
    adapter = {"rank": 3, "blocks": 2, "gate": "input"}
    config = settings(wide, rounds=2, adapter=adapter, train={"lr": 0.1, "gate_lr": 0.01})
    made = start_run(config, tmp_path)
    assert made.summary["adapters_sha256"]
    assert not made.folder.adapters.exists()
    with pytest.raises(InputError, match="token by token"):
        export_client(made.folder, CLIENT, tmp_path / "mine")
    fitted = [e for e in read_events(made.folder.events) if e["event"] == "fitted"]
    assert all(0 < beta < 1 for e in fitted if e["round"] == 2 for beta in e["beta"])
    shutil.rmtree(made.folder.path)
