"""What adapters, cores and gates add, against loops over rows and tokens in float64."""

import math

import pytest
import torch

from atlas.federation.adapters.adapter import Frozen, Layout, Member
from atlas.federation.adapters.changes import changes_of, scalar_betas
from atlas.federation.adapters.cohort import Slot, initial_cohort
from atlas.federation.batching.forward import stack_cohorts

MODULES, WIDTHS, TOKENS = ("m0", "m1", "m2"), ((9, 7), (8, 6), (9, 5)), 4
CORES = {"lora": (), "pq": ("0.query", "0.value", "1.query"), "both": ("0.query", "", "1.query")}
RANKS = {"lora": [(2, 3, 1), (4, 1, 2), (3, 3, 5), (2, 5, 4)], "pq": [(4, 4, 4)] * 4}
RANKS["both"] = [(4, 2, 4), (4, 3, 4), (4, 1, 4), (4, 2, 4)]
READY = {"c0": {"m0", "m1", "m2"}, "c1": {"m1"}, "c3": {"m0", "m2"}}
"""What was delivered; c2 got nothing yet."""


def filled(cohort, seed):
    found = {}
    for row, client in enumerate(cohort.clients):
        draw = torch.Generator().manual_seed(100 * seed + row)
        found[client] = {
            name: torch.randn(value.shape, generator=draw, dtype=torch.float64)
            for name, value in cohort.take(client).items()
        }
    return cohort.put(found)


def make_bases(rank=4):
    draw = torch.Generator().manual_seed(7)
    found = {}
    for module, (d_in, d_out) in zip(MODULES, WIDTHS, strict=True):
        a, b = (
            torch.linalg.qr(torch.randn(d, rank, generator=draw, dtype=torch.float64))[0]
            for d in (d_in, d_out)
        )
        shift = torch.randn(rank, generator=draw, dtype=torch.float64)
        found[module] = Frozen(a.T / 3, b * 2, shift)
    return found


def make_cohort(kind, gate, *, slot=True):
    layout = Layout("twin", MODULES, WIDTHS, (), 16.0, cores=CORES[kind], gate=gate)
    members = [Member(f"c{i}", ranks) for i, ranks in enumerate(RANKS[kind])]
    held = filled(initial_cohort(layout, members, 0, dtype=torch.float64), 1)
    if not slot:
        return held
    beside = filled(initial_cohort(layout.beside(), members, 0, dtype=torch.float64), 2)
    ready = {client: frozenset(modules) for client, modules in READY.items()}
    return stacked_with(held, Slot(beside, ready))


def stacked_with(held, slot):
    return type(held)(held.layout, held.members, held.tensors, slot=slot)


def one_path(layout, bases, tensors, i, x):
    """B ((P - I) (A x - shift) + Q) of one row, or alpha / r B A x, token by token."""
    first, second = (tensors[name] for name in layout.parts(i))
    if layout.place(i):
        a, b, shift = bases[layout.modules[i]]
        return b @ (first @ (a @ x - shift) + second)
    return 16.0 / first.shape[0] * (second @ (first @ x))


def naive(cohort, bases, i, client, x):
    layout, own = cohort.layout, cohort.take(client)
    module = layout.modules[i]
    local = one_path(layout, bases, own, i, x)
    if layout.gate == "none" or cohort.slot is None:
        return local
    gate = own[f"gate/{module}"]
    look = float(gate @ x) if layout.gate == "input" else float(gate)
    came = module in cohort.slot.ready.get(client, ())
    beta = 1 / (1 + math.exp(-look)) if came else 0.0
    given = one_path(layout, bases, cohort.slot.cohort.take(client), i, x)
    return (1 - beta) * local + beta * given


@pytest.mark.parametrize("gate", ["none", "scalar", "input"])
@pytest.mark.parametrize("kind", ["lora", "pq", "both"])
def test_what_is_added_equals_the_formula(kind, gate):
    cohort, bases = make_cohort(kind, gate), make_bases()
    changes = changes_of(cohort.layout, bases, stack_cohorts([cohort]))
    draw = torch.Generator().manual_seed(5)
    for i, (module, (d_in, d_out)) in enumerate(zip(MODULES, WIDTHS, strict=True)):
        x = torch.randn(4, TOKENS, d_in, generator=draw, dtype=torch.float64)
        before = torch.randn(4, TOKENS, d_out, generator=draw, dtype=torch.float64)
        found = changes[module].onto(before, x)
        for row, client in enumerate(cohort.clients):
            alone = changes[module].of_row(row).onto(before[row : row + 1], x[row : row + 1])
            for token in range(TOKENS):
                wanted = before[row, token] + naive(cohort, bases, i, client, x[row, token])
                assert torch.allclose(found[row, token], wanted, atol=1e-10)
                assert torch.allclose(alone[0, token], wanted, atol=1e-10)


@pytest.mark.parametrize("kind", ["lora", "pq"])
def test_rows_without_a_slot_are_as_if_there_were_no_gates(kind):
    held, bases = make_cohort(kind, "scalar"), make_bases()
    alone = make_cohort(kind, "scalar", slot=False)
    both = changes_of(held.layout, bases, stack_cohorts([held, alone]))
    ungated = make_cohort(kind, "none", slot=False).layout
    same = type(alone)(ungated, alone.members, alone.tensors)
    plain = changes_of(ungated, bases, stack_cohorts([same]))
    x = torch.randn(8, TOKENS, 9, dtype=torch.float64)
    found = both["m0"].onto(torch.zeros(8, TOKENS, 7, dtype=torch.float64), x)
    wanted = plain["m0"].onto(torch.zeros(4, TOKENS, 7, dtype=torch.float64), x[4:])
    assert torch.allclose(found[4:], wanted, atol=1e-12)
    assert not torch.allclose(found[:4], wanted, atol=1e-3)


@pytest.mark.parametrize("kind", ["lora", "pq"])
@pytest.mark.parametrize("gate", ["scalar", "input"])
def test_a_gate_has_no_gradient_before_anything_was_delivered(kind, gate):
    cohort, bases = make_cohort(kind, gate), make_bases()
    stack = stack_cohorts([cohort])
    leaves = {name: value.clone().requires_grad_() for name, value in stack.tensors.items()}
    moving = type(stack)(leaves, stack.scales, stack.labels, beside=stack.beside)
    changes = changes_of(cohort.layout, bases, moving)
    x = torch.randn(4, TOKENS, 9, dtype=torch.float64)
    out = changes["m0"].onto(torch.zeros(4, TOKENS, 7, dtype=torch.float64), x)
    grad = torch.autograd.grad(out.square().sum(), leaves["gate/m0"])[0]
    came = torch.tensor([True, False, False, True])  # READY of m0
    assert bool((grad[came].abs().sum(1) > 0).all())
    assert not grad[~came].any()


def test_betas_are_told_as_they_act():
    cohort = make_cohort("pq", "scalar")
    found = scalar_betas(cohort.layout, stack_cohorts([cohort]))
    assert found.shape == (4, 3)
    assert not found[2].any()
    gate = float(cohort.take("c1")["gate/m1"])
    assert float(found[1, 1]) == pytest.approx(1 / (1 + math.exp(-gate)))
    assert float(found[1, 0]) == 0.0


def test_a_core_is_as_large_and_as_far_away_as_what_it_changes():
    cohort, bases = make_cohort("pq", "none", slot=False), make_bases()
    for i, module in enumerate(MODULES):
        layer = cohort.layer(i)
        a, b = (
            part / part.norm(dim=d, keepdim=True)
            for d, part in zip((1, 0), bases[module][:2], strict=True)
        )
        tensors = [cohort.take(client) for client in cohort.clients]
        names = cohort.layout.parts(i)
        for one in range(4):
            for two in range(4):
                gap = layer.b[one] @ layer.a[one] - layer.b[two] @ layer.a[two]
                p, q = (tensors[one][name] - tensors[two][name] for name in names)
                wanted = ((b @ p @ a).square().sum() + (b @ q).square().sum()).sqrt()
                assert torch.allclose(gap.norm(), wanted, atol=1e-10)


def test_a_slot_takes_what_comes_and_keeps_the_rest():
    cohort = make_cohort("pq", "scalar")
    slot = cohort.slot
    new = {"core_p/0.value": torch.ones(4, 4), "core_q/0.value": torch.ones(4)}
    after = slot.take({"c2": new})
    assert after.ready["c2"] == {"m1"}
    assert after.ready["c0"] == READY["c0"]
    assert torch.equal(after.cohort.take("c2")["core_q/0.value"], torch.ones(4).double())
    same = after.cohort.take("c2")["core_p/0.query"]
    assert torch.equal(same, slot.cohort.take("c2")["core_p/0.query"])
    assert "c0" not in after.without(["c0"]).ready
    assert slot.ready.get("c2") is None, "what was before is as it was"
