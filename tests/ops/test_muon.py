"""Muon against its formula, and against torch's own within its half precision."""

import pytest
import torch

from atlas.memory.training.optimisers import Optimisers
from atlas.ops.muon import MOMENTUM, SIZE, Muon
from atlas.ops.newton_schulz import newton_schulz


def drawn(*shape, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (6, 6)])
def test_steps_are_those_of_the_formula(shape):
    weight = torch.nn.Parameter(drawn(*shape))
    optimiser = Muon([weight], lr=0.03, weight_decay=0.2)
    w, m = drawn(*shape), torch.zeros(shape, dtype=torch.float64)
    for seed in range(1, 6):
        weight.grad = drawn(*shape, seed=seed)
        optimiser.step()
        m = MOMENTUM * m + (1 - MOMENTUM) * weight.grad
        ahead = (1 - MOMENTUM) * weight.grad + MOMENTUM * m
        w = w - 0.03 * 0.2 * w - 0.03 * SIZE * max(shape) ** 0.5 * newton_schulz(ahead)
        assert torch.allclose(weight, w, atol=1e-12)
        assert torch.allclose(optimiser.state[weight]["momentum"], m, atol=1e-14)


def test_steps_are_torchs_own_to_half_precision():
    one, two = (torch.nn.Parameter(drawn(8, 12).float()) for _ in range(2))
    ours = Muon([one], lr=0.02, weight_decay=0.1)
    theirs = torch.optim.Muon([two], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for seed in range(1, 5):
        one.grad = drawn(8, 12, seed=seed).float()
        two.grad = one.grad.clone()
        ours.step()
        theirs.step()
    moved = (two - drawn(8, 12).float()).norm().item()
    assert (one - two).norm().item() < 0.03 * moved


def test_a_step_gives_every_direction_about_the_same_size():
    weight = torch.nn.Parameter(torch.zeros(8, 8, dtype=torch.float64))
    u, _, vh = torch.linalg.svd(drawn(8, 8))
    weight.grad = u @ torch.diag(torch.logspace(0, -1, 8, dtype=torch.float64)) @ vh
    Muon([weight], lr=1.0).step()
    values = torch.linalg.svdvals(weight.detach())
    assert float(values.max() / values.min()) < 2  # of the gradient: 10


def test_what_is_no_matrix_and_closures_are_refused():
    with pytest.raises(ValueError, match=r"not for shape \[3\]"):
        Muon([torch.nn.Parameter(torch.zeros(3))])
    with pytest.raises(ValueError, match="closure"):
        Muon([torch.nn.Parameter(torch.zeros(3, 3))]).step(lambda: 0.0)


def trained(kind, steps, saved=None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3)
    ).double()
    own = Optimisers(model.named_parameters(), kind, lr=0.01, weight_decay=0.1)
    if saved is not None:
        model.load_state_dict(saved[0])
        own.load(saved[1])
    x, y = drawn(20, 5), drawn(20, 3, seed=1)
    for _ in range(steps):
        own.zero_grad()
        (model(x) - y).square().mean().backward()
        own.step()
    return model, own


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_optimisers_go_on_from_their_tensors_to_the_same_bits(kind):
    whole, _ = trained(kind, 9)
    half, own = trained(kind, 4)
    kept = {name: value.clone() for name, value in own.tensors().items()}
    rest, _ = trained(kind, 5, ({k: v.clone() for k, v in half.state_dict().items()}, kept))
    for one, two in zip(whole.parameters(), rest.parameters(), strict=True):
        assert torch.equal(one, two)
    moments = {name.partition("|")[0] for name in kept}
    wanted = {"step", "exp_avg", "exp_avg_sq"} | ({"momentum"} if kind == "muon" else set())
    assert moments == wanted
    # Without what was kept the run goes another way.
    lost, _ = trained(kind, 5, ({k: v.clone() for k, v in half.state_dict().items()}, {}))
    assert not torch.equal(lost[0].weight, whole[0].weight)


def test_biases_are_not_decayed_and_the_rate_can_be_set():
    model = torch.nn.Linear(3, 3)
    for kind in ("adamw", "muon"):
        own = Optimisers(model.named_parameters(), kind, lr=0.5, weight_decay=1.0)
        own.set_rate(0.25)
        own.zero_grad()
        for value in model.parameters():
            value.grad = torch.zeros_like(value)
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        own.step()
        assert torch.equal(model.bias, before["bias"])
        assert torch.allclose(model.weight, 0.75 * before["weight"])
