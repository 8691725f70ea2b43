"""The `fit` task of the local engine: all arms of all asked clients in one stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from atlas.config.training import TrainSettings
from atlas.engines.local.groups import ClientGroup
from atlas.federation.adapters.changes import scalar_betas
from atlas.federation.batching.forward import stack_cohorts
from atlas.federation.exchange.contents import tell_number
from atlas.federation.training.evaluate import mean_betas
from atlas.federation.training.halves import PARTS
from atlas.federation.training.loop import Clock, Course, Fitted, Measure, StepProgress
from atlas.federation.training.parallel import fit_on_cores
from atlas.federation.training.step import Anchor, Moments

TRAINED_ARMS = ("held", "shadow", "personal")
PULLED = {"start": "held", "global": "personal"}
"""The arm that is pulled to what was held at the round's start; the shadow never is."""


def fit_group(  # noqa: PLR0913
    group: ClientGroup,
    clients: Sequence[str],
    settings: TrainSettings,
    clock: Clock,
    progress: StepProgress | None = None,
    measure: Measure | None = None,
) -> dict[str, dict[str, Any]]:
    """Train `clients` of a group, their shadows and personal adapters on the same batches.

    Nothing is written unless the whole stack trains, so a failure leaves every client as it was.
    A row whose training blew up is not written either: adapter, head and moments stay what they
    were before the round.

    Returns:
        Facts per client (loss, steps and gates of its held adapter); clients that blew up are left
        out.
    """
    arms = [arm for arm in TRAINED_ARMS if arm in group.arms]
    stack = stack_cohorts([group.arms[arm].select(clients) for arm in arms])
    lessons = [group.lesson(client) for _ in arms for client in clients]
    carried = _carried(group, arms, clients) if settings.keep_moments else None
    anchor = _anchor(group, arms, clients, settings.anchor)
    points = [group.splits.get(client) for _ in arms for client in clients]
    course = Course(stack, lessons, carried, anchor, points, measure)
    fitted = fit_on_cores(group.store, course, settings, clock, progress)
    sound = finite_rows(fitted)
    for i, arm in enumerate(arms):
        rows = [i * len(clients) + k for k in range(len(clients)) if sound[i * len(clients) + k]]
        owners = [clients[row % len(clients)] for row in rows]
        group.write(arm, owners, {k: v[rows] for k, v in fitted.stack.tensors.items()})
        if settings.keep_moments:
            _keep(group, arm, owners, fitted, rows)
    betas = _betas(group, fitted, clients)
    return {
        client: {"loss": tell_number(float(fitted.losses[row])), "steps": int(fitted.steps[row])}
        | _carried_bytes(fitted, row, client in group.splits)
        | betas[row]
        | ({} if fitted.salience is None else {"salience": fitted.salience[row].tolist()})
        | _noise(fitted, row)
        for row, client in enumerate(clients)
        if sound[row]
    }


def _carried_bytes(fitted: Fitted, row: int, split: bool) -> dict[str, float]:
    """What the held adapter's steps sent up and down; its shadow's steps are not the method's."""
    if not split:
        return {}
    wire = fitted.wire
    return {"split_up": wire.up.get(row, 0), "split_down": wire.down.get(row, 0)}


def _noise(fitted: Fitted, row: int) -> dict[str, Any]:
    """What halves of the held adapter's batches say, where there are halves."""
    if fitted.noise is None or not bool(fitted.noise[row].isfinite().all()):
        return {}
    *variances, passes = fitted.noise[row].tolist()
    return {"noise": dict(zip(PARTS, variances, strict=True)), "passes": passes}


def _betas(
    group: ClientGroup, fitted: Fitted, clients: Sequence[str]
) -> list[dict[str, list[float]]]:
    """What stands beside the adapter counts in each module, of the rows of held adapters."""
    stack = fitted.stack
    if stack.beside is None:
        return [{}] * len(clients)
    held = stack.rows(torch.arange(len(clients), device=stack.labels.device))
    if group.model.layout.gate == "input":
        betas = mean_betas(group.store, held, [group.lesson(client).train for client in clients])
    else:
        betas = scalar_betas(group.model.layout, held)
    return [{"beta": row} for row in betas.tolist()]


def finite_rows(fitted: Fitted) -> list[bool]:
    """Which rows of a trained stack hold neither NaN nor Inf."""
    checks = [torch.isfinite(value).flatten(1).all(1) for value in fitted.stack.tensors.values()]
    return [bool(flag) for flag in torch.stack(checks).all(0)]


def _anchor(
    group: ClientGroup, arms: Sequence[str], clients: Sequence[str], strength: float
) -> Anchor | None:
    """What the rows of a fit are pulled to, as it is before the fit."""
    if group.anchor == "none":
        return None
    held = stack_cohorts([group.arms["held"].select(clients)] * len(arms))
    pulled = [strength * (arm == PULLED[group.anchor]) for arm in arms for _ in clients]
    device = held.labels.device
    return Anchor(held.tensors, torch.tensor(pulled, dtype=torch.float64, device=device))


def _carried(
    group: ClientGroup, arms: Sequence[str], clients: Sequence[str]
) -> tuple[Moments, torch.Tensor]:
    kept = [group.moments_of(arm).select(clients) for arm in arms]
    joined = {
        name: (
            torch.cat([moments[name][0] for moments, _ in kept]),
            torch.cat([moments[name][1] for moments, _ in kept]),
        )
        for name in kept[0][0]
    }
    return joined, torch.cat([made for _, made in kept])


def _keep(
    group: ClientGroup, arm: str, clients: Sequence[str], fitted: Fitted, rows: list[int]
) -> None:
    moments = {name: (one[rows], two[rows]) for name, (one, two) in fitted.moments.items()}
    group.moments_of(arm).write(clients, moments, fitted.made[rows])
