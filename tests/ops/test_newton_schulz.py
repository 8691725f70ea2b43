"""Newton-Schulz against singular value decompositions."""

import pytest
import torch

from atlas.ops.newton_schulz import COEFFICIENTS, newton_schulz


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4), (2, 3, 5, 7)])
@pytest.mark.parametrize("steps", [1, 5])
def test_singular_values_follow_the_polynomial_and_vectors_stay(shape, steps):
    x = drawn(*shape)
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    s = s / s.square().sum(-1, keepdim=True).sqrt()
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        s = a * s + b * s**3 + c * s**5
    assert torch.allclose(newton_schulz(x, steps), (u * s[..., None, :]) @ vh, atol=1e-12, rtol=0)


def test_five_steps_bring_singular_values_near_one():
    u, s, vh = torch.linalg.svd(drawn(20, 12), full_matrices=False)
    spread = torch.linspace(0.05, 1, 12, dtype=torch.float64)
    values = torch.linalg.svdvals(newton_schulz((u * spread) @ vh))
    assert 0.6 < float(values.min()) < float(values.max()) < 1.25
    assert float(spread.max() / spread.min()) == 20


def test_size_and_sign_of_the_input_do_not_matter_and_do():
    x = drawn(5, 7)
    assert torch.allclose(newton_schulz(1e-3 * x), newton_schulz(x), atol=1e-12)
    assert torch.allclose(newton_schulz(-x), -newton_schulz(x), atol=1e-12)


def test_zero_stays_zero_with_a_finite_gradient():
    zero = torch.zeros(3, 4, requires_grad=True)
    y = newton_schulz(zero)
    assert not y.any()
    y.sum().backward()
    assert torch.isfinite(zero.grad).all()
