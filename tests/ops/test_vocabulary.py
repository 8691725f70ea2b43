"""Losses against a vocabulary in chunks, and their gradient in closed form."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from atlas.ops import vocabulary
from atlas.ops.vocabulary import token_losses


def places(count=9, width=6, words=23, dtype=torch.float64, scale=1.0):
    draw = torch.Generator().manual_seed(4)
    hidden = scale * torch.randn(count, width, generator=draw, dtype=torch.float64)
    weight = torch.randn(words, width, generator=draw, dtype=torch.float64)
    targets = torch.randint(0, words, (count,), generator=draw)
    return hidden.to(dtype).requires_grad_(), weight.to(dtype), targets


@pytest.mark.parametrize("chunk", [7, 8, 23, 8192])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_losses_and_gradients_are_those_of_the_plain_way(monkeypatch, chunk, scale):
    monkeypatch.setattr(vocabulary, "CHUNK", chunk)
    hidden, weight, targets = places(scale=scale)
    shares = torch.linspace(-1, 2, len(targets), dtype=torch.float64)
    found = token_losses(hidden, weight, targets)
    wanted = cross_entropy(hidden @ weight.T, targets, reduction="none")
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=1e-12)
    ours, theirs = (torch.autograd.grad((x * shares).sum(), hidden)[0] for x in (found, wanted))
    assert bool(theirs.any())
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-10)


def test_gradients_pass_finite_differences(monkeypatch):
    monkeypatch.setattr(vocabulary, "CHUNK", 7)
    hidden, weight, targets = places()
    assert torch.autograd.gradcheck(lambda h: token_losses(h, weight, targets), hidden)


def test_half_precision_is_summed_in_single():
    hidden, weight, targets = places(dtype=torch.bfloat16, words=300)
    found = token_losses(hidden, weight, targets)
    assert found.dtype == torch.float32
    wanted = cross_entropy((hidden @ weight.T).float(), targets, reduction="none")
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    ours, theirs = (torch.autograd.grad(x.sum(), hidden)[0] for x in (found, wanted))
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours, theirs, atol=0.05, rtol=0.05)


def test_nothing_as_wide_as_the_vocabulary_is_kept():
    hidden, weight, targets = places(words=5000)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t, lambda t: t
    ):
        token_losses(hidden, weight, targets).sum().backward()
    assert kept == [hidden.numel()]


def test_no_places_and_a_vocabulary_that_would_be_trained():
    hidden, weight, targets = places(count=0)
    assert token_losses(hidden, weight, targets).shape == (0,)
    with pytest.raises(ValueError, match="must be frozen"):
        token_losses(*places()[:1], weight.requires_grad_(), targets)
