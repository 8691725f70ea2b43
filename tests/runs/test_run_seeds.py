"""Addressed randomness."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from atlas.runs.seeds import generator


def test_equal_addresses_give_equal_draws():
    first = generator(3, "batches", 1, "a").random(5)
    assert np.array_equal(first, generator(3, "batches", 1, "a").random(5))


def test_every_part_of_the_address_counts():
    addresses = [(), ("a",), ("a", 1), ("a", "1"), ("a/1",), ("a", 1, "b"), ("a", "1b"), (1, "a")]
    draws = [tuple(generator(seed, *address).random(4)) for seed in (0, 1) for address in addresses]
    assert len(set(draws)) == len(draws)


def test_draws_are_pinned_so_that_old_runs_can_be_resumed():
    draw = generator(0, "init", "minilm", "query").integers(0, 2**32, size=3)
    assert draw.tolist() == [2743891463, 3958761424, 1887963752]


@pytest.mark.parametrize("method", ["uniform", "standard_normal"])
def test_the_first_rows_of_a_larger_draw_equal_a_smaller_draw(method):
    for small, large in itertools.pairwise((1, 2, 7, 64, 513)):
        less = getattr(generator(5, "init"), method)(size=(small, 96))
        more = getattr(generator(5, "init"), method)(size=(large, 96))
        assert np.array_equal(more[:small], less)


@pytest.mark.parametrize("part", [1.5, True, None, np.int64(3)])
def test_other_parts_are_refused(part):
    with pytest.raises(TypeError, match="text and whole numbers"):
        generator(0, part)
