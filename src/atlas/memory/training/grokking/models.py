"""Small models that learn modular arithmetic: a perceptron and a transformer of one block.

Both answer (operation, a, b) with a logit per residue. Neither has biases or norms, so that what
the weights hold is what the model knows. `neurons` gives what the first non-linear layer is fed,
the place where waves are looked for.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from atlas.runs.seeds import generator


class Perceptron(nn.Module):
    """One-hot residues and operation through two hidden layers with ReLU."""

    def __init__(self, modulus: int, width: int, operations: int, seed: int) -> None:
        """Weights drawn by the seed, uniform as in torch's own linear layers."""
        super().__init__()
        self.modulus = modulus
        rows = 2 * modulus + operations
        # A table to look up is the same as a matrix after one-hot vectors, and faster.
        self.table = _drawn(seed, "table", (rows, width), rows**-0.5)
        self.hidden = _drawn(seed, "hidden", (width, width), width**-0.5)
        self.out = _drawn(seed, "out", (width, modulus), width**-0.5)

    def neurons(self, operation: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """What the first hidden layer is fed [N, width]."""
        p = self.modulus
        return self.table[a] + self.table[p + b] + self.table[2 * p + operation]

    def forward(self, operation: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Logits [N, modulus]."""
        return torch.mm(
            torch.mm(self.neurons(operation, a, b).relu(), self.hidden).relu(), self.out
        )

    def embedding(self) -> Tensor:
        """One row a residue, as the first operand [modulus, width]."""
        return self.table[: self.modulus]


class OneBlock(nn.Module):
    """The tokens `a operation b =` through attention and a feed-forward part; `=` is read."""

    def __init__(self, modulus: int, width: int, operations: int, seed: int) -> None:
        """Weights drawn by the seed; four heads, feed-forward four times as wide."""
        super().__init__()
        self.modulus, self.heads = modulus, 4
        self.equals = modulus + operations
        spread = width**-0.5
        self.tokens = _drawn(seed, "tokens", (self.equals + 1, width), spread)
        self.places = _drawn(seed, "places", (4, width), spread)
        self.query = _drawn(seed, "query", (width, width), spread)
        self.key = _drawn(seed, "key", (width, width), spread)
        self.value = _drawn(seed, "value", (width, width), spread)
        self.mix = _drawn(seed, "mix", (width, width), spread)
        self.rise = _drawn(seed, "rise", (width, 4 * width), spread)
        self.fall = _drawn(seed, "fall", (4 * width, width), (4 * width) ** -0.5)
        self.out = _drawn(seed, "out", (width, modulus), spread)

    def _read(self, operation: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """The stream at `=` after attention [N, width]."""
        last = torch.full_like(a, self.equals)
        ids = torch.stack([a, self.modulus + operation, b, last], dim=1)
        x = self.tokens[ids] + self.places  # [N, 4, width]
        # Nothing is read but the last token, which sees all of them: no mask, one query.
        q = self._split(x[:, 3:] @ self.query)
        k, v = self._split(x @ self.key), self._split(x @ self.value)
        seen = scaled_dot_product_attention(q, k, v)  # [N, heads, 1, width / heads]
        return x[:, 3] + seen.flatten(1) @ self.mix

    def _split(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, 2, (self.heads, -1)).transpose(1, 2)

    def neurons(self, operation: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """What the feed-forward part's neurons are fed at `=` [N, 4 width]."""
        return torch.mm(self._read(operation, a, b), self.rise)

    def forward(self, operation: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Logits [N, modulus]."""
        stream = self._read(operation, a, b)
        stream = stream + (stream @ self.rise).relu() @ self.fall
        return torch.mm(stream, self.out)

    def embedding(self) -> Tensor:
        """One row a residue [modulus, width]."""
        return self.tokens[: self.modulus]


ArithmeticModel = Perceptron | OneBlock
MODELS: dict[str, type[Perceptron] | type[OneBlock]] = {"mlp": Perceptron, "transformer": OneBlock}


def neuron_table(model: ArithmeticModel, operation: Tensor, residues: Tensor) -> Tensor:
    """How the neurons depend on the first operand: means over the second one [n, neurons].

    Args:
        model: Either.
        operation: Its number, a tensor of one.
        residues: Those that count, in their order.
    """
    n = len(residues)
    a, b = residues.repeat_interleave(n), residues.repeat(n)
    fed = model.neurons(operation.expand(n * n), a, b)
    return fed.reshape(n, n, -1).mean(1)


def _drawn(seed: int, name: str, shape: tuple[int, int], bound: float) -> nn.Parameter:
    draw = generator(seed, "init", "arithmetic", name)
    values = draw.uniform(-bound, bound, shape).astype(np.float32)
    return nn.Parameter(torch.from_numpy(values))
