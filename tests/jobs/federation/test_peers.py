"""Whole runs of the peers for unequal ranks: summaries, resumes, exports and studies."""

import csv
import json

import jsonschema
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForSequenceClassification, BertConfig, BertModel

from atlas.backbones.load import build_tiny
from atlas.build.federation import build_federation
from atlas.config.load import dump_config
from atlas.federation.batching.forward import run, stack_cohorts
from atlas.federation.clients import Example
from atlas.federation.exchange.message import encode
from atlas.federation.rounds import run_round
from atlas.federation.training.evaluate import score_labels
from atlas.jobs.federation.answer import evaluate_file, open_client, predict_texts
from atlas.jobs.federation.finish import finish
from atlas.jobs.runner import resume_run, start_run
from atlas.jobs.study.cases import plan_study
from atlas.jobs.study.compare import run_study
from atlas.jobs.study.outcomes import mean_error
from atlas.runs.events import read_events
from atlas.runs.folder import RunFolder, schema, write_text_atomic
from tests.jobs.federation.test_runs import FORK, interrupt_after_first_round, small
from tests.jobs.study.test_compare import TINY

PEERS = ["hetlora", "flexlora", "flora", "ffa"]
RANKS = {"ranks": {"order-1": [1, 2, 3, 4], "sentiment-1": 5}}
TEXTS = ["It was fine, and then some.", "Nothing worked.", "We went home smiling."]


@pytest.mark.parametrize("strategy", PEERS)
def test_a_whole_run_with_unequal_ranks(strategy, tmp_path):
    finished = start_run(small(strategy=strategy, adapter=RANKS, alone=False), tmp_path)
    jsonschema.validate(finished.summary, schema())
    assert finished.summary["ranks"]["order-1"] == [1, 2, 3, 4]
    assert not finished.summary["failures"] and not finished.summary["refused"]
    errors = [e["error"] for e in read_events(finished.folder.events) if e["event"] == "mixed"]
    assert len(errors) == 2
    exact = strategy == "flora"
    assert all((error["worst"] < 1e-6) == exact for error in errors)
    answer = predict_texts(finished.folder, "sentiment-1", TEXTS[:1])
    assert sum(answer["probabilities"].values()) == pytest.approx(1.0)


@pytest.mark.parametrize("strategy", ["flora", "ffa"])
def test_a_stopped_run_goes_on_to_the_same_bits(strategy, tmp_path):
    config = small(strategy=strategy, adapter=RANKS, rounds=3)
    whole = start_run(config, tmp_path / "whole")
    process = FORK.Process(target=interrupt_after_first_round, args=(config, tmp_path))
    process.start()
    process.join(timeout=60)
    assert process.exitcode == 0
    again = resume_run(tmp_path / "small").summary
    assert again["adapters_sha256"] == whole.summary["adapters_sha256"]
    assert again["score"] == whole.summary["score"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A small BERT in a folder of its own, which transformers can load."""
    folder = tmp_path_factory.mktemp("model")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = BertModel(
            BertConfig(
                **sizes, vocab_size=261, intermediate_size=24, max_position_embeddings=64,
                initializer_range=0.3,
            )
        )  # fmt: skip
    model.save_pretrained(folder)
    build_tiny(torch.float32)[1].save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def merged(checkpoint, tmp_path_factory):
    """A finished run of flora: its folder, and the federation with its dense changes."""
    config = small(
        strategy="flora",
        backbone={"name": str(checkpoint), "max_length": 32},
        adapter=RANKS,
        alone=False,
        data={"train": 16, "validation": 8, "test": 12, "clients_per_task": 1},
    )
    folder = RunFolder.create(tmp_path_factory.mktemp("runs"), "flora")
    write_text_atomic(folder.config, dump_config(config))
    federation = build_federation(config)
    for _ in range(2):
        run_round(federation.plan, federation.state, federation.engine, lambda *_: None)
    # One more fit, so that there is an adapter beside the dense change.
    request = encode({}, {"round": 2})
    federation.engine.ask("fit", dict.fromkeys(federation.holders, request))
    summary = finish(federation, folder, lambda *_: None, 0.0)
    return folder, federation, summary


def examples_for(task):
    return [Example((text,) * len(task.text), 0) for text in TEXTS]


def dense_logits(federation, client):
    """The client's answers with its dense change, as it is scored."""
    group = federation.engine.groups[0]
    task = group.holders[client].data.task
    store = group.new_store({"all": (task, examples_for(task))})
    stack = stack_cohorts([group.arms["held"].select([client])])
    with torch.no_grad():
        logits = run(group.model, stack, store.batch([store.rows("all")])).logits[0]
    return logits[:, : len(task.labels)]


def plain_logits(model, inputs):
    with torch.no_grad():
        return model(
            input_ids=inputs.ids, attention_mask=inputs.mask.long(), token_type_ids=inputs.types
        ).logits


def test_plain_peft_gives_the_logits_of_the_dense_change(merged, checkpoint):
    folder, federation, _ = merged
    for client, holder in federation.holders.items():
        ours, task = dense_logits(federation, client), holder.data.task
        inputs = federation.models[client].backbone.tokenize(task, examples_for(task), 32)
        base = AutoModelForSequenceClassification.from_pretrained(
            checkpoint, num_labels=len(task.labels)
        )
        model = PeftModel.from_pretrained(base, folder.adapters / client).eval()
        theirs = plain_logits(model, inputs)
        assert torch.allclose(ours, theirs, atol=1e-5, rtol=0)
        with model.disable_adapter():
            assert not torch.allclose(plain_logits(model, inputs), theirs, atol=1e-3)


def test_predict_and_eval_count_the_dense_change(merged, tmp_path):
    folder, federation, summary = merged
    ours = dense_logits(federation, "sentiment-1")
    answer = predict_texts(folder, "sentiment-1", TEXTS[:1])
    shares = ours[0].softmax(-1).tolist()
    assert list(answer["probabilities"].values()) == pytest.approx(shares, abs=1e-5)
    group = federation.engine.groups[0]
    data = group.holders["sentiment-1"].data
    file = tmp_path / "test.jsonl"
    records = [
        dict(zip(data.task.text, example.texts, strict=True)) | {data.task.label: example.label}
        for example in data.test
    ]
    file.write_text("\n".join(json.dumps(record) for record in records))
    scores = evaluate_file(folder, "sentiment-1", file)
    stack = stack_cohorts([group.arms["held"].select(["sentiment-1"])])
    store = group.test_store
    (wanted,) = score_labels(store, stack, [store.rows("sentiment-1")], [data.task])
    assert scores["loss"] == pytest.approx(wanted["loss"], abs=1e-5)
    assert summary["score"]["clients"]["sentiment-1"] == pytest.approx(wanted["score"])


def test_exports_have_the_rank_of_the_whole_change(merged):
    folder, federation, _ = merged
    cohort = federation.engine.groups[0].arms["held"]
    for client in federation.holders:
        opened = open_client(folder, client)
        for i, module in enumerate(opened.model.layout.modules):
            a = opened.stack.tensors[f"lora_a/{module}"]
            delta = cohort.deltas[client][module].double()
            low, layer = cohort.select([client]), cohort.layout.modules.index(module)
            own = low.layer(layer)
            whole = delta + float(own.scales[0]) * (own.b[0].double() @ own.a[0].double())
            assert a.shape[1] == int((torch.linalg.svdvals(whole) > 1e-5).sum())
            found = float(opened.stack.scales[i][0]) * (
                opened.stack.tensors[f"lora_b/{module}"][0].double() @ a[0].double()
            )
            assert torch.allclose(found, whole, atol=1e-6)


def test_studies_carry_the_error(tmp_path):
    study = plan_study("demo", [*TINY, "strategy=local,fedavg,flora", "seed=0"])
    result = run_study(study, tmp_path)
    local, averaged, stacked = (row["error"] for row in result["rows"])
    assert local is None
    assert averaged > 1e-2 and stacked < 1e-6
    folder = tmp_path / study.name
    events = read_events(next(folder.glob("fedavg-*/*/events.jsonl")))
    told = [event["error"]["mean"] for event in events if event["event"] == "mixed"]
    assert averaged == pytest.approx(sum(told) / len(told)) == mean_error(events)
    written = [row["error"] for row in csv.DictReader((folder / "compare.csv").open())]
    assert written[0] == "" and float(written[1]) == averaged
    assert mean_error([{"event": "mixed"}, {"event": "mixed", "error": None}]) is None
