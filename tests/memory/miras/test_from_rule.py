"""Rules of the Miras family: one declaration, computed in chunks, token by token and by kernels."""

import itertools
from dataclasses import replace

import pytest
import torch

from atlas.config.rule import Rule
from atlas.errors import InputError
from atlas.memory.kernels.chunked import run_rule
from atlas.memory.layer.follow import (
    begin,
    begin_again,
    follow,
    follow_naive,
    shapes_of,
    weights_of,
)
from atlas.memory.layer.settings import LayerSettings
from atlas.memory.miras.chunked import variant_chunked
from atlas.memory.miras.from_rule import begin_variant, run_variant
from atlas.memory.rules.rule import Tokens
from atlas.memory.rules.state import initial_state
from tests.memory.rules.helpers import D_K, D_V, draw, off

LENGTH = 19
BIASES, RETENTIONS = ("l2", "lp", "huber"), ("l2", "lq", "kl", "elastic-net")
LEARNERS, ARCHITECTURES = ("momentum", "newton-schulz", "descent"), ("matrix", "mlp")
ALL = [
    own
    for own in itertools.product(BIASES, RETENTIONS, LEARNERS, ARCHITECTURES)
    if own not in {("l2", "l2", "momentum", "matrix"), ("l2", "l2", "newton-schulz", "matrix")}
]
GATED = [
    {"bias": "huber", "forgetting": "local-global"},
    {"retention": "kl", "momentum": 0.7, "architecture": "mlp", "expansion": 1},
    {"bias": "lp", "weighting": "both", "anchor": "start", "bias_power": 2.5},
    {"retention": "lq", "weighting": "none", "learner": "newton-schulz"},
]


def made(rule, seed=0):
    """Tokens and the matrices that a memory starts from, all of them leaves."""
    leaves = draw(LENGTH, seed=seed)
    weights = [
        (0.3 * torch.randn(2, 2, *shape, generator=torch.Generator().manual_seed(i)).double())
        for i, shape in enumerate(shapes_of(rule, D_K, D_V))
    ]
    leaves[5] = (leaves[5].detach() / 5).requires_grad_()  # steps that perceptrons bear
    tokens = Tokens(*leaves[:6], delta=leaves[4] + 0.2)
    return tokens, tuple(own.requires_grad_() for own in weights), leaves[:6]


def results(run, rule, cuts=()):
    tokens, weights, leaves = made(rule)
    state, outputs, at = begin(weights, rule), [], 0
    for end in (*cuts, LENGTH):
        output, state = run(tokens.cut(at, end), state, rule)
        outputs.append(output)
        at = end
    assert state.position == LENGTH
    found = [torch.cat(outputs, 2), *weights_of(state, rule), *state.momentum]
    total = sum((part * torch.linspace(-1, 1, part.shape[-1]).double()).sum() for part in found)
    grads = torch.autograd.grad(total, [*leaves, *weights], allow_unused=True)
    return found, [grad for grad in grads if grad is not None]


def named(own, **more):
    keys = ("bias", "retention", "learner", "architecture")
    return Rule("chunk-start", 6, **dict(zip(keys, own, strict=True)), **more)


@pytest.mark.parametrize(
    "rule",
    [*(named(own) for own in ALL), *(Rule("chunk-start", 6, **own) for own in GATED)],
    ids=str,
)
def test_chunks_and_pieces_are_the_token_loop(rule):
    wanted, wanted_grads = results(follow_naive, rule)
    for cuts in ((), (1, 5, 6, 14)):
        found, grads = results(follow, rule, cuts)
        for one, other in zip(found, wanted, strict=True):
            assert off(one, other) < 1e-10
        for one, other in zip(grads, wanted_grads, strict=True):
            assert off(one, other) < 1e-9


@pytest.mark.parametrize("weighting", ["added", "both", "step", "none"])
@pytest.mark.parametrize("learner", ["momentum", "newton-schulz"])
@pytest.mark.parametrize("more", [{}, {"momentum": 0.6, "forgetting": "local-global"}], ids=str)
def test_a_rule_of_the_kernels_is_the_same_variant(learner, weighting, more):
    """Declared once, computed twice: by the kernels, and as one of the Miras family."""
    rule = Rule("chunk-start", 6, learner=learner, weighting=weighting, **more)
    tokens, weights, leaves = made(rule)
    wanted, kernel = run_rule(tokens, initial_state(*weights, rule), rule)
    found, variant = run_variant(variant_chunked, tokens, begin_variant(weights, rule), rule)
    assert off(found, wanted) < 1e-10
    assert off(variant.dual[0], kernel.memory) < 1e-10
    grads = [
        torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)
        for out in (found, wanted)
    ]
    for one, other in zip(*grads, strict=True):
        assert (one is None) == (other is None)
        assert one is None or off(one, other) < 1e-9


@pytest.mark.parametrize(
    "change",
    [
        {"bias": "lp"},
        {"bias": "huber"},
        {"retention": "lq"},
        {"retention": "kl"},
        {"retention": "elastic-net", "retention_threshold": 0.05},
        {"architecture": "mlp"},
        {"learner": "momentum"},
        {"learner": "newton-schulz"},
        {"forgetting": "local-global"},
        {"anchor": "start"},
        {"chunk": 3},
    ],
    ids=str,
)
def test_every_choice_changes_the_outcome(change):
    base = Rule("chunk-start", 6, learner="descent")
    outputs = []
    for rule in (base, replace(base, **change)):
        tokens, weights, _ = made(rule)
        strong = tuple(4 * own for own in weights)  # above the floor of an lq norm
        outputs.append(follow(tokens, begin(strong, rule), rule)[0])
    assert off(*outputs) > 1e-3


@pytest.mark.parametrize(
    ("name", "value", "base"),
    [
        ("bias_power", 2.0, {"bias": "lp"}),
        ("retention_power", 3.0, {"retention": "lq"}),
        ("retention_mass", 5.0, {"retention": "kl"}),
        ("retention_threshold", 0.1, {"retention": "elastic-net"}),
        ("expansion", 3, {"architecture": "mlp"}),
    ],
)
def test_every_number_counts_for_its_choice_and_is_refused_without(name, value, base):
    rule = Rule("chunk-start", 6, **base)
    outputs = []
    for own in (rule, replace(rule, **{name: value})):
        tokens, weights, _ = made(own)
        strong = tuple(4 * part for part in weights)
        outputs.append(follow(tokens, begin(strong, own), own)[0])
    assert off(*outputs) > 1e-3
    key, choice = next(iter(base.items()))
    with pytest.raises(InputError, match=f"{name}: {value}; allowed with {key}: {choice} only"):
        Rule("chunk-start", 6, **{name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bias": "lp"}, 'gradient: "exact"; allowed with bias: lp: "chunk-start" only'),
        (
            {"gradient": "chunk-start", "retention": "kl", "window": 4},
            "window: 4; allowed with retention: kl: 1 only",
        ),
        (
            {"gradient": "chunk-start", "architecture": "mlp", "queries": "projected"},
            'queries: "projected"; allowed with architecture: mlp: "plain" only',
        ),
        (
            {"gradient": "chunk-start", "bias": "huber", "read": "before"},
            'read: "before"; allowed with bias: huber: "after" only',
        ),
        ({"learner": "descent"}, "learner: descent; allowed with gradient: chunk-start only"),
        (
            {"gradient": "chunk-start", "learner": "descent", "momentum": 0.9},
            "momentum: 0.9; allowed with learner: descent: null only",
        ),
        (
            {"gradient": "chunk-start", "learner": "descent", "weighting": "none"},
            'weighting: none; allowed with learner: descent: "added" only',
        ),
        ({"anchor": "start"}, "anchor: start; allowed with a bias, retention, learner or arch"),
        ({"retention_mass": 0}, "retention_mass: 0; allowed: a number > 0"),
    ],
)
def test_what_does_not_go_together_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        Rule(**options)


def test_local_memories_are_of_the_kernels():
    own = Rule("chunk-start", 2, bias="lp")
    with pytest.raises(InputError, match=r"local_rules\[0\]: bias: lp; allowed: rules of Titans"):
        LayerSettings(2, 6, window=5, local_rules=(own,), local_shard=4)


def test_a_text_begins_its_own_chunk_and_momentum():
    rule = Rule("chunk-start", 6, bias="huber", anchor="start", architecture="mlp")
    tokens, weights, _ = made(rule)
    _, state = follow(tokens, begin(weights, rule), rule)
    assert state.offset == 1 and state.position == LENGTH
    again = begin_again(state, rule)
    assert (again.offset, again.position) == (0, 0)
    for kept, was in zip(again.dual, state.dual, strict=True):
        assert torch.equal(kept, was)
    for anchor, own in zip(again.anchor, weights, strict=True):
        assert torch.equal(anchor, own), "forgetting leads where it led before"
    assert not any(own.any() for own in again.momentum)


def test_half_precision_keeps_a_state_in_single():
    rule = Rule("chunk-start", 6, bias="lp")
    tokens, weights, _ = made(rule)
    rough = tokens.each(lambda part: part.detach().to(torch.bfloat16))
    start = tuple(own.detach().to(torch.bfloat16) for own in weights)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, state = follow(rough, begin(start, rule), rule)
    fine = rough.each(lambda part: part.float())
    wanted, exact = follow(fine, begin(tuple(own.float() for own in start), rule), rule)
    assert output.dtype == torch.bfloat16 and state.dual[0].dtype == torch.float32
    assert off(state.dual[0], exact.dual[0]) < 1e-6
    assert off(output.float(), wanted) < 2**-8
