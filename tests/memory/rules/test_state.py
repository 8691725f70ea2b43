"""The state is a plain value: saved, reloaded, detached, restarted."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from atlas.memory.kernels.chunked import run_chunked
from atlas.memory.rules.rule import Rule, Tokens
from atlas.memory.rules.state import detach, from_tensors, initial_state, restart, to_tensors
from tests.memory.rules.helpers import draw, off, parts_of, run_in_pieces

RULES = [
    Rule(chunk=16),
    Rule("chunk-start", 16, 3),
    Rule(chunk=16, window=2, queries="projected"),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("length", [16, 21])
def test_a_saved_state_goes_on_bit_for_bit(rule, length, tmp_path):
    leaves = draw(40, rule.window)
    tokens = Tokens(*leaves[:7])
    _, state = run_chunked(tokens.cut(0, length), initial_state(leaves[7], rule), rule)
    save_file(to_tensors(state, "layer.0."), tmp_path / "state.safetensors")
    again = from_tensors(load_file(tmp_path / "state.safetensors"), "layer.0.")
    assert (again.offset, again.position) == (state.offset, state.position)
    one, _ = run_chunked(tokens.cut(length, 40), state, rule)
    two, _ = run_chunked(tokens.cut(length, 40), again, rule)
    assert torch.equal(one, two)


def test_a_missing_part_is_an_error():
    flat = to_tensors(initial_state(torch.zeros(1, 1, 2, 2), Rule()))
    del flat["momentum"]
    with pytest.raises(KeyError, match="momentum"):
        from_tensors(flat)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_detached_state_has_the_values_and_no_past(rule):
    _, state = run_in_pieces(run_chunked, rule, draw(21, rule.window))
    cut = detach(state)
    for name, part in parts_of(cut).items():
        assert torch.equal(part, getattr(state, name))
        assert not part.requires_grad
    assert state.memory.requires_grad


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_state_holds_no_more_than_it_says(rule):
    _, state = run_in_pieces(run_chunked, rule, draw(400, rule.window))
    for part in (state.keys, state.values):
        assert part.untyped_storage().nbytes() <= part.numel() * part.element_size()


def test_sequences_restart_alone():
    rule, leaves = Rule(chunk=16), [leaf.detach() for leaf in draw(40)]
    tokens = Tokens(*leaves[:7])
    fresh = initial_state(leaves[7], rule)
    _, state = run_chunked(tokens.cut(0, 21), fresh, rule)
    again = restart(state, fresh, torch.tensor([True, False]))
    outputs, _ = run_chunked(tokens.cut(21, 40), again, rule)
    started, _ = run_chunked(tokens.cut(21, 40), fresh, rule)
    went_on, _ = run_chunked(tokens.cut(21, 40), state, rule)
    assert off(outputs[0], started[0]) < 1e-14
    assert off(outputs[1], went_on[1]) < 1e-14
    assert off(went_on[0], started[0]) > 1e-2


def test_no_restart_within_a_chunk_that_counts():
    rule, leaves = Rule("chunk-start", 16), draw(21)
    fresh = initial_state(leaves[7], rule)
    _, state = run_chunked(Tokens(*leaves[:7]), fresh, rule)
    with pytest.raises(ValueError, match="5 tokens into a chunk"):
        restart(state, fresh, torch.tensor([True, False]))


def test_inputs_are_not_changed():
    rule, leaves = Rule(chunk=16), [leaf.detach() for leaf in draw(40)]
    before = [leaf.clone() for leaf in leaves]
    run_in_pieces(run_chunked, rule, leaves)
    for one, two in zip(before, leaves, strict=True):
        assert torch.equal(one, two)
