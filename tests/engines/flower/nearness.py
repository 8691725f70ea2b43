"""How far two runs of one federation ended apart: in factors, in products, in answers."""

from dataclasses import dataclass

import numpy as np
import torch
from safetensors.torch import load_file

from atlas.federation.training.evaluate import label_shares
from atlas.jobs.federation.client_models import open_clients
from atlas.runs.events import read_events

A, B = ".lora_A.", ".lora_B."


@dataclass(frozen=True)
class Gaps:
    """The worst over all clients.

    Attributes:
        factor: Of one entry of an exported factor or head. Factors of one product may differ by
            any gauge, and directions that hold next to nothing of it are decided by rounding.
        product: Of B A of one module, Frobenius, relative to its size.
        answer: Of the logarithm of a label's share, on any test text.
    """

    factor: float
    product: float
    answer: float


def gaps_of(one, two, texts):
    """How far runs ended apart.

    Args:
        one: A run's folder.
        two: Another's, of the same clients.
        texts: Test examples by client.
    """
    here, there = exported(one), exported(two)
    return Gaps(farthest(here, there), _products(here, there), _answers(one, two, texts))


def exported(folder):
    return {
        path.parent.name: load_file(path)
        for path in sorted(folder.path.glob("adapters/*/adapter_model.safetensors"))
    }


def farthest(one, two):
    assert {c: set(a) for c, a in one.items()} == {c: set(a) for c, a in two.items()}
    return max(float((one[c][name] - two[c][name]).abs().max()) for c in one for name in one[c])


def _products(one, two):
    found = []
    for client in one:
        for name in one[client]:
            if A in name:
                here, there = (
                    run[client][name.replace(A, B)].double() @ run[client][name].double()
                    for run in (one, two)
                )
                found.append(float(torch.linalg.norm(here - there) / torch.linalg.norm(here)))
    return max(found)


def _answers(one, two, texts):
    here, there = (_log_shares(folder, texts) for folder in (one, two))
    return max(float(np.abs(here[client] - there[client]).max()) for client in texts)


def _log_shares(folder, texts):
    found = {}
    for stack in open_clients(folder).stacks:
        own = {client: texts[client] for client in stack.tasks}
        store = stack.store(own)
        shares = label_shares(store, stack.rows(own), [store.rows(client) for client in own])
        for client, some in zip(own, shares, strict=True):
            found[client] = np.log(some[:, : len(stack.tasks[client].labels)])
    return found


def choices(folder):
    """Whatever of a run is a choice and no number: rounding must not turn one into another."""
    found = {}
    for event in read_events(folder.events):
        kind, number = event["event"], event.get("round")
        if kind == "planned":
            found["clusters", event["cohort"]] = (event.get("clusters") or {}).get("labels")
        elif kind == "granted":
            found["ranks", event["client"]] = event["ranks"]
        elif kind == "delivered":
            found["taken", number, event["client"]] = (event["accept"], event["pick"])
    return found


def weights(folder):
    """W of every round."""
    return {
        (event["round"], event["cohort"]): np.array(event["weights"])
        for event in read_events(folder.events)
        if event["event"] == "mixed" and event.get("weights") is not None
    }
