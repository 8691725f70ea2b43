"""Which modules travel: budgets bind, masks do not flicker, and nothing stays shut for ever."""

import pytest
import torch

from atlas.ops.routing import blend_salience, choose_open, shut_limit


def play(salience_of, sizes, budget, rounds, hysteresis=0.25, waiting=0.0):
    """Masks of so many rounds, [rounds, m]."""
    shut, masks = [0] * len(sizes), []
    for number in range(rounds):
        mask = choose_open(salience_of(number), sizes, shut, budget, hysteresis, waiting)
        shut = [0 if is_open else rounds_ + 1 for is_open, rounds_ in zip(mask, shut, strict=True)]
        masks.append(mask)
    return torch.tensor(masks)


@pytest.mark.parametrize("budget", [0.1, 0.25, 0.4, 0.75, 1.0])
@pytest.mark.parametrize("modules", [1, 2, 8, 30])
def test_the_budget_binds_and_something_is_always_open(budget, modules):
    draw = torch.Generator().manual_seed(modules)
    sizes = torch.randint(100, 400, (modules,), generator=draw).tolist()
    masks = play(lambda n: torch.rand(modules, generator=draw).double(), sizes, budget, 80)
    sent = (masks * torch.tensor(sizes)).sum(1)
    assert bool((masks.sum(1) >= 1).all())
    alone = masks.sum(1) == 1
    assert bool((sent[~alone] <= budget * sum(sizes)).all())


@pytest.mark.parametrize("budget", [0.1, 0.25, 0.4])
@pytest.mark.parametrize("modules", [4, 8, 30])
def test_no_module_stays_shut_for_longer_than_the_limit(budget, modules):
    """Whatever counts: here the same modules count for everything, all the time."""
    counts = torch.zeros(modules, dtype=torch.float64)
    counts[:2] = 1.0
    masks = play(lambda n: counts, [10] * modules, budget, 6 * shut_limit(budget))
    longest = 0
    for module in range(modules):
        waited = 0
        for is_open in masks[:, module].tolist():
            waited = 0 if is_open else waited + 1
            longest = max(longest, waited)
    assert longest <= shut_limit(budget)
    assert masks[:, 0].float().mean() > masks[:, -1].float().mean()


def test_what_counts_most_is_open_as_in_a_naive_choice():
    draw = torch.Generator().manual_seed(0)
    for _ in range(50):
        counts = torch.rand(9, generator=draw).double()
        found = choose_open(counts, [5] * 9, [0] * 9, 0.4, 0.25)
        wanted = set(sorted(range(9), key=lambda m: -float(counts[m]))[:3])
        assert {m for m, is_open in enumerate(found) if is_open} == wanted


def test_hysteresis_keeps_masks_from_flickering():
    draw = torch.Generator().manual_seed(1)
    noise = torch.rand(40, 10, generator=draw).double() * 0.2 + 1.0

    def flips(hysteresis):
        masks = play(lambda n: noise[n], [1] * 10, 0.4, 40, hysteresis)
        return int((masks[1:] != masks[:-1]).sum())

    assert flips(0.25) < flips(0.0) / 2


def test_a_module_that_comes_to_count_is_opened():
    counts = torch.tensor([5.0, 4.0, 3.0, 0.1, 0.1, 0.1, 0.1, 0.1], dtype=torch.float64)
    later = counts.clone()
    later[5] = 9.0
    masks = play(lambda n: counts if n < 5 else later, [1] * 8, 0.4, 10)
    assert not masks[:5, 5].any()
    assert bool(masks[5:, 5].all())


def test_what_has_waited_takes_its_turn_as_often_as_it_counts():
    """Modules that count 8, 3 and 1, one open at a time: who counts more goes more often."""
    counts = torch.tensor([8.0, 3.0, 1.0], dtype=torch.float64)
    stuck = play(lambda n: counts, [1] * 3, 1 / 3, 8, hysteresis=0.0)
    assert bool(stuck[:, 0].all())
    masks = play(lambda n: counts, [1] * 3, 1 / 3, 700, hysteresis=0.0, waiting=1.0)
    turns = masks.double().mean(0)
    assert bool((turns[:-1] > turns[1:]).all()) and float(turns[2]) > 0.05
    for mask, before in zip(masks[1:30], masks[:29], strict=True):
        assert bool((mask != before).any()) or bool(mask[0]), "only the largest goes twice running"


def test_salience_is_a_share_smoothed_over_rounds():
    first = blend_salience(None, torch.tensor([1.0, 3.0]), 0.5)
    assert first.tolist() == [0.25, 0.75]
    second = blend_salience(first, torch.tensor([1e-6, 0.0]), 0.5)
    assert torch.allclose(second, torch.tensor([0.625, 0.375]))
    nothing = blend_salience(first, torch.zeros(2), 0.5)
    assert torch.allclose(nothing, torch.tensor([0.125, 0.375]))
