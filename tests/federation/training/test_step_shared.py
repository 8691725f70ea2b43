"""Texts of a step divided among cores give the losses and gradients of the whole step."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from atlas.federation.batching import store
from atlas.federation.batching.forward import run, stack_cohorts
from atlas.federation.training import step as sharing
from atlas.federation.training.step import deal_texts, shared_gradients
from atlas.runs.cores import side_by_side
from tests.federation.training.test_parallel import make_group


def moving_stack(group):
    """Adapters that have begun to move, asking for gradients."""
    draw = torch.Generator().manual_seed(5)
    stack = stack_cohorts([group.arms["held"]])
    moved = {
        name: (value + 0.1 * torch.randn(value.shape, generator=draw, dtype=value.dtype))
        for name, value in stack.tensors.items()
    }
    return replace(stack, tensors={name: v.requires_grad_() for name, v in moved.items()})


def picks_of(group, count):
    return [group.store.rows(f"{client}/train")[:count] for client in group.holders]


def undivided(group, stack, picks):
    losses = run(group.model, stack, group.store.batch(picks)).client_losses()
    grads = torch.autograd.grad(losses.sum(), list(stack.tensors.values()))
    return losses.detach(), dict(zip(stack.tensors, grads, strict=True))


@pytest.mark.parametrize("name", ["tiny", "tiny-causal"])
def test_shares_add_up_to_the_whole_step(two_cores, monkeypatch, name):
    group, _ = make_group(name)
    stack, picks = moving_stack(group), picks_of(group, 5)
    pieces = []
    monkeypatch.setattr(
        store, "side_by_side", lambda jobs, halted: pieces.append(len(jobs)) or side_by_side(jobs)
    )
    losses, grads = shared_gradients(group.store, stack, picks)
    assert pieces == [2]
    wanted, theirs = undivided(group, stack, picks)
    assert torch.allclose(losses, wanted, atol=1e-10, rtol=0)
    assert grads.keys() == theirs.keys()
    for key, value in theirs.items():
        assert torch.allclose(grads[key], value, atol=1e-10, rtol=0), key
    if name == "tiny":
        assert all(bool(value.any()) for key, value in grads.items() if key.startswith("lora"))
    again = shared_gradients(group.store, stack, picks)[1]
    assert all(torch.equal(again[key], value) for key, value in grads.items())


def test_one_core_and_single_texts_are_not_divided(monkeypatch):
    group, _ = make_group()
    stack, picks = moving_stack(group), picks_of(group, 5)
    monkeypatch.setattr(store, "side_by_side", None)
    losses, grads = shared_gradients(group.store, stack, picks)
    wanted, theirs = undivided(group, stack, picks)
    assert torch.allclose(losses, wanted, atol=1e-10, rtol=0)
    assert all(torch.allclose(grads[key], v, atol=1e-10, rtol=0) for key, v in theirs.items())
    monkeypatch.setattr(sharing, "cores_for", lambda device: 2)
    few = [picks[0], picks[1][:1], *picks[2:]]
    losses, _ = shared_gradients(group.store, stack, few)
    assert torch.allclose(losses, undivided(group, stack, few)[0], atol=1e-10, rtol=0)


@pytest.mark.parametrize("cores", [2, 3])
def test_every_text_is_dealt_once_and_shares_are_alike(cores):
    group, _ = make_group()
    picks = picks_of(group, 6)
    shares = deal_texts(group.store, picks, cores)
    assert len(shares) == cores
    for row, pick in enumerate(picks):
        dealt = [share[row] for share in shares]
        assert all(len(part) for part in dealt)
        assert all(bool((np.diff(part) > 0).all()) for part in dealt), "texts keep their order"
        assert sorted(np.concatenate(dealt).tolist()) == pick.tolist()
    tokens = [sum(int(group.store.lengths_of(p).sum()) for p in share) for share in shares]
    longest = max(int(group.store.lengths_of(pick).max()) for pick in picks)
    assert max(tokens) - min(tokens) <= longest
    assert len(deal_texts(group.store, [*picks, picks[0][: cores - 1]], cores)) == 1
