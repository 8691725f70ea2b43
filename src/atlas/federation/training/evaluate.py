"""Scores of clients' models on their own examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from atlas.federation.adapters.changes import changes_of
from atlas.federation.adapters.lora_hooks import LoraChange
from atlas.federation.batching.forward import Model, Stack, adapters_active, run
from atlas.federation.batching.store import ExampleStore, Rows
from atlas.federation.clients import Example, Task
from atlas.ops.metrics import class_scores, scored_part, text_scores
from atlas.runs.cores import cores_for, shared_first

EVALUATION_BATCH = 64
GENERATION_BATCH = 16
Scores = dict[str, float]
Predicted = dict[int, tuple[np.ndarray, np.ndarray]]
"""Losses and labels of some examples, by row of a stack."""


@dataclass(frozen=True)
class Limits:
    """How much text is kept and generated."""

    max_length: int
    max_new_tokens: int


def predict_rows(
    store: ExampleStore, stack: Stack, picks: Sequence[Rows]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Mean loss per example and predicted label per example, for every row of a stack."""
    passes = list(_passes(store, picks))
    tokens = [float(sum(store.lengths_of(part).sum() for part in some.values())) for some in passes]
    predict = partial(_predict, stack)
    count = shared_first(tokens, cores_for(stack.labels.device))
    found = store.on_cores(predict, passes[:count]) if count else []
    found += [predict(store, parts) for parts in passes[count:]]
    losses: list[list[np.ndarray]] = [[] for _ in picks]
    labels: list[list[np.ndarray]] = [[] for _ in picks]
    for result in found:
        for row, (loss, label) in result.items():
            losses[row].append(loss)
            labels[row].append(label)
    return [np.concatenate(row) for row in losses], [np.concatenate(row) for row in labels]


def _passes(store: ExampleStore, picks: Sequence[Rows]) -> Iterator[dict[int, Rows]]:
    """What is run together: examples by row, those of one row in their order from pass to pass."""
    for start in range(0, max(len(pick) for pick in picks), EVALUATION_BATCH):
        parts = [pick[start : start + EVALUATION_BATCH] for pick in picks]
        rows = [row for row, part in enumerate(parts) if len(part)]
        for band in store.bands([parts[row] for row in rows]):
            yield {rows[place]: parts[rows[place]] for place in band}


@torch.no_grad()
def _predict(stack: Stack, store: ExampleStore, parts: dict[int, Rows]) -> Predicted:
    """Losses and labels of one pass."""
    index = torch.tensor(list(parts), device=stack.labels.device)
    outcome = run(store.model, stack.rows(index), store.batch(list(parts.values())))
    means = (outcome.losses / outcome.counts.clamp_min(1)).double().cpu().numpy()
    predicted = outcome.predicted.cpu().numpy()
    return {
        row: (means[i, : len(part)], predicted[i, : len(part)])
        for i, (row, part) in enumerate(parts.items())
    }


def mean_losses(store: ExampleStore, stack: Stack, picks: Sequence[Rows]) -> list[float]:
    """Mean loss of every row on its own examples."""
    return [float(row.mean()) for row in predict_rows(store, stack, picks)[0]]


@torch.no_grad()
def mean_betas(store: ExampleStore, stack: Stack, picks: Sequence[Rows]) -> torch.Tensor:
    """What stands beside an adapter counts on average, where a gate looks at the token.

    Args:
        store: Where the examples are.
        stack: Adapters with gates.
        picks: The examples of each row; some of them are looked at.

    Returns:
        By row and module [n, modules].
    """
    model = store.model
    linears = {
        name: linear
        for block in range(model.first_block, model.backbone.depth)
        for name, linear in model.backbone.linears(block).items()
    }
    found = []
    for row, pick in enumerate(picks):
        own = stack.rows(torch.tensor([row], device=stack.labels.device))
        seen: dict[str, list[torch.Tensor]] = {module: [] for module in model.layout.modules}
        handles = []
        try:
            for module, change in changes_of(model.layout, model.bases, own).items():
                watch = partial(_watch, change, seen[module])
                handles.append(linears[module].register_forward_pre_hook(watch))
            # Whole: modules whose work is known or folded would not be called.
            run(model, own, store.batch([pick[:GENERATION_BATCH]]), reading="whole")
        finally:
            for handle in handles:
                handle.remove()
        found.append(torch.stack([torch.cat(some).mean() for some in seen.values()]))
    return torch.stack(found)


def _watch(
    change: LoraChange, seen: list[torch.Tensor], module: torch.nn.Module, args: tuple[torch.Tensor]
) -> None:
    del module
    assert change.gate is not None
    seen.append(change.gate.beta(args[0].reshape(1, -1, args[0].shape[-1])).flatten())


def score_labels(
    store: ExampleStore, stack: Stack, picks: Sequence[Rows], tasks: Sequence[Task]
) -> list[Scores]:
    """Scores of every row: class metrics, loss, and `score`, the task's own metric.

    Causal tasks have a loss here and nothing else; their answers are scored by `score_answers`.
    """
    losses, predicted = predict_rows(store, stack, picks)
    truth = store.labels.cpu().numpy()
    results = []
    for row, task in enumerate(tasks):
        scores: Scores = {"loss": float(losses[row].mean())}
        if task.kind == "classification":
            scores |= class_scores(truth[picks[row]], predicted[row], len(task.labels))
            scores["score"] = scores[task.metric]
        results.append(scores)
    return results


def choice_examples(examples: Sequence[Example]) -> list[Example]:
    """One example per choice, in order, each with that choice as its answer."""
    return [replace(e, answer=choice) for e in examples for choice in e.choices]


def score_choices(losses: np.ndarray, examples: Sequence[Example]) -> Scores:
    """Accuracy of picking the choice with the least loss per token."""
    right, start = [], 0
    for example in examples:
        stop = start + len(example.choices)
        right.append(int(np.argmin(losses[start:stop])) == example.label)
        start = stop
    share = float(np.mean(right))
    return {"accuracy": share, "score": share}


def score_answers(
    model: Model, stack: Stack, task: Task, examples: Sequence[Example], limits: Limits
) -> Scores:
    """Scores of a single-row stack on a causal task: choices ranked, or answers generated."""
    if task.choices:
        parts = {"choices": (task, choice_examples(examples))}
        store = ExampleStore(model, parts, limits.max_length).without_ends()
        return score_choices(predict_rows(store, stack, [store.rows("choices")])[0][0], examples)
    prompts = [example.texts[0] for example in examples]
    answers = generate_answers(model, stack, prompts, limits.max_new_tokens)
    truth = [scored_part(example.answer, task.answer_marker) for example in examples]
    scores = text_scores(truth, [scored_part(answer, task.answer_marker) for answer in answers])
    return {**scores, "score": scores[task.metric]}


@torch.no_grad()
def generate_answers(
    model: Model, stack: Stack, prompts: Sequence[str], max_new_tokens: int
) -> list[str]:
    """Greedy answers under a single row's adapter."""
    answers: list[str] = []
    with adapters_active(model, stack):
        for start in range(0, len(prompts), GENERATION_BATCH):
            some = prompts[start : start + GENERATION_BATCH]
            answers += model.backbone.generate(some, max_new_tokens)
    return answers


def majority_scores(task: Task, train: Sequence[Example], test: Sequence[Example]) -> Scores:
    """What always giving the most frequent training answer would score on the test data."""
    if task.kind == "classification":
        counts = np.bincount([e.label for e in train], minlength=len(task.labels))
        truth = np.array([e.label for e in test])
        scores = class_scores(truth, np.full_like(truth, counts.argmax()), len(task.labels))
    elif task.choices:
        # Choices differ from example to example: the constant guess is a position.
        counts = np.bincount([e.label for e in train])
        share = float(np.mean([e.label == counts.argmax() for e in test]))
        scores = {"accuracy": share}
    else:
        answers = [scored_part(e.answer, task.answer_marker) for e in train]
        common = max(sorted(set(answers)), key=answers.count)
        truth_texts = [scored_part(e.answer, task.answer_marker) for e in test]
        scores = text_scores(truth_texts, [common] * len(test))
    return {**scores, "score": scores[task.metric]}
