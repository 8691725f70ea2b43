"""Texts packed row by row."""

import numpy as np
import pytest
import torch

from atlas.federation.batching.packing import ALIGNED, pack


def example(seed, rows=3, texts=4, absent=True):
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 9, (rows, texts))
    flat = lengths.reshape(-1)
    offsets = (np.cumsum(flat) - flat).reshape(rows, texts)
    present = np.ones((rows, texts), dtype=bool)
    if absent:
        present[0, 2:] = False
        present[1] = False
    return lengths, offsets, present


@pytest.mark.parametrize("seed", range(5))
def test_every_text_is_found_whole_and_in_order(seed):
    lengths, offsets, present = example(seed)
    plan = pack(lengths, present, torch.device("cpu"))
    tokens = plan.source(torch.from_numpy(offsets))[
        ..., None
    ]  # a token's value is its place in the store
    padded = plan.packing.spread(tokens)[..., 0]
    for row in range(lengths.shape[0]):
        for text in range(lengths.shape[1]):
            place = row * lengths.shape[1] + text
            real = plan.packing.mask[place]
            borrowed = text if present[row, text] else 0
            begin, length = offsets[row, borrowed], lengths[row, borrowed]
            assert padded[place][real].tolist() == list(range(begin, begin + length))
    again = plan.packing.gather(plan.packing.spread(tokens))
    assert torch.equal(again[plan.packing.real], tokens[plan.packing.real])


def test_absent_texts_take_no_room_but_every_row_has_a_token():
    lengths, _, present = example(0)
    plan = pack(lengths, present, torch.device("cpu"))
    wanted = [lengths[0, :2].sum(), lengths[1, 0], lengths[2].sum()]
    assert plan.packing.real.sum(1).tolist() == wanted
    assert plan.packing.real.shape[1] == -(-max(wanted) // ALIGNED) * ALIGNED
    assert plan.packing.mask.any(1).all()


@pytest.mark.parametrize("seed", range(5))
def test_what_is_filled_up_is_filled_from_the_same_row(seed):
    """Elsewhere a client whose numbers are NaN would be met by others: 0 * NaN is NaN."""
    lengths, _, present = example(seed)
    plan = pack(lengths, present, torch.device("cpu"))
    packing, pages, texts = plan.packing, plan.packing.pages, lengths.shape[1]
    size = packing.real.shape[1]
    row = torch.arange(packing.real.numel()) // size
    assert not packing.real.all() and bool((pages.text < 0).any())
    assert torch.equal(plan.text.flatten() // texts, row)
    assert torch.equal(packing.back // packing.mask.shape[1] // texts, row)
    text_row = torch.arange(len(packing.slots)) // texts
    assert bool((packing.slots // size == text_row[:, None]).all())
    page_row = pages.text.max(1).values // texts
    assert bool((pages.slots // size == page_row[:, None]).all())
    assert torch.equal(page_row[pages.back // pages.slots.shape[1]], row)
