"""What is measured of a model that learns modular arithmetic, operation by operation.

One pass over all pairs of residues answers everything: accuracy and loss of the pairs learned from
and of those held out, the waves in the neurons and in the embedding, and what the logits owe to
the key waves.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from atlas.memory.training.grokking.equations import Equations
from atlas.memory.training.grokking.models import ArithmeticModel, neuron_table
from atlas.ops import fourier
from atlas.ops.stability import collapse_share

Numbers = dict[str, float]
MEANS = (
    "train_loss", "train_accuracy", "test_loss", "test_accuracy", "fourier_concentration",
    "embedding_concentration", "embedding_gini", "circular_fit", "circular_isotropy",
    "excluded_loss", "restricted_loss", "softmax_collapse",
)  # fmt: skip
"""Measures of a model that are means over its operations."""


@dataclass(frozen=True)
class Measured:
    """A model at a step.

    Attributes:
        numbers: By name; means over the operations.
        operations: The same of each operation.
        spectra: Power of every frequency in the neurons, by operation; shares of the whole.
        frequencies: The key ones, strongest first, by operation.
    """

    numbers: Numbers
    operations: dict[str, Numbers]
    spectra: dict[str, list[float]]
    frequencies: dict[str, list[int]]

    def fields(self) -> dict[str, object]:
        """As an event tells it."""
        return {
            **self.numbers,
            "math_accuracy": self.numbers["test_accuracy"],
            "operations": self.operations,
            "spectra": self.spectra,
            "frequencies": self.frequencies,
        }


@torch.no_grad()
def measure(
    model: ArithmeticModel,
    learned: Equations,
    held_out: Equations,
    operations: Mapping[str, int],
    modulus: int,
) -> Measured:
    """Everything at once.

    Args:
        model: As it is now.
        learned: The equations it learns from.
        held_out: The others.
        operations: Numbers of the operations by name.
        modulus: The prime.
    """
    each, spectra, frequencies = {}, {}, {}
    for name, number in operations.items():
        own = _Operation.of(model, name, number, modulus)
        mine = [e.pick(e.operation == number) for e in (learned, held_out)]
        each[name] = own.scores(mine) | own.waves() | own.logits_by_waves(*mine)
        spectra[name] = own.spectrum
        frequencies[name] = own.frequencies
    numbers = {key: statistics.fmean(found[key] for found in each.values()) for key in MEANS}
    squares = [float(value.double().square().sum()) for value in model.parameters()]
    return Measured(numbers | {"weight_norm": sum(squares) ** 0.5}, each, spectra, frequencies)


@torch.no_grad()
def circle_of(model: ArithmeticModel, name: str, modulus: int) -> dict[str, object]:
    """The embedding in the plane of its strongest frequency, as a picture shows it."""
    order = fourier.residue_order(name, modulus)
    table = model.embedding().cpu()[order]
    fit = fourier.circular_fit(table)
    return {
        "frequency": fit.frequency,
        "r_squared": fit.r_squared,
        "residues": order.tolist(),
        "points": fourier.circle_points(table, fit.frequency).tolist(),
    }


@dataclass(frozen=True)
class _Operation:
    """A model's answers to all pairs of one operation, and its tables in that operation's order.

    Attributes:
        name: Of the operation.
        logits: Of all pairs [p, p, p].
        neurons: What the neurons are fed, by first operand [n, neurons].
        embedding: [n, width].
        order: The residues that make waves [n].
    """

    name: str
    logits: Tensor
    neurons: Tensor
    embedding: Tensor
    order: Tensor

    @classmethod
    def of(cls, model: ArithmeticModel, name: str, number: int, modulus: int) -> _Operation:
        device = model.embedding().device
        every = torch.arange(modulus, device=device)
        which = torch.tensor([number], device=device)
        order = fourier.residue_order(name, modulus)
        a, b = every.repeat_interleave(modulus), every.repeat(modulus)
        logits = model(which.expand(len(a)), a, b).reshape(modulus, modulus, modulus)
        neurons = neuron_table(model, which, order.to(device))
        return cls(name, logits.cpu(), neurons.cpu(), model.embedding().cpu()[order], order)

    @property
    def power(self) -> Tensor:
        return fourier.spectrum(self.neurons).sum(1)

    @property
    def spectrum(self) -> list[float]:
        power = self.power
        shares: list[float] = (power / power.sum().clamp_min(1e-300)).tolist()
        return shares

    @property
    def frequencies(self) -> list[int]:
        return fourier.key_frequencies(self.power)

    def scores(self, parts: Sequence[Equations]) -> Numbers:
        """Loss and accuracy of equations learned from and held out, and collapsed rows."""
        found: Numbers = {}
        for name, part in zip(("train", "test"), parts, strict=True):
            logits = self.logits[part.a.cpu(), part.b.cpu()]
            answers = part.answer.cpu()
            found[f"{name}_loss"] = float(cross_entropy(logits.double(), answers))
            found[f"{name}_accuracy"] = float((logits.argmax(-1) == answers).double().mean())
            if name == "train":
                found["softmax_collapse"] = collapse_share(logits)
        return found

    def waves(self) -> Numbers:
        """How far neurons and embedding consist of waves."""
        embedded = fourier.spectrum(self.embedding).sum(1)
        fit = fourier.circular_fit(self.embedding)
        return {
            "fourier_concentration": fourier.neuron_share(self.neurons),
            "embedding_concentration": fourier.top_share(embedded),
            "embedding_gini": fourier.gini(embedded),
            "circular_fit": fit.r_squared,
            "circular_isotropy": fit.isotropy,
        }

    def logits_by_waves(self, learned: Equations, held_out: Equations) -> Numbers:
        """Excluded loss, of what was learned from, and restricted loss, of all pairs."""
        grid = self.logits[self.order][:, self.order]
        p = len(self.logits)
        answers, asked = torch.zeros(p, p, dtype=torch.int64), torch.zeros(p, p, dtype=torch.bool)
        for part in (learned, held_out):
            answers[part.a.cpu(), part.b.cpu()] = part.answer.cpu()
        asked[learned.a.cpu(), learned.b.cpu()] = True
        answers, asked = (t[self.order][:, self.order] for t in (answers, asked))
        key = self.frequencies
        excluded = fourier.excluded_logits(grid, self.name, key)
        restricted = fourier.restricted_logits(grid, self.name, key)
        return {
            "excluded_loss": fourier.grid_loss(excluded, answers, asked),
            "restricted_loss": fourier.grid_loss(restricted, answers, torch.ones_like(asked)),
        }
