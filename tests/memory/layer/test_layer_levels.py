"""A layer with projected queries, with local memories, and with the chunks of another stage."""

from dataclasses import replace

import pytest
import torch

from atlas.errors import InputError
from atlas.memory.layer.attention import join_heads
from atlas.memory.layer.gates import ReadMode
from atlas.memory.layer.observe import observe
from atlas.memory.layer.settings import LayerSettings, Stage
from atlas.memory.rules.rule import Rule
from tests.memory.layer.helpers import HEAD_WIDTH, HEADS, LEVELS, draw_tokens, largest, make_layer
from tests.memory.layer.twins import blended, dense_attention, plain_local, plain_tokens

NEVER = 10**6
LOCAL = LEVELS["local_rules"]
ONES = Stage(1, (1, 1, 1))


def with_settings(layer, **changes):
    """The same weights, read by other rules."""
    layer.memory.settings = replace(layer.memory.settings, **changes)
    return layer


def one_by_one(layer, x, rules):
    """What a layer without persistent tokens gives if each memory follows its formulas."""
    tokens, own = plain_tokens(layer, x), layer.memory
    starts = (own.initial, *getattr(own, "local_initial", ()))
    shards = (NEVER, *[layer.settings.local_shard] * (len(rules) - 1))
    memories = zip(starts, rules, shards, strict=True)
    known = join_heads(sum(plain_local(tokens, *memory) for memory in memories))
    seen = dense_attention(layer, x, layer.persistent.expand(2, -1, -1))
    return blended(layer, x, seen, known) @ layer.o_proj.weight.T


@pytest.mark.parametrize("memory", ["exact", "projected", "chunk-start", "levels"])
def test_every_memory_follows_its_formulas(memory):
    layer, x = make_layer(memory=memory, persistent=0), draw_tokens()
    settings = layer.settings
    wanted = one_by_one(layer, x, settings.rules)
    assert largest(layer(x)[0] - wanted) < 1e-11


def test_projected_queries_are_another_function_and_know_persistent_tokens():
    x = draw_tokens()
    plain, projected = make_layer(memory="exact"), make_layer(memory="projected")
    assert largest(projected(x)[0] - plain(x)[0]) > 1e-2
    assert plain.start(2).branch.memory.prefix is None
    begun = projected.start(2).branch.memory.prefix
    assert torch.allclose(begun.diagonal(dim1=-2, dim2=-1).sum(-1), torch.tensor(2.0).double())


@pytest.mark.parametrize(
    "changes",
    [
        {"local_rules": (*LOCAL[:2], replace(LOCAL[2], queries="plain"))},
        {"local_rules": (replace(LOCAL[0], chunk=4), *LOCAL[1:])},
        {"local_shard": 9},
        {"rule": replace(LEVELS["rule"], chunk=13)},
        {"rule": replace(LEVELS["rule"], queries="projected")},
    ],
    ids=["local queries", "local chunk", "shard", "shared chunk", "shared queries"],
)
def test_every_setting_of_the_levels_counts(changes):
    x = draw_tokens()
    before = make_layer(memory="levels", persistent=0)(x)[0]
    after = with_settings(make_layer(memory="levels", persistent=0), **changes)(x)[0]
    assert largest(after - before) > 1e-4


def test_local_memories_add_to_the_shared_one_and_change_nothing_of_it():
    layer, x = make_layer(memory="levels"), draw_tokens()
    output, state = layer(x)
    alone = with_settings(make_layer(memory="levels"), local_rules=(), local_shard=None)
    without, bare = alone(x)
    assert largest(output - without) > 1e-2
    for one, other in zip(state.branch.memory, bare.branch.memory, strict=True):
        assert one is other or torch.equal(torch.as_tensor(one), torch.as_tensor(other))


def test_a_local_memory_knows_nothing_of_earlier_shards():
    x = draw_tokens(length=24)
    changed = x.clone()
    changed[:, :3] += 1

    def memories(tokens, shard):
        state = with_settings(make_layer(memory="levels"), local_shard=shard)(tokens)[1]
        return state.branch.memory.memory, torch.stack([own.memory for own in state.branch.local])

    (shared, local), (other_shared, other_local) = memories(x, 8), memories(changed, 8)
    assert torch.equal(local, other_local)
    assert largest(shared - other_shared) > 1e-4
    assert largest(memories(x, 24)[1] - memories(changed, 24)[1]) > 1e-4, "one shard for all"


def test_a_shard_begins_at_the_learned_start():
    layer, x = make_layer("gate", "levels"), draw_tokens()
    at_start = [own.memory for own in layer.start(2).branch.local]
    for i, own in enumerate(at_start):
        assert torch.equal(own, layer.memory.local_initial[i].expand_as(own))
    before = layer(x)[0]
    with torch.no_grad():
        layer.memory.local_initial.add_(0.5)
    moved = (layer(x)[0] - before).detach().abs().amax((0, 2))
    assert float(moved.min()) > 1e-6, "every shard begins there"


def test_what_all_memories_did_is_seen():
    layer, views = make_layer("gate", "levels"), []
    _, state = layer(draw_tokens(), mode=ReadMode(watch=views.append))
    (view,) = views
    assert [len(part) for part in (view.memory, view.before, view.momentum)] == [4, 4, 4]
    assert view.memory[1] is state.branch.local[0].memory
    numbers = observe({"0": view})
    shared = observe({"0": replace(view, memory=view.memory[:1], before=view.before[:1])})
    assert numbers["0/M_norm"] > shared["0/M_norm"]
    assert numbers["0/update"] > shared["0/update"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"local_rules": LOCAL}, "local_shard: None; allowed: a number with local_rules"),
        ({"local_shard": 8}, "local_shard: 8; allowed: a number with local_rules"),
        ({"local_rules": LOCAL, "local_shard": 0}, "local_shard: 0; allowed: 1 or more"),
        ({"local_rules": LOCAL, "local_shard": 2}, r"local_rules\[1\].chunk: 3; allowed: at most"),
        (
            {"rule": Rule(window=2), "local_rules": (Rule(window=3),), "local_shard": 8},
            r"local_rules\[0\].window: 3; allowed: 2",
        ),
    ],
)
def test_senseless_levels_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        LayerSettings(HEADS, HEAD_WIDTH, window=5, **settings)


def test_a_stage_changes_chunks_and_nothing_else():
    x = draw_tokens()
    layer, first = make_layer(memory="levels"), make_layer(memory="levels")(x)[0]
    weights = {name: value.clone() for name, value in layer.state_dict().items()}
    layer.set_chunks(Stage(4, (1, 2, 2)))
    second = layer(x)[0]
    assert largest(second - first) > 1e-4
    assert all(torch.equal(value, weights[name]) for name, value in layer.state_dict().items())
    layer.set_chunks(Stage(12, (2, 3, 8)))
    assert torch.equal(layer(x)[0], first)


def test_chunks_of_an_exact_rule_change_nothing():
    layer, x = make_layer(memory="projected"), draw_tokens()
    first = layer(x)[0]
    layer.set_chunks(Stage(3))
    assert largest(layer(x)[0] - first) < 1e-11


def test_chunks_of_one_token_are_the_exact_rules():
    layer, x = make_layer(memory="levels", persistent=0), draw_tokens()
    rules = [replace(rule, gradient="exact") for rule in (LEVELS["rule"], *LOCAL)]
    wanted = one_by_one(layer, x, rules)
    assert largest(layer(x)[0] - wanted) > 1e-4
    layer.set_chunks(ONES)
    assert largest(layer(x)[0] - wanted) < 1e-11


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (Stage(4, (2, 2)), r"local: chunks \[2, 2\]; allowed: one for each of the 3"),
        (Stage(4, (2, 9, 2)), r"local_rules\[1\].chunk: 9; allowed: at most"),
        (Stage(0, (2, 2, 2)), "chunk: 0; allowed: a whole number >= 1"),
    ],
)
def test_a_stage_of_other_memories_is_refused(stage, message):
    layer = make_layer(memory="levels")
    before = layer.settings
    with pytest.raises(InputError, match=message):
        layer.set_chunks(stage)
    assert layer.settings == before


def test_a_state_further_into_a_chunk_than_chunks_are_long_is_refused():
    layer, x = make_layer(memory="levels"), draw_tokens()
    _, state = layer(x[:, :11])
    layer.set_chunks(Stage(4, (2, 3, 8)))
    with pytest.raises(InputError, match="11 tokens into a chunk; allowed: less than"):
        layer(x[:, 11:], state)
