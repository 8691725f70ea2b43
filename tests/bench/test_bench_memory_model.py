"""The benchmark of training with a memory, at sizes that take seconds."""

import pytest
import torch

from atlas.bench import memory_model
from atlas.bench.memory_model_work import CONTENDERS, ModelWork, measure, train_step


def test_contenders_are_of_one_size():
    sizes = []
    with torch.device("meta"):
        for make in CONTENDERS.values():
            sizes.append(sum(value.numel() for value in make("full").parameters()))
    assert max(sizes) <= 1.002 * min(sizes)
    assert 9e6 < sizes[0] < 11e6


@pytest.mark.parametrize("name", sorted(CONTENDERS))
def test_a_contender_learns_and_is_timed(name):
    torch.manual_seed(0)
    model = CONTENDERS[name]("quick")
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = torch.randint(8, (2, 33))
    before = [value.clone() for value in model.parameters()]
    train_step(model, optimiser, ids)
    moved = [bool((a != b).any()) for a, b in zip(before, model.parameters(), strict=True)]
    assert sum(moved) > len(moved) / 2
    found = measure(ModelWork(name, "quick", 2, 32, 1))
    assert found["seconds"] > 0 and 0 < found["products"] < 1
    assert (found["kernel"] > 0) == (name == "memory"), "only a memory has a rule to follow"


def test_the_fastest_turn_counts_and_ratios_follow(monkeypatch, tmp_path):
    told = iter(range(100))

    def pretend(work):
        seconds = {"memory": 3.0, "window": 2.0, "llama": 1.5}[work.name] + 0.1 * next(told)
        return {
            "name": work.name, "length": work.length, "batch": work.batch, "parameters": 1,
            "threads": 1, "seconds": seconds, "cpu_seconds": seconds, "products": 0.5,
            "kernel": 0.1, "tokens_per_second": work.length / seconds,
        }  # fmt: skip

    monkeypatch.setattr(memory_model, "_row", pretend)
    found = memory_model.run("full", lambda *step: None)
    assert [(row["name"], row["length"]) for row in found.rows] == [
        (name, length) for length in (256, 1024) for name in ("memory", "window", "llama")
    ]
    assert found.ratios["memory_over_window_256"] == pytest.approx(3.0 / 2.1)
    assert found.ratios["cpu_memory_over_llama_256"] == pytest.approx(3.0 / 1.7)
    found.plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_a_contender_that_fails_is_named():
    with pytest.raises(RuntimeError, match="no-such"):
        memory_model._row(ModelWork("no-such", "quick", 1, 8, 1))
