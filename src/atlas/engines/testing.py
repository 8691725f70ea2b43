"""Scores on test data, read once at the end of a run."""

from __future__ import annotations

from collections.abc import Sequence

from atlas.engines.groups import Group
from atlas.federation.cohort import Cohort
from atlas.federation.evaluate import (
    Scores,
    choice_examples,
    predict_rows,
    score_answers,
    score_choices,
    score_labels,
)
from atlas.federation.forward import stack_cohorts
from atlas.federation.task import ClientData


def score_on_test(
    group: Group, cohort: Cohort, clients: Sequence[str], max_new_tokens: int
) -> dict[str, dict[str, Scores]]:
    """Scores of every member on its own test data, by holder and member."""
    judged = [(client, member) for client in clients for member in group.holders[client].members]
    store = group.new_store(
        {member.id: (member.task, member.test) for _, member in judged}
    )
    rows = stack_cohorts([cohort.select([client for client, _ in judged])])
    picks = [store.rows(member.id) for _, member in judged]
    found = score_labels(store, rows, picks, [member.task for _, member in judged])
    results: dict[str, dict[str, Scores]] = {client: {} for client in clients}
    for (client, member), scores in zip(judged, found, strict=True):
        if member.task.kind == "causal":
            scores |= _answer_scores(group, cohort.select([client]), member, max_new_tokens)
        results[client][member.id] = scores
    return results


def _answer_scores(
    group: Group, single: Cohort, member: ClientData, max_new_tokens: int
) -> Scores:
    stack = stack_cohorts([single])
    if member.task.choices:
        store = group.new_store({"choices": (member.task, choice_examples(member.test))})
        losses, _ = predict_rows(store, stack, [store.rows("choices")])
        return score_choices(losses[0], member.test)
    return score_answers(group.model, stack, member.task, member.test, max_new_tokens)
