"""Causal clients: loss on the answer only, choices ranked, answers generated."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from atlas.build.federation import assemble
from atlas.errors import InputError
from atlas.federation.adapters.adapter import Adapter
from atlas.federation.batching import forward as answering
from atlas.federation.batching.forward import run, stack_cohorts
from atlas.federation.batching.store import ExampleStore
from atlas.federation.clients import ClientData, Example, Task
from atlas.federation.exchange.message import decode, encode
from atlas.federation.rounds import run_round
from atlas.federation.training.evaluate import (
    Limits,
    chance_score,
    choice_examples,
    generate_answers,
    generate_rows,
    majority_scores,
    predict_rows,
    score_answers,
    score_choices,
)
from tests.helpers import make_client, make_config

ECHO = Task("echo", "causal", ("q",), "a", metric="exact_match", prompt="Q: {q} A:")
PICK = Task("pick", "causal", ("q",), "label", metric="accuracy", prompt="Q: {q} A:", choices="c")


def free(seed, count):
    draw = np.random.default_rng(seed)
    words = ["ab", "cd", "ef"]
    return tuple(
        Example((f"Q: {w} A:",), -1, answer=f" {w}")
        for w in (words[i] for i in draw.integers(0, 3, count))
    )


def chosen(seed, count):
    draw = np.random.default_rng(seed)
    choices = (" yes", " no", " maybe")
    return tuple(
        Example(("Q: what A:",), i, answer=choices[i], choices=choices)
        for i in draw.integers(0, 3, count).tolist()
    )


def client(name, task, make, seed):
    return ClientData(name, task, make(seed, 8), make(seed + 1, 4), make(seed + 2, 6), task.name)


def causal_config(**changes):
    backbone = {"name": "tiny-causal", "max_length": 40, "max_new_tokens": 4}
    return make_config(backbone=backbone, train={"lr": 0.03}, **changes)


def test_causal_and_classification_clients_share_one_backbone():
    clients = [
        client("e1", ECHO, free, 1),
        client("e2", ECHO, free, 4),
        client("p1", PICK, chosen, 7),
        make_client("s1", seed=3),
    ]
    federation = assemble(causal_config(rounds=4), clients)
    assert [sorted(group.holders) for group in federation.engine.groups] == [
        ["e1", "e2", "p1"],
        ["s1"],
    ]
    assert list(federation.state.cohorts) == ["tiny-causal"]
    losses = []
    for _ in range(4):
        run_round(
            federation.plan,
            federation.state,
            federation.engine,
            lambda event, fields: losses.append(fields["loss"]) if event == "fitted" else None,
        )
    assert not federation.state.failures
    assert not federation.state.refused
    assert np.mean(losses[-4:]) < np.mean(losses[:4])
    request = encode({}, {"split": "test", "arm": "final"})
    replies = federation.engine.ask("evaluate", dict.fromkeys(federation.holders, request))
    scores = {c: decode(r).facts["members"][c] for c, r in replies.items()}
    assert set(scores["e1"]) == {"loss", "exact_match", "token_f1", "accuracy", "score"}
    assert set(scores["p1"]) == {"loss", "accuracy", "score"}
    assert scores["s1"]["score"] == scores["s1"]["accuracy"]
    assert all(np.isfinite(list(found.values())).all() for found in scores.values())
    # Causal clients have no head of their own; their body was mixed with the classifier's.
    held = federation.engine.groups[0].arms["held"].take("e1")
    assert not [name for name in held if name.startswith("head/")]


def test_only_answer_tokens_carry_loss():
    federation = assemble(causal_config(), [client("e1", ECHO, free, 1)])
    group = federation.engine.groups[0]
    batch = group.store.batch([group.store.rows("e1/train")[:1]])
    example = federation.holders["e1"].data.train[0]
    carried = int((batch.targets >= 0).sum())
    tokenizer = group.model.backbone.tokenizer
    answer = tokenizer(example.answer, add_special_tokens=False)["input_ids"]
    assert carried == len(answer) + 1  # and the end of the text


def test_choices_are_ranked_by_loss_per_token():
    examples = chosen(0, 2)
    losses = np.array([3.0, 1.0, 2.0, 0.1, 5.0, 5.0])
    wanted = np.mean([examples[0].label == 1, examples[1].label == 0])
    assert score_choices(losses, examples)["accuracy"] == wanted


def test_ends_are_left_out_of_a_copy():
    group = assemble(causal_config(), [client("p1", PICK, chosen, 7)]).engine.groups[0]
    whole, rows = group.store, group.store.rows("p1/train")
    some = group.holders["p1"].data.train
    bare = ExampleStore(group.model, {"all": (PICK, some)}, 40, ends=False)
    assert (bare.counts_of(bare.rows("all")) == whole.counts_of(rows) - 1).all()
    assert (bare.lengths_of(bare.rows("all")) == whole.lengths_of(rows) - 1).all()
    with torch.no_grad():
        stack = stack_cohorts([group.arms["held"]])
        bare_losses, _ = predict_rows(bare, stack, [bare.rows("all")])
        found = run(group.model, stack, whole.batch([rows]))
    assert (bare_losses[0] * bare.counts_of(bare.rows("all")) < found.losses[0].numpy()).all()


def test_clients_are_ranked_and_written_together_as_each_alone():
    clients = [
        client(f"c{i}", (ECHO, PICK)[i % 2], (free, chosen)[i % 2], 3 * i) for i in range(30)
    ]
    clients[4] = replace(clients[4], test=clients[4].test[:2])  # unequal numbers of prompts
    federation = assemble(causal_config(adapter={"rank": 3}), clients)
    group = federation.engine.groups[0]
    cohort = group.arms["held"]
    noisy = {}
    for name in cohort.clients:
        draw = torch.Generator().manual_seed(int(name[1:]))
        noisy[name] = Adapter(
            {k: v + torch.randn(v.shape, generator=draw) for k, v in cohort.take(name).items()}
        )
    cohort = cohort.put(noisy)
    stack, seen = stack_cohorts([cohort]), []
    parts = [(c.task, c.test) for c in sorted(clients, key=lambda c: c.id)]
    together = score_answers(
        group.model, stack, parts, group.limits, written=lambda *step: seen.append(step)
    )
    total = sum(len(some) for task, some in parts if task is ECHO)
    assert seen[-1] == (total, total) and len(seen) < total / 4
    for name, part, found in zip(cohort.clients, parts, together, strict=True):
        single = stack_cohorts([cohort.select([name])])
        assert score_answers(group.model, single, [part], group.limits) == [found]
    prompts = [[example.texts[0] for example in some] for _, some in parts]
    ours = generate_rows(group.model, stack, prompts, group.limits)
    rows = zip(cohort.clients, prompts, strict=True)
    alone = [
        generate_answers(group.model, stack_cohorts([cohort.select([name])]), own, group.limits)
        for name, own in rows
    ]
    assert ours == alone and len({tuple(own) for own in ours}) > 5


def test_choices_of_one_token_share_their_text():
    task = Task("say", "causal", ("q",), "label", labels=("a", "b", "c"), prompt="{q}:")
    some = [Example((f"q{i}:",), i % 3, "abc"[i % 3], ("a", "b", "c")) for i in range(5)]
    federation = assemble(causal_config(), [client("p1", PICK, chosen, 7)])
    model = federation.engine.groups[0].model
    texts = ExampleStore(model, {"all": (task, choice_examples(some))}, 40, ends=False)
    for first in range(0, 15, 3):
        ids = [texts.ids[texts.offsets[i] : texts.offsets[i] + texts.lengths[i]] for i in range(15)]
        assert torch.equal(ids[first], ids[first + 1]) and torch.equal(ids[first], ids[first + 2])
    # The least loss is the largest logit at the place before the answer.
    tokenizer, backbone = model.backbone.tokenizer, model.backbone.model
    stack = stack_cohorts([federation.engine.groups[0].arms["held"]])
    losses = predict_rows(texts, stack, [texts.rows("all")])[0][0].reshape(5, 3)
    for example, own in zip(some, losses, strict=True):
        with torch.no_grad():
            told = backbone(**tokenizer(example.texts[0], return_tensors="pt")).logits[0, -1]
        wanted = [-told.log_softmax(-1)[tokenizer.convert_tokens_to_ids(c)] for c in "abc"]
        assert own == pytest.approx([float(w) for w in wanted], abs=1e-4)
    assert chance_score(task, some) == pytest.approx(1 / 3)
    assert chance_score(ECHO, free(1, 3)) is None


def test_majority_of_free_answers_and_choices():
    examples = free(1, 9)
    answers = [example.answer for example in examples]
    common = max(set(answers), key=answers.count)
    assert majority_scores(ECHO, examples, examples)["score"] == answers.count(common) / 9
    some = chosen(3, 9)
    labels = [example.label for example in some]
    top = max(np.bincount(labels)) / 9
    assert majority_scores(PICK, some, some)["score"] == pytest.approx(top)


def test_a_causal_task_on_an_encoder_is_refused():
    with pytest.raises(InputError, match="client e1: task 'echo' is causal, but backbone 'tiny'"):
        assemble(make_config(), [client("e1", ECHO, free, 1)])


def test_generation_sees_the_adapter():
    federation = assemble(causal_config(), [client("e1", ECHO, free, 1)])
    group = federation.engine.groups[0]
    stack = stack_cohorts([group.arms["held"]])
    plain = generate_answers(group.model, stack, ["Q: ab A:"], group.limits)
    loud = {
        name: torch.randn(value.shape, generator=torch.Generator().manual_seed(2)) * 2
        for name, value in stack.tensors.items()
    }
    changed = generate_answers(
        group.model, stack.__class__(loud, stack.scales, stack.labels), ["Q: ab A:"], group.limits
    )
    assert plain == group.model.backbone.generate(["Q: ab A:"], 4)
    assert changed != plain


def test_reading_answers_alone_changes_no_loss(monkeypatch):
    clients = [client("e1", ECHO, free, 1), client("e2", ECHO, free, 5)]
    found = {}
    for share in (0.0, 1.0):
        monkeypatch.setattr(answering, "SPARSE", share)
        federation = assemble(causal_config(), clients)
        run_round(federation.plan, federation.state, federation.engine, lambda *event: None)
        (cohort,) = federation.state.cohorts.values()
        found[share] = cohort.tensors
    for name, value in found[0.0].items():
        assert torch.allclose(value, found[1.0][name], atol=1e-5), name
    called = []
    backbone = federation.engine.groups[0].model.backbone
    places = backbone.packed_places
    monkeypatch.setattr(
        backbone, "packed_places", lambda *given: called.append(given) or places(*given)
    )
    run_round(federation.plan, federation.state, federation.engine, lambda *event: None)
    assert called


def test_a_task_may_want_shorter_answers_than_the_settings(monkeypatch):
    assert Limits(32, 8).of(ECHO) == Limits(32, 8)
    assert Limits(32, 8).of(replace(ECHO, max_new_tokens=3)) == Limits(32, 3)
    assert Limits(32, 8).of(replace(ECHO, max_new_tokens=30)) == Limits(32, 8)
    group = assemble(causal_config(), [client("e1", ECHO, free, 1)]).engine.groups[0]
    seen = []
    monkeypatch.setattr(
        group.model.backbone,
        "generate",
        lambda some, new, kept: seen.append((new, kept)) or [""] * len(some),
    )
    short = replace(ECHO, max_new_tokens=2)
    stack = stack_cohorts([group.arms["held"]])
    score_answers(group.model, stack, [(short, free(1, 3))], Limits(20, 4))
    assert seen == [(2, 20)]
