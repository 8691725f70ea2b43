"""The pieces of memory variants: what each bias, retention and learner promises."""

import itertools
from dataclasses import replace
from functools import partial

import pytest
import torch

from atlas.memory.miras.chunked import variant_chunked
from atlas.memory.miras.retention import kl, lq
from atlas.memory.miras.variant import LINEAR, PRESETS, VariantTokens, fresh_state, read
from tests.memory.miras.helpers import REGISTRIES, build, make, off_by


def published(names, tokens, weights):
    """One matrix, one token after the other, as the papers print it (retention per token)."""
    bias, retention = names
    dual, outputs = weights[0], []
    norm = torch.linalg.vector_norm
    for t in range(tokens.keys.shape[2]):
        q, k, v = (x[:, :, t : t + 1] for x in tokens[:3])
        keep, step = 1 - tokens.alpha[:, :, t, None, None], tokens.theta[:, :, t, None, None]
        delta = tokens.delta[:, :, t, None, None]
        scale = norm(dual, ord=4, dim=(-2, -1), keepdim=True).clamp_min(1) ** -2
        now = {"lq": dual * scale, "kl": torch.softmax(dual, -2)}.get(retention, dual)
        e = k @ now - v
        length = norm(e, dim=-1, keepdim=True)
        right = {
            "l2": e,
            "lp": 3 * torch.tanh(10 * e) * (e**2 + 1e-6),
            "huber": torch.where(length <= delta, e, delta * e / length),
        }[bias]
        dual = keep * dual - step * k.mT @ right
        if retention == "elastic_net":
            dual = dual.sign() * (dual.abs() - 1e-3).clamp_min(0)
        if retention == "kl":
            dual = torch.softmax(dual, -2).log()
        scale = norm(dual, ord=4, dim=(-2, -1), keepdim=True).clamp_min(1) ** -2
        now = {"lq": dual * scale, "kl": torch.softmax(dual, -2)}.get(retention, dual)
        outputs.append(q @ now)
    return torch.cat(outputs, 2)


@pytest.mark.parametrize(
    "names", [("lp", "lq"), ("huber", "l2"), ("l2", "kl"), ("l2", "elastic_net")], ids="-".join
)
def test_chunks_of_one_token_are_the_published_rule(names):
    variant = build((*names, "descent", "matrix"), chunk=1)
    tokens, weights = make(variant, 12)
    weights = (weights[0] * 4,)  # large enough for the lq norm to exceed its floor
    found, _ = variant_chunked(variant, tokens, fresh_state(weights))
    assert off_by(found, published(names, tokens, weights)) <= 1e-11


@pytest.mark.parametrize("axis", range(4))
def test_every_axis_changes_the_outcome(axis):
    base = ("l2", "l2", "descent", "mlp")
    outputs = []
    for name in REGISTRIES[axis]:
        variant = build((*base[:axis], name, *base[axis + 1 :]), chunk=4)
        tokens, weights = make(variant, 12)
        outputs.append(variant_chunked(variant, tokens, fresh_state(weights))[0])
    for one, two in itertools.combinations(outputs, 2):
        assert off_by(one, two) > 1e-4


def test_weights_under_kl_stay_distributions():
    variant = build(("l2", "kl", "descent", "matrix"), chunk=4)
    tokens, weights = make(variant, 30, step=2.0)
    one_hot = torch.eye(4, dtype=torch.float64).expand(2, 2, 4, 4)
    for length in (3, 4, 30):
        _, state = variant_chunked(variant, tokens.cut(0, length), fresh_state(weights))
        rows = read(variant, state, one_hot)
        assert torch.allclose(rows.sum(-2), torch.ones(2, 2, 3, dtype=torch.float64), atol=1e-12)
        assert float(rows.min()) > 0


def error_left(variant, change=lambda values: values):
    """Error after four pairs were repeated 60 times, as a share of the error before."""
    variant = replace(variant, chunk=4)
    tokens, weights = make(variant, 4)
    gates = {"alpha": tokens.alpha * 0, "theta": tokens.theta * 0 + 0.1}
    lesson = tokens._replace(values=change(tokens.values), **gates)
    start = fresh_state(weights)
    _, end = variant_chunked(variant, lesson.each(lambda part: torch.cat([part] * 60, 2)), start)
    before, after = (read(variant, s, tokens.keys) - lesson.values for s in (start, end))
    return float(after.square().mean() / before.square().mean())


def test_presets_learn_what_a_sequence_repeats():
    assert error_left(PRESETS["linear"]) < 0.3
    assert error_left(PRESETS["yaad"]) < 0.3
    assert error_left(PRESETS["moneta"], lambda values: values / 10) < 0.3
    # Weights that are distributions reach positive values only.
    assert error_left(replace(PRESETS["memora"], retention=kl(mass=6.0)), torch.abs) < 0.3


def test_lq_as_printed_cannot_hold_large_values_beyond_q_three():
    assert error_left(PRESETS["moneta"]) > 0.9
    assert error_left(replace(PRESETS["moneta"], retention=lq(2.5))) < 0.1


def test_lq_weights_shrink_as_the_dual_grows_beyond_q_three():
    """||W||_q = ||A||_q^(3-q), as printed: what q = 4 cannot hold, q = 2.5 can."""
    dual = make(LINEAR, 1)[1][0]
    norm = partial(torch.linalg.vector_norm, dim=(-2, -1))
    for q in (2.0, 2.5, 4.0):
        retention = lq(q, floor=1e-3)
        sizes = [norm(retention.weights(c * dual, c * dual), ord=q) for c in (1, 10)]
        assert torch.allclose(sizes[1] / sizes[0], torch.full((2, 2), 10 ** (3 - q)).double())
    assert torch.equal(lq(4.0, floor=1e6).weights(dual, dual), dual * 1e6**-2)


def test_an_anchor_keeps_a_two_layer_memory_alive():
    """Forgotten to zero it cannot learn again, forgotten to its anchor it can."""
    variant = replace(PRESETS["yaad"], chunk=4)
    tokens, weights = make(variant, 4)
    steps = {"alpha": tokens.alpha * 0, "theta": tokens.theta * 0 + 0.2, "delta": tokens.delta + 9}
    lesson = tokens._replace(**steps).each(lambda part: torch.cat([part] * 60, 2))
    blank = lesson._replace(alpha=lesson.alpha * 0 + 0.3, theta=lesson.theta * 0)
    error = {}
    for name, anchor in (("zero", None), ("start", weights)):
        _, state = variant_chunked(variant, blank, fresh_state(weights, anchor))
        _, state = variant_chunked(variant, lesson, state)
        left = read(variant, state, tokens.keys) - tokens.values
        error[name] = float(left.square().mean() / tokens.values.square().mean())
    assert error["zero"] == pytest.approx(1)
    assert error["start"] < 0.3


def test_elastic_net_forgets_small_entries_for_good():
    tokens, weights = make(LINEAR, 16)
    still = tokens._replace(theta=torch.zeros_like(tokens.theta))
    variant = build(("l2", "elastic_net", "descent", "matrix"), chunk=16)
    _, thresholded = variant_chunked(variant, still, fresh_state(weights))
    _, decayed = variant_chunked(LINEAR, still, fresh_state(weights))
    small = decayed.dual[0].abs() <= 16e-3
    assert small.any()
    assert torch.equal(thresholded.dual[0] == 0, small)


def test_an_outlier_moves_a_huber_memory_no_further_than_its_threshold():
    sizes = {}
    for bias in ("l2", "huber"):
        variant = build((bias, "l2", "descent", "matrix"), chunk=4)
        tokens, weights = make(variant, 1)
        wild = tokens._replace(values=tokens.values * 1e4, alpha=torch.zeros_like(tokens.alpha))
        _, state = variant_chunked(variant, wild, fresh_state(weights))
        sizes[bias] = (state.dual[0] - weights[0]).norm(dim=(-2, -1))
    bound = (tokens.theta * tokens.delta)[..., 0]
    assert torch.allclose(sizes["huber"], bound, rtol=1e-9)
    assert (sizes["l2"] > 100 * bound).all()


def test_bad_pieces_are_refused():
    tokens, weights = make(LINEAR, 3)
    blind = VariantTokens(*tokens[:6])
    with pytest.raises(ValueError, match="delta"):
        variant_chunked(build(("huber", "l2", "descent", "matrix"), 4), blind, fresh_state(weights))
    for registry, name, setting in (
        (REGISTRIES[0], "lp", {"p": 0.5}),
        (REGISTRIES[1], "lq", {"q": 1.0}),
        (REGISTRIES[1], "lq", {"floor": 0.0}),
        (REGISTRIES[1], "kl", {"mass": 0.0}),
        (REGISTRIES[1], "elastic_net", {"gamma": -1.0}),
    ):
        with pytest.raises(ValueError, match=r"lp|lq|kl|threshold"):
            registry[name](**setting)


def lp_loss(e):
    return (e.abs() ** 3).sum()


def huber_loss(e, delta=0.7):
    length = e.norm(dim=-1)
    return torch.where(length <= delta, length**2 / 2, delta * (length - delta / 2)).sum()


@pytest.mark.parametrize(
    ("name", "loss", "tolerance"),
    # tanh and the rounded root are the stated stand-ins for sign and size: 1e-4 of the true slope.
    [
        ("l2", lambda e: (e**2).sum() / 2, 1e-12),
        ("huber", huber_loss, 1e-12),
        ("lp", lp_loss, 1e-4),
    ],
)
def test_a_bias_is_the_gradient_of_its_loss(name, loss, tolerance):
    draw = torch.Generator().manual_seed(1)
    error = torch.randn(40, 3, generator=draw, dtype=torch.float64)
    if name == "lp":
        error = error.sign() * (error.abs() + 0.5)
    error.requires_grad_()
    (wanted,) = torch.autograd.grad(loss(error), error)
    delta = torch.full((40,), 0.7, dtype=torch.float64)
    lengths = error.norm(dim=-1)
    assert name == "lp" or ((lengths < 0.7).any() and (lengths > 0.7).any())
    assert off_by(REGISTRIES[0][name]()(error, delta).detach(), wanted) <= tolerance
