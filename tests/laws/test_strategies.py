"""Every registered strategy against every law."""

import pytest
import torch

from atlas.errors import InputError
from atlas.federation import strategies
from atlas.federation.backbone import HeadLayer
from atlas.federation.cohort import Layout, Member, initial_cohort, mix_cohort
from atlas.federation.strategy import STRATEGIES, Strategy, View, find_strategy, identity, register
from atlas.ops.affinity import unit_rows
from atlas.ops.lowrank import delta
from atlas.ops.mixing import check_mixing
from tests.helpers import padding_is_zero

assert strategies.__all__
LAYOUT = Layout(
    "law", ("m0", "m1"), ((9, 7), (8, 6)), (HeadLayer("classifier", 5, 0, True, "identity"),), 16.0
)
every_strategy = pytest.mark.parametrize("name", sorted(STRATEGIES))


def make_view(n=4):
    draw = torch.Generator().manual_seed(3)
    return View(
        clients=tuple(f"c{i}" for i in range(n)),
        examples=torch.tensor([10.0, 30.0, 5.0, 55.0][:n], dtype=torch.float64),
        tasks=("x", "y", "x", "y")[:n],
        round=1,
        features=unit_rows(torch.randn(n, 3, generator=draw, dtype=torch.float64)),
        clusters=(0, 1, 0, 1)[:n],
    )


def make_cohort(n=4, *, equal=False):
    ranks = [(2, 3), (4, 1), (3, 3), (2, 5)]
    members = [
        Member(f"c{i}", (3, 3) if equal else ranks[i], ("no", "yes") if i % 2 else ("a", "b", "c"))
        for i in range(n)
    ]
    cohort = initial_cohort(LAYOUT, members, 0, dtype=torch.float64)
    filled = {}
    for row, member in enumerate(members):
        draw = torch.Generator().manual_seed(0 if equal else row)
        filled[member.id] = {
            name: torch.randn(value.shape, generator=draw, dtype=torch.float64)
            for name, value in cohort.take(member.id).items()
        }
    return cohort.put(filled)


def changes(cohort, module="m0", index=0):
    a, b = cohort.tensors[f"lora_a/{module}"], cohort.tensors[f"lora_b/{module}"]
    return delta(a, b, cohort.scales(index))


def apply(strategy, cohort, view):
    return mix_cohort(cohort, strategy.relation(view), space=strategy.space, heads=strategy.heads)


@every_strategy
def test_w_is_row_stochastic(name):
    for n in (1, 2, 4):
        check_mixing(STRATEGIES[name].relation(make_view(n)))


@every_strategy
def test_client_order_is_irrelevant(name):
    view = make_view()
    order = [2, 0, 3, 1]
    shuffled = View(
        tuple(view.clients[i] for i in order),
        view.examples[order],
        tuple(view.tasks[i] for i in order),
        view.round,
        view.features[order],
        tuple(view.clusters[i] for i in order),
    )
    relation = STRATEGIES[name].relation
    assert torch.allclose(relation(shuffled), relation(view)[order][:, order])


@every_strategy
def test_inputs_are_not_changed(name):
    view, cohort = make_view(), make_cohort()
    before = view.examples.clone(), {k: v.clone() for k, v in cohort.tensors.items()}
    apply(STRATEGIES[name], cohort, view)
    assert torch.equal(view.examples, before[0])
    assert all(torch.equal(v, before[1][k]) for k, v in cohort.tensors.items())


@every_strategy
def test_consensus_is_a_fixed_point(name):
    cohort = make_cohort(equal=True)
    mixed = apply(STRATEGIES[name], cohort, make_view())
    for i, module in enumerate(LAYOUT.modules):
        assert torch.allclose(changes(mixed, module, i), changes(cohort, module, i), atol=1e-10)


@every_strategy
def test_a_single_client_keeps_its_own(name):
    cohort = make_cohort(1)
    mixed = apply(STRATEGIES[name], cohort, make_view(1))
    assert all(torch.equal(v, cohort.tensors[k]) for k, v in mixed.tensors.items())


@every_strategy
def test_ranks_padding_dtype_and_names_are_kept(name):
    cohort = make_cohort()
    mixed = apply(STRATEGIES[name], cohort, make_view())
    assert mixed.members == cohort.members
    assert padding_is_zero(mixed)
    assert {k: (v.shape, v.dtype) for k, v in mixed.tensors.items()} == {
        k: (v.shape, v.dtype) for k, v in cohort.tensors.items()
    }


@every_strategy
def test_mixture_equals_a_naive_double_loop(name):
    strategy, view, cohort = STRATEGIES[name], make_view(), make_cohort()
    weights, own = strategy.relation(view), changes(cohort)
    found = changes(apply(strategy, cohort, view))
    for k in range(4):
        wanted = torch.zeros_like(own[0])
        for j in range(4):
            wanted += weights[k, j] * own[j]
        u, s, vh = torch.linalg.svd(wanted, full_matrices=False)
        rank = cohort.members[k].ranks[0]
        assert torch.allclose(found[k], (u[:, :rank] * s[:rank]) @ vh[:rank], atol=1e-10)


@every_strategy
def test_heads_mix_only_within_a_label_set(name):
    strategy, cohort = STRATEGIES[name], make_cohort()
    before = cohort.tensors["head/classifier.weight"]
    after = apply(strategy, cohort, make_view()).tensors["head/classifier.weight"]
    assert not after[1::2, 2:].any(), "padded label rows stay zero"
    if strategy.heads == "personal":
        assert torch.equal(after, before)
    pair = before[[0, 2]]
    span = torch.linalg.lstsq(pair.reshape(2, -1).T, after[0].reshape(-1, 1)).solution
    assert torch.allclose((span * pair.reshape(2, -1)).sum(0), after[0].reshape(-1), atol=1e-8)


def test_one_w_per_layer():
    cohort = make_cohort()
    mean = torch.full((4, 4), 0.25, dtype=torch.float64)
    stacked = torch.stack([torch.eye(4, dtype=torch.float64), mean])
    mixed = mix_cohort(cohort, stacked, space="product", heads="personal")
    assert torch.equal(mixed.tensors["lora_a/m0"], cohort.tensors["lora_a/m0"])
    whole = mix_cohort(cohort, mean, space="product", heads="personal")
    assert torch.equal(mixed.tensors["lora_b/m1"], whole.tensors["lora_b/m1"])


def test_names_are_taken_once_and_unknown_ones_refused():
    with pytest.raises(ValueError, match="registered twice"):
        register(Strategy(name="fedavg", relation=identity))
    with pytest.raises(InputError, match="did you mean pooled"):
        find_strategy("poled")
