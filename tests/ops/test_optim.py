"""AdamW for stacked clients against torch's own, client by client."""

import pytest
import torch

from atlas.ops.optim import Columns, adamw_, clip_factors

ROWS, SHAPES = 3, {"a": (2, 5), "b": (4, 2), "head": (3,)}


def tensors(seed):
    draw = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(ROWS, *shape, generator=draw, dtype=torch.float64)
        for name, shape in SHAPES.items()
    }


def test_columns_hold_every_tensor_and_views_write_through():
    given = tensors(0)
    columns = Columns.of(given)
    flat = columns.join(given)
    assert flat.shape == (ROWS, 10 + 8 + 3)
    for name, view in columns.views(flat).items():
        assert torch.equal(view, given[name])
    columns.views(flat)["b"][1] = 7.0
    assert torch.equal(flat[1, 10:18], torch.full((8,), 7.0, dtype=torch.float64))
    assert torch.equal(given["b"], tensors(0)["b"])  # joined is copied


def test_each_column_has_what_belongs_to_its_name():
    given = tensors(0)
    columns = Columns.of(given)
    own = {"a": torch.tensor([1.0, 2.0, 3.0]), "b": torch.tensor(4.0), "head": torch.zeros(3)}
    found = columns.each(own.__getitem__, columns.join(given))
    assert found[:, :10].tolist() == [[1.0] * 10, [2.0] * 10, [3.0] * 10]
    assert (found[:, 10:18] == 4.0).all()
    assert (found[:, 18:] == 0.0).all()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_rows_step_as_torch_would_with_counts_and_rates_of_their_own(decay):
    given = tensors(0)
    columns = Columns.of(given)
    rates = {"a": 0.1, "b": 0.1, "head": 0.02}
    factors = torch.tensor([1.0, 0.5, 0.25], dtype=torch.float64)
    value = columns.join(given)
    moments = (torch.zeros_like(value), torch.zeros_like(value))
    made = torch.zeros(ROWS, dtype=torch.long)
    twins = []
    for row in range(ROWS):
        own = {name: one[row].clone().requires_grad_() for name, one in given.items()}
        groups = [
            {"params": [own[name]], "lr": rate * float(factors[row])}
            for name, rate in rates.items()
        ]
        twins.append((own, torch.optim.AdamW(groups, weight_decay=decay)))
    for step in range(5):
        grads = tensors(step + 1)
        rows = list(range(ROWS)) if step % 2 else [0, 2]  # row 1 makes fewer steps
        index = torch.tensor(rows)
        made[index] += 1
        some, *others = (one[index] for one in (value, *moments))
        spread = columns.each(lambda name, i=index: factors[i] * rates[name], some)
        grad = columns.join(grads)[index]
        adamw_(some, grad, tuple(others), steps=made[index], rates=spread, weight_decay=decay)
        for one, new in zip((value, *moments), (some, *others), strict=True):
            one[index] = new
        for row in rows:
            own, optimiser = twins[row]
            for name, leaf in own.items():
                leaf.grad = grads[name][row].clone()
            optimiser.step()
    for row, (own, _) in enumerate(twins):
        for name, view in columns.views(value).items():
            torch.testing.assert_close(view[row], own[name].detach(), rtol=1e-10, atol=1e-12)


def test_norms_are_of_all_that_a_client_holds_and_of_nobody_else():
    grads = torch.tensor([[3.0, 4.0], [0.3, 0.4]], dtype=torch.float64)
    factors = clip_factors([grads], 1.0)
    assert factors[0] == pytest.approx(1 / 5, rel=1e-5)
    assert factors[1] == 1.0
