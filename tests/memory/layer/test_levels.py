"""Two levels: shards in parallel are the token loop, split is whole, and resets are real."""

import pytest
import torch

from atlas.errors import InputError
from atlas.memory.layer.levels import (
    LevelTokens,
    initial_levels,
    run_levels,
    run_levels_naive,
)
from atlas.memory.layer.settings import TWO_STAGES, LayerSettings, stage_at, with_chunks
from atlas.memory.layer.state import detached, from_flat, to_flat
from atlas.memory.rules.rule import Rule, Tokens
from tests.memory.rules.helpers import D_K, D_V, HEADS, draw, off

RULES = (
    Rule("chunk-start", 32),
    Rule("chunk-start", 4, queries="projected"),
    Rule("chunk-start", 8, 3, queries="projected"),
    Rule(chunk=16),
)
SHARD = 20


def drawn(length, rules=RULES):
    leaves = [draw(length, rule.window, seed=i) for i, rule in enumerate(rules)]
    tokens = [Tokens(*own[:7]) for own in leaves]
    generator = torch.Generator().manual_seed(9)
    starts = [
        torch.randn(HEADS, D_K, D_V, generator=generator, dtype=torch.float64).requires_grad_()
        for _ in rules[1:]
    ]
    memory = leaves[0][7]
    inputs = [leaf for own in leaves for leaf in own[:7]] + [memory, *starts]
    return LevelTokens(tokens[0], tuple(tokens[1:])), memory, starts, inputs


def cut(tokens, begin, end):
    return LevelTokens(
        tokens.shared.cut(begin, end), tuple(own.cut(begin, end) for own in tokens.local)
    )


def values(run, drawing, cuts=(), rules=RULES):
    tokens, memory, starts, inputs = drawing
    state, outputs, begin = initial_levels((memory,), starts, rules, SHARD), [], 0
    for end in (*cuts, tokens.shared.length):
        output, state = run(cut(tokens, begin, end), starts, state, rules, SHARD)
        outputs.append(output)
        begin = end
    flat = to_flat(state)
    found = {"outputs": torch.cat(outputs, 2), **flat}
    total = (found["outputs"] * torch.linspace(-1, 1, D_V, dtype=torch.float64)).sum()
    total = total + sum(own.memory.square().sum() for own in (state.shared, *state.local))
    grads = torch.autograd.grad(total, inputs, allow_unused=True)
    return found, grads


@pytest.mark.parametrize("length", [1, 19, 20, 21, 65])
def test_shards_in_parallel_equal_the_token_loop(length):
    drawing = drawn(length)
    found, found_grads = values(run_levels, drawing)
    wanted, wanted_grads = values(run_levels_naive, drawing)
    assert found.keys() == wanted.keys()
    for name, part in wanted.items():
        assert part.numel() == 0 or off(found[name], part) < 1e-11, name
    for one, two in zip(found_grads, wanted_grads, strict=True):
        assert (one is None) == (two is None)
        assert one is None or off(one, two) < 1e-11


@pytest.mark.parametrize("cuts", [(20,), (7, 31), (40, 41, 60), tuple(range(1, 65))], ids=len)
def test_split_equals_whole(cuts):
    drawing = drawn(65)
    found, _ = values(run_levels, drawing, cuts)
    wanted, _ = values(run_levels, drawing)
    for name, part in wanted.items():
        assert part.numel() == 0 or off(found[name], part) < 1e-11, name


def test_local_memories_forget_at_a_shard_and_the_shared_one_does_not():
    tokens, memory, starts, _ = drawn(40)

    def second_shard(tokens, rules):
        own = starts[: len(rules) - 1]
        state = initial_levels((memory,), own, rules, SHARD)
        return run_levels(tokens, own, state, rules, SHARD)[0][:, :, 20:]

    def changed(own):
        keys = own.keys.detach().clone()
        keys[:, :, :20] = keys[:, :, :20].flip(2)
        return own._replace(keys=keys)

    none = RULES[:1]
    alone = LevelTokens(tokens.shared, ())
    other_local = tokens._replace(local=tuple(changed(own) for own in tokens.local))
    other_shared = LevelTokens(changed(tokens.shared), ())
    assert torch.equal(second_shard(other_local, RULES), second_shard(tokens, RULES))
    assert off(second_shard(other_shared, none), second_shard(alone, none)) > 1e-2
    assert off(second_shard(tokens, RULES), second_shard(alone, none)) > 1e-1


def test_learnable_starts_get_gradients():
    _, grads = values(run_levels, drawn(45))
    for start in grads[-len(RULES[1:]) :]:
        assert float(start.abs().max()) > 1e-3


def test_state_survives_a_file_and_detaches():
    tokens, memory, starts, _ = drawn(30)
    state = initial_levels((memory,), starts, RULES, SHARD)
    _, state = run_levels(tokens, starts, state, RULES, SHARD)
    again = from_flat(to_flat(state), initial_levels((memory,), starts, RULES, SHARD))
    one, _ = run_levels(cut(tokens, 3, 17), starts, state, RULES, SHARD)
    two, _ = run_levels(cut(tokens, 3, 17), starts, again, RULES, SHARD)
    assert torch.equal(one, two)
    assert state.local[0].memory.requires_grad
    assert not detached(state).local[0].memory.requires_grad


def test_two_stages_shrink_local_chunks_and_change_the_function():
    assert [stage_at(p).local for p in (0.0, 0.94, 0.95, 1.0)] == [
        (4, 8, 16, 32),
        (4, 8, 16, 32),
        (2, 4, 8, 16),
        (2, 4, 8, 16),
    ]
    rules = [Rule("chunk-start", 64), *[Rule("chunk-start", 1)] * 4]
    early, late = (with_chunks(rules, stage) for stage in TWO_STAGES)
    assert [rule.chunk for rule in early[1:]] == [4, 8, 16, 32]
    assert early[0].chunk == 2048
    drawing = drawn(40, early)
    one, two = (values(run_levels, drawing, rules=rules)[0] for rules in (early, late))
    assert off(one["outputs"], two["outputs"]) > 1e-3


def test_a_shard_without_tokens_is_refused():
    with pytest.raises(InputError, match="shard: 0"):
        LayerSettings(2, 6, window=5, local_rules=(Rule(),), local_shard=0)
