"""Vectors in fewer bytes against plain loops, at sizes around those of a block."""

import pytest
import torch

from atlas.ops.compression import BLOCK, block_count, from_int8, largest_places, to_int8

SIZES = (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 1000)


def draw(size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=torch.float64) ** 3


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_eight_bits_equal_a_plain_loop(size, dtype):
    values = draw(size).to(dtype)
    codes, scales = to_int8(values)
    assert codes.dtype == torch.int8 and scales.dtype == torch.float32
    assert (len(codes), len(scales)) == (size, block_count(size))
    found = from_int8(codes, scales, dtype)
    assert found.dtype == dtype
    for i in range(size):
        block = values[i // BLOCK * BLOCK : (i // BLOCK + 1) * BLOCK].tolist()
        step = max(abs(value) for value in block) / 127
        assert abs(float(scales[i // BLOCK]) - step) <= 1e-6 * step
        assert abs(float(found[i]) - float(values[i])) <= 0.5001 * step
        assert int(codes[i]) == pytest.approx(float(values[i]) / step, abs=0.51)


def test_zeros_and_vast_ranges_stay_what_they_are():
    values = torch.zeros(3 * BLOCK)
    values[BLOCK], values[2 * BLOCK :] = 5.0, 1e-30
    found = from_int8(*to_int8(values), torch.float32)
    assert torch.equal(found[:BLOCK], values[:BLOCK])
    assert float(found[BLOCK]) == pytest.approx(5.0)
    assert torch.allclose(found[2 * BLOCK :], values[2 * BLOCK :], rtol=1e-2, atol=0)


@pytest.mark.parametrize("size", SIZES)
def test_largest_entries_equal_a_plain_sort(size):
    values = draw(size, 1).round(decimals=1)  # with ties
    for count in {1, (size + 1) // 2, size}:
        places = largest_places(values, count)
        order = sorted(range(size), key=lambda i: (-abs(float(values[i])), i))[:count]
        assert places.dtype == torch.int32
        assert places.tolist() == sorted(order)
