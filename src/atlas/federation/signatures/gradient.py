"""Signatures by gradients (after RELA of FedMosaic): what a client's data asks of a shared probe.

The probe is a small frozen causal model, the same for all clients whatever model they train. Its
loss on the answers of a client's examples has a gradient with respect to the last block's
down-projection; who has alike gradients would move the probe alike. Adapters have no part in it, so
it can be compared between clients of any width and depth.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atlas.config.plan import RelevanceSettings
from atlas.federation.batching.forward import Model, Stack, run
from atlas.federation.batching.store import ExampleStore, Rows
from atlas.federation.fingerprints.layer_gradients import (
    catch_calls,
    last_linears,
    layer_gradients,
)
from atlas.federation.fingerprints.take import BATCH
from atlas.federation.signatures.signature import Signature, finish_gradient
from atlas.federation.training.evaluate import EVALUATION_BATCH
from atlas.runs.seeds import generator

DOWN = "down"
"""The module whose gradient is taken, by the short name that every family has for it."""


def sign_by_gradient(
    store: ExampleStore, client: str, settings: RelevanceSettings, seed: int, number: int
) -> Signature:
    """One client's signature of round `number`.

    Args:
        store: The probe with the group's training examples as prompts and answers, by client.
        client: Whose examples, and whose draw and noise.
        settings: How many examples, size of the sketch, clip and noise.
        seed: Run seed.
        number: The round; each has a draw of its own.
    """
    own = store.rows(client)
    draw = generator(seed, "signature", "examples", number, client)
    rows = own[draw.permutation(len(own))][: settings.batches * BATCH]
    gradient = probe_gradient(store, rows)
    values, length = finish_gradient(gradient, settings, seed, number, client)
    return Signature(values, len(rows), length, settings.clip, settings.noise * settings.clip)


def probe_gradient(store: ExampleStore, rows: Rows) -> Tensor:
    """The mean over examples of the gradient of their answers' mean loss [d]."""
    model, last = store.model, store.model.backbone.depth - 1
    linears = last_linears(model, 1)
    wanted = {name: linears[name] for name in model.backbone.select(last, [DOWN])}
    total = torch.zeros(sum(linear.weight.numel() for linear in wanted.values()))
    total = total.to(model.backbone.device, torch.float64)
    for start in range(0, len(rows), EVALUATION_BATCH):
        batch = store.batch([rows[start : start + EVALUATION_BATCH]])
        # Nothing else here asks for gradients; the graph has to begin somewhere.
        batch = batch.at(batch.hidden.detach().requires_grad_())
        with torch.enable_grad(), catch_calls(wanted) as calls:
            outcome = run(model, no_adapters(model), batch, reading="whole")
            mean = (outcome.losses / outcome.counts.clamp_min(1)).sum() / len(rows)
        found = layer_gradients(mean, calls)
        total += torch.cat([found[name].flatten().to(total) for name in wanted])
    return total


def no_adapters(model: Model) -> Stack:
    """A stack of one row that changes nothing."""
    return Stack({}, (), torch.zeros(1, dtype=torch.long, device=model.backbone.device))
