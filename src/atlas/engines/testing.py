"""Scores on test data, read once at the end of a run."""

from __future__ import annotations

from collections.abc import Sequence

from atlas.engines.local.groups import Group
from atlas.federation.adapters.cohort import Cohort
from atlas.federation.batching.forward import stack_cohorts
from atlas.federation.training.evaluate import Scores, score_answers, score_labels


def score_on_test(
    group: Group, cohort: Cohort, clients: Sequence[str]
) -> dict[str, dict[str, Scores]]:
    """Scores of every member on its own test data, by holder and member."""
    judged = [(client, member) for client in clients for member in group.holders[client].members]
    store = group.test_store
    rows = stack_cohorts([cohort.select([client for client, _ in judged])])
    picks = [store.rows(member.id) for _, member in judged]
    found = score_labels(store, rows, picks, [member.task for _, member in judged])
    results: dict[str, dict[str, Scores]] = {client: {} for client in clients}
    for (client, member), scores in zip(judged, found, strict=True):
        if member.task.kind == "causal":
            single = stack_cohorts([cohort.select([client])])
            scores |= score_answers(group.model, single, member.task, member.test, group.limits)
        results[client][member.id] = scores
    return results
