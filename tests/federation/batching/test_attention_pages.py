"""Texts several to a page: every token once, and every token sees its own text alone."""

import numpy as np
import pytest
import torch

from atlas.federation.batching import packing as pages_module
from atlas.federation.batching.packing import lay_out, pack


def example(seed, rows=3, texts=6):
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 12, (rows, texts))
    present = np.ones((rows, texts), dtype=bool)
    present[0, 4:] = False
    return lengths, present


@pytest.mark.parametrize("seed", range(5))
def test_texts_of_a_page_fit_and_never_overlap(seed):
    lengths, present = example(seed)
    counts, room = np.where(present, lengths, 0), 16
    page, begin, pages = lay_out(counts, room)
    taken = np.zeros((pages, room), dtype=int)
    owner = np.full(pages, -1)
    for row, text in zip(*np.nonzero(counts), strict=True):
        first, length = begin[row, text], counts[row, text]
        assert first + length <= room
        taken[page[row, text], first : first + length] += 1
        assert owner[page[row, text]] in (-1, row)  # rows do not share pages
        owner[page[row, text]] = row
    assert taken.max() == 1
    assert taken.sum() == counts.sum()
    assert pages < present.sum()


@pytest.mark.parametrize("seed", range(5))
def test_tokens_come_back_from_their_pages(seed, monkeypatch):
    monkeypatch.setattr(pages_module, "PAGE", 16)
    packing = pack(*example(seed), torch.device("cpu")).packing
    tokens = torch.arange(packing.real.numel(), dtype=torch.float64)
    tokens = tokens.reshape(*packing.real.shape, 1)
    again = packing.pages.gather(packing.pages.spread(tokens), packing.real.shape)
    assert torch.equal(again[packing.real], tokens[packing.real])


@pytest.mark.parametrize("kind", ["both ways", "causal", "window", "added"])
def test_masks_of_pages_equal_a_loop_over_pairs(kind, monkeypatch):
    monkeypatch.setattr(pages_module, "PAGE", 16)
    packing = pack(*example(0), torch.device("cpu")).packing
    pages, longest = packing.pages, packing.mask.shape[1]
    place = torch.arange(longest)
    allowed = {
        "both ways": torch.ones(longest, longest, dtype=torch.bool),
        "causal": place[:, None] >= place,
        "window": (place[:, None] >= place) & (place[:, None] - place < 3),
        "added": place[:, None] >= place,
    }[kind]
    mask = allowed & packing.mask[:, None, None, :]
    if kind == "added":
        mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    found = pages.apart() if kind == "both ways" else pages.seen(mask)
    found = found if found.dtype == torch.bool else found == 0
    several = 0
    for page in range(len(pages.text)):
        several += len(set(pages.text[page].tolist()) - {-1}) > 1
        for i, text in enumerate(pages.text[page].tolist()):
            for j, other in enumerate(pages.text[page].tolist()):
                if text < 0:
                    continue
                step = allowed[pages.within[page, i], pages.within[page, j]]
                assert bool(found[page, 0, i, j]) == (text == other and bool(step))
    assert several
    assert found.any(-1).all()  # a row that sees nothing would not be a number
