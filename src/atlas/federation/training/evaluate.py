"""Scores of clients' models on their own examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from atlas.federation.adapters.changes import changes_of
from atlas.federation.adapters.lora_hooks import LoraChange
from atlas.federation.batching.forward import Model, Stack, adapters_active, run
from atlas.federation.batching.store import ExampleStore, Part, Rows
from atlas.federation.clients import Example, Task
from atlas.ops.metrics import class_scores, scored_part, text_scores
from atlas.runs.cores import cores_for, shared_first

EVALUATION_BATCH = 64
GENERATION_BATCH = 16
"""Most texts that are written together, of all rows: each keeps its keys and values."""
Counting = Callable[[int, int], None]
"""Called with (done, total)."""
Scores = dict[str, float]
R = TypeVar("R")
Predicted = dict[int, tuple[np.ndarray, np.ndarray]]
"""Losses and labels of some examples, by row of a stack."""


@dataclass(frozen=True)
class Limits:
    """How much text is kept and generated."""

    max_length: int
    max_new_tokens: int

    def of(self, task: Task) -> Limits:
        """Those of a task whose answers are known to be shorter."""
        return replace(self, max_new_tokens=min(self.max_new_tokens, task.max_new_tokens or 10**9))


def predict_rows(
    store: ExampleStore, stack: Stack, picks: Sequence[Rows]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Mean loss per example and predicted label per example, for every row of a stack."""
    losses: list[list[np.ndarray]] = [[] for _ in picks]
    labels: list[list[np.ndarray]] = [[] for _ in picks]
    for result in _in_passes(store, stack, picks, _predict):
        for row, (loss, label) in result.items():
            losses[row].append(loss)
            labels[row].append(label)
    return [np.concatenate(row) for row in losses], [np.concatenate(row) for row in labels]


def label_shares(store: ExampleStore, stack: Stack, picks: Sequence[Rows]) -> list[np.ndarray]:
    """How likely every label is, for every example of every row of a stack, [examples, L] each.

    Labels that a row's task does not have get nothing.
    """
    shares: list[list[np.ndarray]] = [[] for _ in picks]
    for result in _in_passes(store, stack, picks, _shares):
        for row, share in result.items():
            shares[row].append(share)
    return [np.concatenate(row) for row in shares]


def _in_passes(
    store: ExampleStore,
    stack: Stack,
    picks: Sequence[Rows],
    work: Callable[[Stack, ExampleStore, dict[int, Rows]], R],
) -> list[R]:
    """What `work` makes of every pass, on all cores where that pays."""
    passes = list(_passes(store, picks))
    tokens = [float(sum(store.lengths_of(part).sum() for part in some.values())) for some in passes]
    predict = partial(work, stack)
    count = shared_first(tokens, cores_for(stack.labels.device))
    found = store.on_cores(predict, passes[:count]) if count else []
    return found + [predict(store, parts) for parts in passes[count:]]


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


@torch.no_grad()
def _shares(stack: Stack, store: ExampleStore, parts: dict[int, Rows]) -> dict[int, np.ndarray]:
    """Shares of the labels in one pass."""
    index = torch.tensor(list(parts), device=stack.labels.device)
    logits = run(store.model, stack.rows(index), store.batch(list(parts.values()))).logits
    assert logits is not None
    shares = logits.double().softmax(-1).cpu().numpy()
    return {row: shares[i, : len(part)] for i, (row, part) in enumerate(parts.items())}


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
    model: Model,
    stack: Stack,
    parts: Sequence[Part],
    limits: Limits,
    lower: Counting | None = None,
    written: Counting | None = None,
) -> list[Scores]:
    """Scores of every row of a stack on its own causal task: choices ranked, answers generated.

    Args:
        model: The rows' model.
        stack: Their adapters.
        parts: Task and examples of each row.
        limits: How much text is kept and generated.
        lower: Called with (done, total) while the lower blocks meet new texts.
        written: Called with (done, total) while answers are generated.
    """
    ranked = [row for row, (task, _) in enumerate(parts) if task.has_choices]
    free = [row for row, (task, _) in enumerate(parts) if not task.has_choices]
    found: dict[int, Scores] = {}
    if ranked:
        texts = {str(row): (parts[row][0], choice_examples(parts[row][1])) for row in ranked}
        store = ExampleStore(model, texts, limits.max_length, lower, ends=False)
        picks = [store.rows(str(row)) for row in ranked]
        losses, _ = predict_rows(store, _some(stack, ranked), picks)
        for row, each in zip(ranked, losses, strict=True):
            found[row] = score_choices(each, parts[row][1])
    # Task by task: those whose answers are short need not wait for others.
    for name in dict.fromkeys(parts[row][0].name for row in free):
        own = [row for row in free if parts[row][0].name == name]
        prompts = [[example.texts[0] for example in parts[row][1]] for row in own]
        short = limits.of(parts[own[0]][0])
        answers = generate_rows(model, _some(stack, own), prompts, short, written)
        for row, told in zip(own, answers, strict=True):
            found[row] = _score_texts(*parts[row], told)
    return [found[row] for row in range(len(parts))]


def _some(stack: Stack, rows: Sequence[int]) -> Stack:
    return stack.rows(torch.tensor(rows, dtype=torch.long, device=stack.labels.device))


def _score_texts(task: Task, examples: Sequence[Example], answers: Sequence[str]) -> Scores:
    truth = [scored_part(example.answer, task.answer_marker) for example in examples]
    scores = text_scores(truth, [scored_part(answer, task.answer_marker) for answer in answers])
    return {**scores, "score": scores[task.metric]}


def generate_answers(
    model: Model, stack: Stack, prompts: Sequence[str], limits: Limits
) -> list[str]:
    """Greedy answers under a single row's adapter."""
    return generate_rows(model, stack, [prompts], limits)[0]


@torch.no_grad()
def generate_rows(
    model: Model,
    stack: Stack,
    prompts: Sequence[Sequence[str]],
    limits: Limits,
    progress: Counting | None = None,
) -> list[list[str]]:
    """Greedy answers to each row's own prompts, as long as trained on, under its own adapter.

    Rows are generated together, as many prompts of each as fit a batch; one that has run out
    of prompts takes no part.
    """
    answers: list[list[str]] = [[] for _ in prompts]
    total = sum(map(len, prompts))
    while sum(map(len, answers)) < total:
        left = [row for row, own in enumerate(prompts) if len(answers[row]) < len(own)]
        rows = left[:GENERATION_BATCH]
        starts = [len(answers[row]) for row in rows]
        width = min(len(prompts[row]) - start for row, start in zip(rows, starts, strict=True))
        width = min(width, max(1, GENERATION_BATCH // len(rows)))
        some = [
            prompts[row][start + i]
            for row, start in zip(rows, starts, strict=True)
            for i in range(width)
        ]
        with adapters_active(model, _some(stack, rows)):
            made = model.backbone.generate(some, limits.max_new_tokens, limits.max_length)
        for place, row in enumerate(rows):
            answers[row] += made[place * width : (place + 1) * width]
        if progress:
            progress(sum(map(len, answers)), total)
    return answers


def majority_scores(task: Task, train: Sequence[Example], test: Sequence[Example]) -> Scores:
    """What always giving the most frequent training answer would score on the test data."""
    if task.kind == "classification":
        counts = np.bincount([e.label for e in train], minlength=len(task.labels))
        truth = np.array([e.label for e in test])
        scores = class_scores(truth, np.full_like(truth, counts.argmax()), len(task.labels))
    elif task.has_choices:
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


def chance_score(task: Task, test: Sequence[Example]) -> float | None:
    """What guessing scores on a task whose answers are chosen among some; None on others."""
    if not task.has_choices:
        return None
    return float(np.mean([1 / len(example.choices) for example in test]))
