"""Every registered strategy against every law."""

from dataclasses import replace

import pytest
import torch

from atlas.errors import InputError
from atlas.federation import strategies
from atlas.federation.adapters.adapter import Layout, Member
from atlas.federation.adapters.cohort import initial_cohort
from atlas.federation.batching.backbone import HeadLayer
from atlas.federation.mixing.apply import mix_cohort
from atlas.federation.strategies.base import (
    STRATEGIES,
    Strategy,
    View,
    find_strategy,
    identity,
    register,
)
from atlas.ops.graph.affinity import unit_rows
from atlas.ops.lowrank.factors import delta
from atlas.ops.lowrank.mixing import check_mixing
from tests.helpers import padding_is_zero
from tests.ops.lowrank.test_common_gauge import naive_mixture

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
        signatures=torch.randn(n, 5, generator=draw, dtype=torch.float64),
        clusters=(0, 1, 0, 1)[:n],
        norms=lambda: torch.tensor([2.0, 0.5, 1.5, 4.0][:n], dtype=torch.float64),
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
    return mix_cohort(cohort, strategy.relation(view), **strategy.mixing)


@every_strategy
def test_w_is_row_stochastic(name):
    for n in (1, 2, 4):
        check_mixing(STRATEGIES[name].relation(make_view(n)))


@every_strategy
def test_client_order_is_irrelevant(name):
    view = make_view()
    order = [2, 0, 3, 1]
    shuffled = replace(
        view,
        clients=tuple(view.clients[i] for i in order),
        examples=view.examples[order],
        tasks=tuple(view.tasks[i] for i in order),
        features=view.features[order],
        signatures=view.signatures[order],
        clusters=tuple(view.clusters[i] for i in order),
        norms=lambda: view.norms()[order],
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
    assert padding_is_zero(mixed)
    assert mixed.clients == cohort.clients
    assert {k: v.dtype for k, v in mixed.tensors.items()} == {
        k: v.dtype for k, v in cohort.tensors.items()
    }
    if STRATEGIES[name].space == "stack":
        # Whoever is stacked has the ranks of all.
        assert all(member.ranks == (11, 12) for member in mixed.members)
        return
    assert mixed.members == cohort.members
    assert all(v.shape == cohort.tensors[k].shape for k, v in mixed.tensors.items())


def exact_mixture(cohort, weights, k):
    """The sum over clients of W times what each of them changes."""
    own = changes(cohort)
    return sum(weights[k, j] * own[j] for j in range(len(own)))


def cut_mixture(cohort, weights, k):
    u, s, vh = torch.linalg.svd(exact_mixture(cohort, weights, k), full_matrices=False)
    rank = cohort.members[k].ranks[0]
    return (u[:, :rank] * s[:rank]) @ vh[:rank]


def padded_factors(cohort, weights, k):
    """Means of A and of the scaled B slot by slot; whoever lacks a slot counts as zero."""
    rank, scales = cohort.members[k].ranks[0], cohort.scales(0)
    a = torch.zeros(rank, 9, dtype=torch.float64)
    scaled_b = torch.zeros(7, rank, dtype=torch.float64)
    for j, client in enumerate(cohort.clients):
        adapter = cohort.take(client)
        for slot in range(min(rank, cohort.members[j].ranks[0])):
            a[slot] += weights[k, j] * adapter["lora_a/m0"][slot]
            scaled_b[:, slot] += weights[k, j] * scales[j] * adapter["lora_b/m0"][:, slot]
    return a, scaled_b


def padded_mixture(cohort, weights, k):
    a, scaled_b = padded_factors(cohort, weights, k)
    return scaled_b @ a


def mixture_under_own_a(cohort, weights, k):
    return padded_factors(cohort, weights, k)[1] @ cohort.take(f"c{k}")["lora_a/m0"]


def rotated_mixture(cohort, weights, k):
    a, b, ranks, scales = cohort.layer(0)
    found = naive_mixture(a.numpy(), b.numpy(), ranks.tolist(), scales.tolist(), weights[k].numpy())
    new_a, new_b = (torch.from_numpy(part) for part in found[k])
    return scales[k] * (new_b @ new_a)


TWINS = {
    "rotate": rotated_mixture,
    "product": cut_mixture,
    "svd": cut_mixture,
    "stack": exact_mixture,
    "factors": padded_mixture,
    "b": mixture_under_own_a,
    "core": cut_mixture,
}


@every_strategy
def test_mixture_equals_a_naive_double_loop(name):
    strategy, view, cohort = STRATEGIES[name], make_view(), make_cohort()
    weights = strategy.relation(view)
    found = changes(apply(strategy, cohort, view))
    for k in range(4):
        twin = strategy.space if strategy.align == "none" else strategy.align
        # Turns are decided by the identity where factors say nothing, so to about 1e-9 only.
        close = 1e-10 if strategy.align == "none" else 1e-6
        assert torch.allclose(found[k], TWINS[twin](cohort, weights, k), atol=close), twin


@every_strategy
def test_what_is_not_trained_is_neither_mixed_nor_sent(name):
    strategy, cohort = STRATEGIES[name], make_cohort()
    mixed = apply(strategy, cohort, make_view())
    for key, value in cohort.tensors.items():
        if not strategy.travels(key):
            assert torch.equal(mixed.tensors[key], value)
    sends = strategy.sends == "adapters"
    assert strategy.travels("lora_b/m0") == sends
    assert strategy.travels("lora_a/m0") == (sends and strategy.trains == "both")
    assert strategy.travels("head/classifier.bias") == (sends and strategy.heads == "mix")


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


@pytest.mark.parametrize("space", ["product", "svd", "b", "stack"])
def test_alignment_is_refused_where_a_common_rotation_changes_nothing(space):
    with pytest.raises(InputError, match=f"'turned': align 'rotate' in space '{space}'.*factors"):
        register(Strategy(name="turned", relation=identity, space=space, align="rotate"))
    assert "turned" not in STRATEGIES
