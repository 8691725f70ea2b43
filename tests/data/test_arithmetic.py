"""Modular arithmetic: every answer is right, and training and held-out pairs share none."""

import pytest
import torch

from atlas.data.arithmetic import OPERATIONS, ArithmeticTask
from atlas.errors import InputError


def triples(equations):
    return list(
        zip(
            *(getattr(equations, name).tolist() for name in ("operation", "a", "b", "answer")),
            strict=True,
        )
    )


@pytest.mark.parametrize("p", [5, 13, 97])
def test_answers_are_those_of_whole_numbers(p):
    task = ArithmeticTask(p, OPERATIONS)
    for number, name in enumerate(OPERATIONS):
        found = triples(task.pairs(name))
        assert len(found) == (p * (p - 1) if name == "divide" else p * p)
        for operation, a, b, answer in found:
            assert operation == number
            assert 0 <= answer < p
            if name == "divide":
                assert b != 0
                assert answer * b % p == a
            else:
                wanted = {"add": a + b, "subtract": a - b, "multiply": a * b}[name]
                assert answer == wanted % p


@pytest.mark.parametrize("fraction", [0.1, 0.4, 0.999])
def test_every_pair_is_learned_from_or_held_out(fraction):
    task = ArithmeticTask(13, OPERATIONS, fraction, seed=3)
    learned, held_out = triples(task.training()), triples(task.held_out())
    assert not set(learned) & set(held_out)
    every = [row for name in OPERATIONS for row in triples(task.pairs(name))]
    assert sorted(learned + held_out) == sorted(every)
    for number, name in enumerate(OPERATIONS):
        count = len(task.pairs(name))
        own = sum(row[0] == number for row in learned)
        assert own == min(round(fraction * count), count - 1)


def test_the_seed_decides_which_pairs_and_other_operations_do_not():
    one = ArithmeticTask(13, ("multiply",), 0.5, seed=1)
    assert triples(one.training()) == triples(ArithmeticTask(13, ("multiply",), 0.5, 1).training())
    other = ArithmeticTask(13, ("multiply",), 0.5, seed=2)
    assert triples(one.training()) != triples(other.training())
    assert one.identity != other.identity
    both = ArithmeticTask(13, ("add", "multiply"), 0.5, seed=1).training()
    assert triples(both.pick(both.operation == 2)) == triples(one.training())


def test_parts_are_int64_and_can_be_picked():
    learned = ArithmeticTask().training()
    assert len(learned) == round(0.4 * 97 * 97)
    assert learned.answer.dtype == learned.a.dtype == torch.int64
    assert len(learned.pick(torch.tensor([4, 7]))) == 2
    assert ArithmeticTask().chance == 1 / 97


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"modulus": 96}, "task.modulus: 96; allowed: a prime"),
        ({"modulus": 3}, "task.modulus: 3; allowed: a prime"),
        ({"operations": ()}, "task.operations"),
        ({"operations": ("add", "add")}, "task.operations"),
        ({"operations": ("power",)}, "task.operations: power; allowed: add, subtract"),
        ({"fraction": 1.0}, "task.fraction: 1.0"),
    ],
)
def test_impossible_settings_are_refused(settings, name):
    with pytest.raises(InputError, match=f"^{name}"):
        ArithmeticTask(**settings)
