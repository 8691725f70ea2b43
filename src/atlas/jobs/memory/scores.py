"""How well an arm of a memory run does: on its task, on text, on sums, and by its memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from atlas.build.memory import MemoryRun
from atlas.memory.training.episode_batches import ARITHMETIC, WORDS
from atlas.memory.training.grokking.equations import Equations
from atlas.memory.training.loop import MemoryTrainer
from atlas.memory.training.retrieval import EMPTIED, OTHER, OWN, JudgedAnswers, Retrieval, ask
from atlas.ops.paired_answers import mcnemar, resampled_interval
from atlas.runs.seeds import generator

QUESTIONS = 1024
"""Sums of each kind that are asked, at most."""


@dataclass(frozen=True)
class ArmScore:
    """What an arm came to.

    Attributes:
        loss: Mean over the next tokens of held-out text, or over the answers where there is none.
        accuracy: Share of right answers: to recall's questions or the next token; of episodes the
            masked words, or the sums that were stored where there is no text.
        memory: What the memory did, by layer and measure.
        figures: More of it, by the names that events have.
        judged: By which the best round is known; less is better.
        retrieval: What an episode's questions came to; None where there was none.
    """

    loss: float
    accuracy: float
    memory: dict[str, float]
    figures: dict[str, float]
    judged: float
    retrieval: Retrieval | None = None

    def plain(self) -> dict[str, Any]:
        """As an event has it."""
        return {"loss": self.loss, "accuracy": self.accuracy, "memory": self.memory, **self.figures}


def measure(
    run: MemoryRun, learner: MemoryTrainer, purpose: str, done: int, memories: tuple[str, ...]
) -> ArmScore:
    """Score an arm after `done` steps.

    Args:
        run: What is trained.
        learner: The arm.
        purpose: `validation` or `test`.
        done: Steps made.
        memories: What the questions of episodes are asked with.
    """
    sums = _sum_figures(run, learner, done)
    if run.config.objective == "lm":
        found = learner.score(run.held_out(purpose), done)
        figures = _text_figures(run, found.loss, purpose) | sums
        return ArmScore(found.loss, found.accuracy, found.memory, figures, found.loss)
    retrieval = ask(
        run.reader(),
        learner.model,
        run.held_out(purpose),
        learner.floors(done),
        rows=run.config.train.batch,
        memories=memories,
    )
    return _of_episodes(run, learner, purpose, done, (retrieval, sums))


def _of_episodes(
    run: MemoryRun,
    learner: MemoryTrainer,
    purpose: str,
    done: int,
    found: tuple[Retrieval, dict[str, float]],
) -> ArmScore:
    retrieval, sums = found
    own = retrieval.answers[OWN]
    figures, loss = {"retrieval_loss": retrieval.loss}, retrieval.loss
    if WORDS in own and run.reading.text is not None:
        lines = run.placed(run.reading.text.held_out(purpose, run.config.task.test))
        loss = learner.score(lines, done).loss
        figures |= _text_figures(run, loss, purpose)
        figures["masked_word_accuracy"] = own[WORDS].accuracy
    if ARITHMETIC in own:
        figures["lookup_accuracy"] = own[ARITHMETIC].accuracy
    figures |= sums
    tasks = [figures[name] for name in ("masked_word_accuracy", "math_accuracy") if name in figures]
    figures["overall_accuracy"] = sum(tasks) / len(tasks)
    first = own[WORDS] if WORDS in own else own[ARITHMETIC]
    return ArmScore(loss, first.accuracy, retrieval.memory, figures, retrieval.loss, retrieval)


def _text_figures(run: MemoryRun, loss: float, purpose: str) -> dict[str, float]:
    """Perplexity per token, and bits per byte, which do not depend on the tokens."""
    text, own = run.reading.text, run.config.task.arithmetic
    if text is None or (own is not None and own.share == 1):
        return {}
    # Beyond e^700 there is no float; a model that bad is told as infinitely bad.
    perplexity = math.exp(loss) if loss < 700 else math.inf
    size = text.text.bytes_per_token(purpose)
    return {"perplexity": perplexity, "bits_per_byte": loss / math.log(2) / size}


def _sum_figures(run: MemoryRun, learner: MemoryTrainer, done: int) -> dict[str, float]:
    """Held-out sums that no memory ever held, with an empty memory, and sums of training."""
    sums = run.reading.sums
    if sums is None:
        return {}

    def score(pool: Equations) -> float:
        some = pool.pick(torch.arange(min(QUESTIONS, len(pool))))
        return learner.score(run.placed(sums.questions(some)), done, rows=QUESTIONS).accuracy

    return {"math_accuracy": score(sums.asked), "math_train_accuracy": score(sums.shuffled)}


def causal_table(retrieval: Retrieval, task: str, seed: int) -> dict[str, Any] | None:
    """What the own memory answers beyond an emptied one and another's, and whether by chance.

    Args:
        retrieval: Asked with all three.
        task: WORDS or ARITHMETIC.
        seed: Of the run, for resampling.
    """
    if task not in retrieval.answers[OWN]:
        return None
    own = retrieval.answers[OWN][task]
    found: dict[str, Any] = {"questions": len(own.right)}
    for name, tasks in retrieval.answers.items():
        found[name] = tasks[task].accuracy
    for name in (EMPTIED, OTHER):
        found[f"against_{name}"] = _against(own, retrieval.answers[name][task], seed, task, name)
    return found


def _against(own: JudgedAnswers, other: JudgedAnswers, seed: int, *address: str) -> dict[str, Any]:
    gaps = own.right.astype(np.float64) - other.right
    draw = generator(seed, "retrieval", *address)
    interval = resampled_interval(gaps, own.stream, draw) if len(gaps) else (0.0, 0.0)
    return {**mcnemar(own.right, other.right), "interval": list(interval)}
