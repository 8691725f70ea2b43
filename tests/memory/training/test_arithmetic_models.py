"""Small models of arithmetic, their trainer and what is measured of them."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot

from atlas.config.grokking import GrokkingTrainSettings
from atlas.data.arithmetic import OPERATIONS, ArithmeticTask
from atlas.memory.training.grokking.measures import MEANS, circle_of, measure
from atlas.memory.training.grokking.models import MODELS, neuron_table
from atlas.memory.training.grokking.trainer import ArithmeticTrainer
from atlas.ops.fourier import (
    excluded_logits,
    grid_loss,
    key_frequencies,
    neuron_share,
    residue_order,
    restricted_logits,
    spectrum,
)


def made(kind, p=11, width=16, seed=0):
    return MODELS[kind](p, width, len(OPERATIONS), seed)


@pytest.mark.parametrize("kind", MODELS)
def test_weights_follow_the_seed_and_nothing_else(kind):
    state = torch.random.get_rng_state()
    one, two, other = made(kind), made(kind), made(kind, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    for name, value in one.named_parameters():
        assert torch.equal(value, dict(two.named_parameters())[name])
        assert not torch.equal(value, dict(other.named_parameters())[name])


def test_the_perceptron_is_a_matrix_after_one_hot_vectors():
    model, every = made("mlp").double(), ArithmeticTask(11, OPERATIONS).training()
    hot = [one_hot(every.a, 11), one_hot(every.b, 11), one_hot(every.operation, 4)]
    x = torch.cat(hot, dim=1).double()
    wanted = ((x @ model.table).relu() @ model.hidden).relu() @ model.out
    assert torch.allclose(model(every.operation, every.a, every.b), wanted, atol=1e-12)


def test_the_transformer_is_attention_written_out():
    model = made("transformer").double()
    op, a, b = torch.tensor([2]), torch.tensor([7]), torch.tensor([3])
    x = model.tokens[torch.tensor([7, 11 + 2, 3, 15])] + model.places
    q, k, v = x @ model.query, x @ model.key, x @ model.value
    seen = []
    for head in range(4):
        part = slice(4 * head, 4 * head + 4)
        weights = torch.softmax(q[3, part] @ k[:, part].T / math.sqrt(4), dim=0)
        seen.append(weights @ v[:, part])
    stream = x[3] + torch.cat(seen) @ model.mix
    stream = stream + (stream @ model.rise).relu() @ model.fall
    assert torch.allclose(model(op, a, b)[0], stream @ model.out, atol=1e-12)


@pytest.mark.parametrize("kind", MODELS)
def test_the_neuron_table_is_the_mean_over_the_second_operand(kind):
    model, order = made(kind).double(), residue_order("multiply", 11)
    found = neuron_table(model, torch.tensor([2]), order)
    for row, a in enumerate(order.tolist()):
        each = [model.neurons(*(torch.tensor([x]) for x in (2, a, b)))[0] for b in order.tolist()]
        assert torch.allclose(found[row], torch.stack(each).mean(0), atol=1e-12)


@pytest.mark.parametrize("operation", ["add", "divide"])
def test_measures_are_those_of_the_pairs_one_by_one(operation):
    task = ArithmeticTask(11, (operation,), 0.5)
    model, learned, held_out = made("mlp").double(), task.training(), task.held_out()
    number = OPERATIONS.index(operation)
    found = measure(model, learned, held_out, {operation: number}, 11)
    assert set(found.numbers) == {*MEANS, "weight_norm"}
    for name, part in (("train", learned), ("test", held_out)):
        logits = model(part.operation, part.a, part.b)
        loss = cross_entropy(logits, part.answer).item()
        assert found.numbers[f"{name}_loss"] == pytest.approx(loss, abs=1e-12)
        right = (logits.argmax(-1) == part.answer).double().mean().item()
        assert found.numbers[f"{name}_accuracy"] == right
    order = residue_order(operation, 11)
    table = neuron_table(model, torch.tensor([number]), order)
    assert found.numbers["fourier_concentration"] == pytest.approx(neuron_share(table))
    n, key = len(order), key_frequencies(spectrum(table).sum(1))
    a, b = order.repeat_interleave(n), order.repeat(n)
    grid = model(torch.full_like(a, number), a, b).reshape(n, n, 11).detach()
    pairs = {(int(x), int(y)): int(z) for e in (learned, held_out) for x, y, z in zip(e.a, e.b, e.answer, strict=True)}  # fmt: skip  # noqa: E501
    answers = torch.tensor([pairs[int(x), int(y)] for x, y in zip(a, b, strict=True)])
    known = {(int(x), int(y)) for x, y in zip(learned.a, learned.b, strict=True)}
    asked = torch.tensor([(int(x), int(y)) in known for x, y in zip(a, b, strict=True)])
    answers, asked = answers.reshape(n, n), asked.reshape(n, n)
    wanted = grid_loss(excluded_logits(grid, operation, key), answers, asked)
    assert found.numbers["excluded_loss"] == pytest.approx(wanted)
    wanted = grid_loss(restricted_logits(grid, operation, key), answers, torch.ones_like(asked))
    assert found.numbers["restricted_loss"] == pytest.approx(wanted)
    assert sum(found.spectra[operation]) == pytest.approx(1)
    circle = circle_of(model, operation, 11)
    assert circle["residues"] == order.tolist() and len(circle["points"]) == n


def trainer(**changes):
    task = ArithmeticTask(11, ("add", "multiply"), 0.5)
    settings = GrokkingTrainSettings(**{"steps": 20, "lr": 0.01, **changes})
    return ArithmeticTrainer(made("mlp"), settings, task.training(), 3)


def weights_after(own, steps):
    for number in range(steps):
        own.step(number)
    return torch.cat([value.detach().flatten() for value in own.model.parameters()])


CHANGES = {
    "weight_decay": 0.0,
    "gradient": "perpendicular",
    "loss": "stablemax",
    "optimiser": "muon",
    "batch": 16,
    "betas": (0.5, 0.9),
    "eps": 1e-3,
}


@pytest.mark.parametrize("key", CHANGES)
def test_every_setting_changes_the_weights(key):
    base = weights_after(trainer(), 4)
    assert torch.equal(base, weights_after(trainer(), 4))
    assert not torch.equal(base, weights_after(trainer(**{key: CHANGES[key]}), 4))


def test_batches_go_through_all_equations_before_any_comes_again():
    own = trainer(batch=30)
    seen = [own._batch(number) for number in range(len(own.learned) // 30)]
    pairs = [t for e in seen for t in zip(*(x.tolist() for x in (e.operation, e.a, e.b)), strict=True)]  # fmt: skip  # noqa: E501
    assert len(pairs) == len(set(pairs)) == len(own.learned) // 30 * 30
    again = own._batch(len(own.learned) // 30)
    assert again.a.tolist() != seen[0].a.tolist()


@pytest.mark.parametrize("changes", [{}, {"optimiser": "muon", "batch": 16}])
def test_a_trainer_goes_on_to_the_same_bits(changes):
    whole = trainer(**changes)
    wanted = weights_after(whole, 9)
    first, second = trainer(**changes), trainer(**changes)
    weights_after(first, 4)
    second.load({name: value.clone() for name, value in first.tensors().items()})
    for number in range(4, 9):
        second.step(number)
    assert torch.equal(wanted, torch.cat([v.flatten() for v in second.model.parameters()]))
    with pytest.raises(KeyError):
        second.load({})


def test_watched_steps_tell_of_the_plain_gradient():
    own = trainer(gradient="perpendicular")
    made_step = own.step(0, watched=True)
    assert made_step.gradient_norm > 0 and made_step.scaling_cosine != 0
    assert own.step(1).gradient_norm is None
