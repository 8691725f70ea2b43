"""States of layers and blocks: saved, cut from the graph, restarted; and checkpointed rules."""

from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils.checkpoint import checkpoint

from atlas.errors import InputError
from atlas.memory.kernels.chunked import run_rule
from atlas.memory.layer.continuum import ContinuumFeedForward, SwiGLU
from atlas.memory.layer.state import BlockState, detached, from_flat, restarted, rows_of, to_flat
from tests.memory.layer.helpers import RULES, WIDTH, draw_tokens, largest, make_layer
from tests.memory.rules.helpers import assert_equal_runs, draw

PLACEMENTS = ["gate", "context", "layer", "none"]


@pytest.mark.parametrize("memory", ["exact", "everything", "levels"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_saved_state_goes_on_identically(placement, memory, tmp_path):
    layer, x = make_layer(placement, memory), draw_tokens()
    _, state = layer(x[:, :10])
    save_file(to_flat(state, "layer"), tmp_path / "state.safetensors")
    flat = load_file(tmp_path / "state.safetensors")
    read = from_flat(flat, layer.start(1), "layer")
    assert type(read) is type(state)
    assert (read.position, read.offset) == (10, state.offset)
    assert torch.equal(layer(x[:, 10:], state)[0], layer(x[:, 10:], read)[0])


def test_a_state_of_another_layer_is_refused():
    state = to_flat(make_layer("none")(draw_tokens())[1])
    with pytest.raises(InputError, match="has no branch"):
        from_flat(state, make_layer("gate").start(1))
    with pytest.raises(InputError, match="window.keys"):
        from_flat(state, make_layer("none", window=9).start(1))
    state = to_flat(make_layer("gate", "levels")(draw_tokens())[1])
    with pytest.raises(InputError, match=r"has branch\.local\.0"):
        from_flat(state, make_layer("gate", "chunk-start").start(1))


def test_a_detached_state_ends_gradients():
    layer, x = make_layer("gate"), draw_tokens().requires_grad_()
    _, state = layer(x[:, :10])
    reached = []
    for given in (state, detached(state)):
        total = layer(x[:, 10:], given)[0].sum()
        (gradient,) = torch.autograd.grad(total, x, retain_graph=True)
        reached.append(largest(gradient[:, :10]))
    assert reached[0] > 1e-6
    assert reached[1] == 0


def block_of(placement, levels=None, memory="exact"):
    layer = make_layer(placement, memory)
    part = SwiGLU(WIDTH, 8) if levels is None else ContinuumFeedForward(WIDTH, 8, 4, levels)
    part = part.double()

    def read(x, state=None):
        state = state or BlockState(layer.start(len(x)), part.start(len(x)))
        mixed, after = layer(x, state.layer)
        added, learned = part(x + mixed, state.levels)
        return mixed + added, BlockState(after, learned)

    return layer, part, read


@pytest.mark.parametrize(
    ("levels", "memory", "length"),
    [(None, "exact", 16), (2, "exact", 16), (None, "levels", 24), (None, "omega-levels", 14)],
)
def test_some_sequences_start_again_while_others_go_on(levels, memory, length):
    layer, part, read = block_of("gate", levels, memory)
    x, more = draw_tokens(length=length), draw_tokens(seed=3)
    _, state = read(x)
    fresh = BlockState(layer.start(2), part.start(2))
    output, _ = read(more, restarted(state, fresh, torch.tensor([True, False])))
    assert largest(output[:1] - read(more[:1])[0]) < 1e-12
    assert largest(output[1:] - read(more[1:], rows_of(state, torch.tensor([1])))[0]) < 1e-12
    assert largest(output[1:] - read(more[1:])[0]) > 1e-3


@pytest.mark.parametrize(
    ("placement", "levels", "memory"),
    [("context", None, "exact"), ("gate", 1, "exact"), ("gate", None, "omega-levels")],
)
def test_nobody_starts_within_a_segment_period_or_shard(placement, levels, memory):
    layer, part, read = block_of(placement, levels, memory)
    fresh = BlockState(layer.start(2), part.start(2))
    _, state = read(draw_tokens(length=5))
    with pytest.raises(ValueError, match="within"):
        restarted(state, fresh, torch.tensor([True, False]))


def test_levels_in_pieces_are_the_whole_and_do_learn():
    part = ContinuumFeedForward(WIDTH, 8, 3, 2).double()
    x = draw_tokens()
    whole, _ = part(x, part.start(2))
    first, state = part(x[:, :10], part.start(2))
    rest, _ = part(x[:, 10:], state)
    assert largest(torch.cat([first, rest], 1) - whole) < 1e-10
    assert largest(part(x[:, 10:], part.start(2))[0] - rest) > 1e-6


@pytest.mark.parametrize("rule", ["exact", "omega", "chunk-start"])
def test_a_checkpointed_rule_is_the_rule(rule):
    leaves = draw(21, RULES[rule].window)
    again = partial(checkpoint, run_rule, use_reentrant=False)
    assert_equal_runs(again, run_rule, RULES[rule], leaves, cuts=(5, 13))
