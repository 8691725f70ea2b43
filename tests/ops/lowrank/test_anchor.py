"""The pull to an anchor: half the squared distance of what layers really add."""

import pytest
import torch

from atlas.ops.lowrank.factors import delta, product_gap, rank_mask
from atlas.ops.lowrank.factors import pull as pull_parts

MODULES, WIDTHS, RANKS = ("m0", "m1"), ((9, 7), (5, 8)), (2, 4, 3)
SCALES = tuple(16.0 / torch.tensor(RANKS, dtype=torch.float64) for _ in MODULES)
HEADS = {"head/classifier.weight": (3, 2, 6), "head/classifier.bias": (3, 2)}


def make_stack(seed, dtype=torch.float64):
    """Three rows of unequal rank, padded with zeros, and their heads."""
    draw = torch.Generator().manual_seed(seed)
    used = rank_mask(torch.tensor(RANKS), max(RANKS))
    tensors = {}
    for module, (d_in, d_out) in zip(MODULES, WIDTHS, strict=True):
        a = torch.randn(3, max(RANKS), d_in, generator=draw, dtype=torch.float64)
        b = torch.randn(3, d_out, max(RANKS), generator=draw, dtype=torch.float64)
        tensors[f"lora_a/{module}"] = a * used[:, :, None]
        tensors[f"lora_b/{module}"] = b * used[:, None, :]
    for name, shape in HEADS.items():
        tensors[name] = torch.randn(shape, generator=draw, dtype=torch.float64)
    return {name: value.to(dtype) for name, value in tensors.items()}


def pull(tensors, anchor, scales, modules):
    """`pull` of tensors by name."""

    def factors(tensors, module):
        return tensors[f"lora_a/{module}"], tensors[f"lora_b/{module}"]

    layers = [(factors(tensors, m), factors(anchor, m)) for m in modules]
    return pull_parts(
        layers, scales, [(tensors[name], anchor[name]) for name in HEADS if name in tensors]
    )


def dense_pull(tensors, anchor):
    """The slow twin: every d_out x d_in matrix is formed, row by row."""
    found = []
    for row in range(len(RANKS)):
        total = torch.zeros((), dtype=torch.float64)
        for i, module in enumerate(MODULES):
            changes = [
                delta(s[f"lora_a/{module}"][row], s[f"lora_b/{module}"][row], float(SCALES[i][row]))
                for s in (tensors, anchor)
            ]
            total = total + (changes[0] - changes[1]).square().sum()
        for name in HEADS:
            total = total + (tensors[name][row] - anchor[name][row]).square().sum()
        found.append(total / 2)
    return torch.stack(found)


def turned(tensors):
    """The same changes by other factors: B G^-1 and G A, padding left alone."""
    draw = torch.Generator().manual_seed(9)
    other = {name: value.clone() for name, value in tensors.items()}
    for module in MODULES:
        for row, rank in enumerate(RANKS):
            gauge = torch.randn(rank, rank, generator=draw, dtype=torch.float64) + 3 * torch.eye(
                rank, dtype=torch.float64
            )
            a, b = tensors[f"lora_a/{module}"][row], tensors[f"lora_b/{module}"][row]
            other[f"lora_a/{module}"][row, :rank] = gauge @ a[:rank]
            other[f"lora_b/{module}"][row, :, :rank] = b[:, :rank] @ torch.linalg.inv(gauge)
    return other


def leaves(tensors):
    return {name: value.clone().requires_grad_() for name, value in tensors.items()}


def gradients(cost, tensors):
    return dict(zip(tensors, torch.autograd.grad(cost.sum(), list(tensors.values())), strict=True))


def test_pull_is_half_the_squared_distance_of_dense_changes():
    tensors, anchor = make_stack(1), make_stack(2)
    found = pull(tensors, anchor, SCALES, MODULES)
    assert found.shape == (3,)
    assert torch.allclose(found, dense_pull(tensors, anchor), rtol=1e-12, atol=0)


def test_gradients_are_those_of_the_dense_twin():
    anchor, one, two = make_stack(2), leaves(make_stack(1)), leaves(make_stack(1))
    found = gradients(pull(one, anchor, SCALES, MODULES), one)
    wanted = gradients(dense_pull(two, anchor), two)
    for name, value in wanted.items():
        assert torch.allclose(found[name], value, rtol=1e-10, atol=1e-10), name


def test_gradients_pass_finite_differences():
    tensors, anchor = make_stack(1), make_stack(2)
    names = list(tensors)

    def cost(*values):
        return pull(dict(zip(names, values, strict=True)), anchor, SCALES, MODULES)

    values = tuple(leaves(tensors).values())
    assert torch.autograd.gradcheck(cost, values)


def test_padding_feels_no_pull():
    moving = leaves(make_stack(1))
    found = gradients(pull(moving, make_stack(2), SCALES, MODULES), moving)
    unused = ~rank_mask(torch.tensor(RANKS), max(RANKS))
    for module in MODULES:
        assert not found[f"lora_a/{module}"][unused].any()
        assert not found[f"lora_b/{module}"].transpose(1, 2)[unused].any()
        assert found[f"lora_a/{module}"].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_gradient_are_exactly_zero_at_the_anchor(dtype):
    anchor = make_stack(2, dtype)
    moving = leaves(anchor)
    cost = pull(moving, anchor, SCALES, MODULES)
    assert cost.dtype == dtype
    assert not cost.any()
    assert not any(value.any() for value in gradients(cost, moving).values())


def test_the_gauge_of_factors_does_not_count():
    tensors, anchor = make_stack(1), make_stack(2)
    straight = pull(tensors, anchor, SCALES, MODULES)
    assert torch.allclose(pull(turned(tensors), anchor, SCALES, MODULES), straight, rtol=1e-10)
    assert torch.allclose(pull(tensors, turned(anchor), SCALES, MODULES), straight, rtol=1e-10)
    same = pull(turned(tensors), tensors, SCALES, MODULES)
    assert (same >= 0).all()
    assert (same < 1e-10 * straight).all()
    # The control: the factors themselves are far apart.
    apart = [(turned(tensors)[k] - tensors[k]).square().sum() for k in tensors]
    assert sum(apart) > 10


def test_small_distances_survive_float32():
    """Multiplied out, the square of a small difference would drown in rounding."""
    anchor = make_stack(2)
    near = {name: value + 1e-5 * make_stack(3)[name] for name, value in anchor.items()}
    near, anchor = ({k: v.float() for k, v in stack.items()} for stack in (near, anchor))
    exact = [{k: v.double() for k, v in stack.items()} for stack in (near, anchor)]
    found = pull(near, anchor, SCALES, MODULES).double()
    assert torch.allclose(found, dense_pull(*exact), rtol=1e-3, atol=0)
    a, b, a0, b0 = (s[f"lora_{k}/m0"] for s in (near, anchor) for k in "ab")
    inner = [
        torch.trace(left[0].T @ right[0] @ up[0] @ down[0].T)
        for left, right, up, down in ((b, b, a, a), (b0, b, a, a0), (b0, b0, a0, a0))
    ]
    naive = float(inner[0] - 2 * inner[1] + inner[2])
    change, anchored = (delta(s["lora_a/m0"][0], s["lora_b/m0"][0], 1.0) for s in exact)
    wanted = float((change - anchored).square().sum())
    assert float(product_gap((a, b), (a0, b0))[0]) == pytest.approx(wanted, rel=1e-3)
    assert abs(naive - wanted) > 0.1 * wanted


def test_rows_are_independent_and_inputs_unchanged():
    tensors, anchor = make_stack(1), make_stack(2)
    before = {name: value.clone() for name, value in tensors.items()}
    whole = pull(tensors, anchor, SCALES, MODULES)
    for row in range(3):
        one = [{k: v[[row]] for k, v in stack.items()} for stack in (tensors, anchor)]
        single = pull(*one, tuple(scale[[row]] for scale in SCALES), MODULES)
        assert torch.allclose(single, whole[[row]], rtol=1e-12, atol=0)
    assert all(torch.equal(value, before[name]) for name, value in tensors.items())


def test_adapters_without_a_head_are_pulled_by_their_products():
    stacks = [
        {k: v for k, v in make_stack(seed).items() if not k.startswith("head/")} for seed in (1, 2)
    ]
    found = pull(*stacks, SCALES, MODULES)
    head = sum((make_stack(1)[k] - make_stack(2)[k]).square().flatten(1).sum(1) for k in HEADS)
    assert torch.allclose(found + head / 2, dense_pull(make_stack(1), make_stack(2)), rtol=1e-12)
