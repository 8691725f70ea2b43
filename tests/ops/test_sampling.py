"""The choice of the next token, against shares worked out by hand."""

import numpy as np
import pytest
import torch

from atlas.ops.sampling import next_shares, pick

LOGITS = torch.tensor([1, 4, 2, 3, 0], dtype=torch.float64).log()


def test_shares_are_those_of_the_logits():
    assert next_shares(LOGITS, 1.0).tolist() == pytest.approx([0.1, 0.4, 0.2, 0.3, 0.0])
    squared = [1 / 30, 16 / 30, 4 / 30, 9 / 30, 0.0]
    assert next_shares(LOGITS, 0.5).tolist() == pytest.approx(squared)


def test_no_temperature_is_the_likeliest_alone():
    assert next_shares(LOGITS, 0.0).tolist() == [0, 1, 0, 0, 0]
    assert next_shares(torch.zeros(3), 0.0).tolist() == [1, 0, 0], "the first of equals"


@pytest.mark.parametrize(
    ("top_k", "top_p", "wanted"),
    [
        (2, None, [0, 4 / 7, 0, 3 / 7, 0]),
        (None, 0.7, [0, 4 / 7, 0, 3 / 7, 0]),
        (None, 0.71, [0, 4 / 9, 2 / 9, 3 / 9, 0]),
        (3, 0.5, [0, 4 / 7, 0, 3 / 7, 0]),
        (None, 0.01, [0, 1, 0, 0, 0]),
        (99, 1.0, [0.1, 0.4, 0.2, 0.3, 0.0]),
    ],
)
def test_only_the_likeliest_are_kept(top_k, top_p, wanted):
    assert next_shares(LOGITS, 1.0, top_k, top_p).tolist() == pytest.approx(wanted)


def test_tokens_come_as_often_as_their_shares_say():
    shares = next_shares(LOGITS, 1.0)
    draws = np.random.default_rng(0).random(20_000)
    found = np.bincount([pick(shares, float(u)) for u in draws], minlength=5) / len(draws)
    assert found.tolist() == pytest.approx(shares.tolist(), abs=0.01)


def test_a_token_without_a_share_never_comes():
    shares = next_shares(LOGITS, 1.0, top_k=2)
    assert [pick(shares, u) for u in (0.0, 4 / 7 - 1e-9, 4 / 7 + 1e-9, 1 - 1e-16)] == [1, 1, 3, 3]
