"""Bytes that tensors take while something is computed."""

import torch

from atlas.runs.peak_memory import count_memory, peak_bytes


def test_what_is_held_falls_when_tensors_go_and_the_highest_stays():
    with count_memory(torch.device("cpu")) as memory:
        first = torch.ones(1000)
        second = first + 1
        assert memory.held == 8000
        del second
        assert (memory.held, memory.highest) == (4000, 8000)
    del first


def test_peak_counts_what_is_held_at_once_and_no_views():
    big = torch.ones(1000, 100)

    def work():
        first = big + 1
        del first
        second = big * 2
        return second.t().contiguous()[:50] + 0

    # second (400 kB), its transposed copy and half of it again
    assert peak_bytes(work, torch.device("cpu")) == 4 * 250_000
    assert peak_bytes(lambda: big.t().view(100, 1000)[:3], torch.device("cpu")) == 0


def test_peak_sees_what_autograd_keeps():
    weight = torch.ones(100, 100, requires_grad=True)
    x = torch.ones(1000, 100)

    def forward(layers):
        hidden = x
        for _ in range(layers):
            hidden = torch.tanh(hidden @ weight)
        hidden.sum().backward()

    one, five = (peak_bytes(lambda n=n: forward(n), torch.device("cpu")) for n in (1, 5))
    assert five - one >= 4 * 400_000 - 400_000
