"""A split sequence is the whole one, wherever it is cut: in values, states and gradients."""

import pytest

from atlas.memory.kernels.chunked import cut_into_runs, run_chunked, run_rule
from atlas.memory.rules.naive import run_naive
from atlas.memory.rules.rule import Rule
from tests.memory.rules.helpers import assert_equal_runs, draw

RULES = [
    Rule(chunk=16),
    Rule("chunk-start", 16),
    Rule("chunk-start", 70),
    Rule(chunk=16, window=3),
    Rule("chunk-start", 16, 3),
    Rule(chunk=16, queries="projected"),
    Rule("chunk-start", 8, 3, learner="newton-schulz", read="before"),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("cuts", [(1,), (5, 6, 39), (16, 17, 33, 64)], ids=str)
def test_pieces_equal_the_whole(rule, cuts):
    assert_equal_runs(run_chunked, run_naive, rule, draw(77, rule.window), cuts)


@pytest.mark.parametrize("run", [run_chunked, run_rule])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_one_token_at_a_time_equals_the_whole(rule, run):
    leaves = draw(20, rule.window)
    assert_equal_runs(run, run_chunked, rule, leaves, range(1, 20))


def test_a_prompt_and_then_single_tokens_equal_the_whole():
    rule = Rule()
    assert_equal_runs(run_rule, run_chunked, rule, draw(71), (63, 64, 65, 66, 67, 68, 69, 70))


@pytest.mark.parametrize("length", [1, 7, 20, 129, 300])
@pytest.mark.parametrize("chunk", [1, 7, 16, 128, 100])
@pytest.mark.parametrize("offset", [0, 3])
def test_stretches_keep_chunks_in_their_places(length, chunk, offset):
    """Walking the stretches, chunks start exactly where token counts say they do."""
    offset = offset % chunk
    at, starts = 0, []
    for block_run in cut_into_runs(length, offset, chunk, block=64):
        assert block_run.begin == at
        assert block_run.block <= 64
        assert (block_run.end - block_run.begin) % block_run.block == 0
        per_chunk = block_run.period * block_run.block
        starts += range(block_run.begin + per_chunk, block_run.end, per_chunk)
        starts += [block_run.end] if block_run.closes else []
        at = block_run.end
    assert at == length
    assert starts == [t for t in range(1, length + 1) if (offset + t) % chunk == 0]
