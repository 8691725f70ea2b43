"""Measures of a memory, against values worked out by hand or by SVD."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from atlas.memory.layer.observe import (
    LayerView,
    effective_rank,
    entropy_rank,
    floor_at,
    floored_gate,
    observe,
)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def view(seed=0, **changes):
    memory = [drawn(2, 3, 4, 5, seed=seed), drawn(2, 3, 5, 4, seed=seed + 1)]
    settings = {
        "memory": memory,
        "before": [0.5 * m for m in memory],
        "momentum": [2 * m for m in memory],
        "retention": torch.tensor([[0.9, 0.5], [0.7, 0.7]]),
        "gates": {"eta": torch.tensor([0.2, 0.4]), "theta": torch.tensor([0.1, 0.1])},
        "floors": {"eta": 0.05},
    }
    return LayerView(**{**settings, **changes})


def test_numbers_are_what_they_say():
    own = view()
    found = observe({"0": own})
    entries = torch.cat([m.flatten(-2) for m in own.memory], -1)
    norm = float(entries.norm(dim=-1).mean())
    wanted = {
        "M_norm": norm,
        "M_std": float(entries.std(unbiased=False)),
        "M_max": float(entries.abs().max()),
        "rank": float(torch.stack([effective_rank(m).mean() for m in own.memory]).mean()),
        "S_norm": 2 * norm,
        "update": norm / 2,
        "retention": 0.7,
        "retention.low": 0.5,
        "gate.eta.mean": 0.3,
        "gate.eta.spread": 0.1,
        "gate.eta.above_floor": 0.15,
        "gate.theta.mean": 0.1,
        "gate.theta.spread": 0.0,
    }
    assert set(found) == {f"0/{name}" for name in wanted}
    for name, value in wanted.items():
        assert found[f"0/{name}"] == pytest.approx(value, rel=1e-5, abs=1e-7)
        assert type(found[f"0/{name}"]) is float


def test_layers_are_kept_apart_and_none_is_fine():
    found = observe({"0": view(seed=0), "7": view(seed=5)})
    assert found["0/M_norm"] != found["7/M_norm"]
    assert observe({"7": view(seed=5)}).items() <= found.items()
    assert observe({}) == {}


class Reads(TorchDispatchMode):
    """Counts values read from the device one at a time."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += "_local_scalar_dense" in str(func)
        return func(*args, **(kwargs or {}))


def test_all_numbers_are_read_at_once():
    with Reads() as reads:
        float(torch.ones(()))
    assert reads.count == 1
    with Reads() as reads:
        observe({str(i): view(seed=i) for i in range(4)})
    assert reads.count == 0


def test_observing_leaves_no_graph():
    memory = [drawn(1, 1, 3, 3).requires_grad_()]
    found = observe({"0": view(memory=memory, before=memory, momentum=memory)})
    assert found["0/update"] == 0


def orthogonal(n, seed=0):
    return torch.linalg.qr(drawn(n, n, seed=seed))[0]


@pytest.mark.parametrize("rank", [1, 3, 6])
@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e15])
@pytest.mark.parametrize("measure", [effective_rank, entropy_rank])
def test_equal_singular_values_are_counted(measure, rank, scale):
    matrix = scale * (orthogonal(8)[:, :rank] @ orthogonal(6, seed=1)[:rank])
    for one in (matrix, matrix.mT, matrix.to(torch.float32)):
        assert float(measure(one)) == pytest.approx(rank, rel=1e-4)


def test_ranks_against_singular_values():
    matrix = drawn(5, 2, 7, 4)
    values = torch.linalg.svdvals(matrix)
    participation = values.pow(2).sum(-1).square() / values.pow(4).sum(-1)
    assert torch.allclose(effective_rank(matrix), participation, rtol=1e-10)
    shares = values / values.sum(-1, keepdim=True)
    entropy = -(shares * shares.log()).sum(-1)
    assert torch.allclose(entropy_rank(matrix), entropy.exp(), rtol=1e-10)
    assert effective_rank(matrix).shape == (5, 2)


def test_a_zero_memory_has_rank_zero():
    zero = torch.zeros(2, 3, 3)
    assert not effective_rank(zero).any()
    assert not entropy_rank(zero).any()
    own = view(memory=[zero], before=[zero], momentum=[zero])
    assert all(math.isfinite(value) for value in observe({"0": own}).values())


@pytest.mark.parametrize("floor", [0.0, 0.05, 0.3])
def test_a_floored_gate_keeps_to_its_range_and_learns(floor):
    x = torch.linspace(-15, 15, 61, dtype=torch.float64, requires_grad=True)
    gate = floored_gate(x, floor)
    assert float(gate.detach().min()) > floor
    assert float(gate.detach().max()) < 1
    assert float(floored_gate(torch.tensor(-1e4), floor)) == pytest.approx(floor)
    (slope,) = torch.autograd.grad(gate.sum(), x)
    assert torch.allclose(slope, (1 - floor) * torch.sigmoid(x) * torch.sigmoid(-x))
    assert float(slope.min()) > 1e-7


def test_the_floor_keeps_a_shut_branch_learning():
    """What is multiplied by the gate gets at least `floor` of its gradient; without, nothing."""
    shut = torch.tensor(-200.0)
    reached = {}
    for floor in (0.0, 0.3):
        branch = torch.ones(3, requires_grad=True)
        (floored_gate(shut, floor) * branch).sum().backward()
        reached[floor] = float(branch.grad.min())
    assert reached[0.0] == 0
    assert reached[0.3] == pytest.approx(0.3)


STAIRS = ((0, 0.30), (10_000, 0.10), (30_000, 0.05))


def test_the_floor_falls_in_stairs():
    at = (0, 9_999, 10_000, 29_999, 30_000, 200_000)
    found = [floor_at(done, 200_000, STAIRS, span=40_000) for done in at]
    assert found == [0.30, 0.30, 0.10, 0.10, 0.05, 0.05]


def test_a_shorter_run_takes_the_same_shares_of_its_length():
    found = [floor_at(done, 400, STAIRS, span=40_000) for done in (0, 99, 100, 299, 300, 400)]
    assert found == [0.30, 0.30, 0.10, 0.10, 0.05, 0.05]
    assert floor_at(399, 40_000, STAIRS, span=40_000) == 0.30, "a long one does not"


def test_a_ramp_runs_straight_between_the_points():
    at = (0, 5_000, 10_000, 20_000, 30_000, 90_000)
    found = [floor_at(done, 90_000, STAIRS, 40_000, "ramp") for done in at]
    assert found == pytest.approx([0.30, 0.20, 0.10, 0.075, 0.05, 0.05])
    assert floor_at(7, 50, ((0, 0.2),), 50, "ramp") == 0.2


def test_risk_and_dead_channels_of_the_share_are_counted_by_hand():
    # Two tokens of five channels above a floor of 0.1: sigmoids 0, 0.004, 0.5, 1 and 0.02 on mean.
    used = torch.tensor([[[0.0, 0.008, 0.4, 1.0, 0.04], [0.0, 0.0, 0.6, 1.0, 0.0]]])
    view = LayerView(
        memory=[drawn(1, 2, 3, 3)],
        before=[drawn(1, 2, 3, 3)],
        momentum=[drawn(1, 2, 3, 3)],
        retention=torch.ones(1, 2, 2),
        gates={"mix": 0.1 + 0.9 * used, "theta": drawn(1, 2, 2)},
        floors={"mix": 0.1, "theta": 0.0},
    )
    found = observe({"a": view})
    assert found["a/gate.mix.risk"] == pytest.approx(1 - (0 + 0.004 + 0.5 + 1 + 0.02) / 5)
    assert found["a/gate.mix.dead"] == pytest.approx(2 / 5)
    assert "a/gate.theta.risk" not in found


@pytest.mark.parametrize("floor", [-0.1, 1.0])
def test_impossible_floors_are_refused(floor):
    with pytest.raises(ValueError, match="floor"):
        floored_gate(torch.zeros(1), floor)
