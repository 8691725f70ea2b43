"""The memory benchmark at sizes that take seconds."""

import pytest
import torch

from atlas.bench import memory
from atlas.bench.memory_work import CONTENDERS, BenchedLayer, MemoryWork, measure


def test_contenders_of_ours_are_one_function():
    """Exact chunks and the loop must be the same layer, or their times compare nothing."""
    torch.manual_seed(0)
    exact = CONTENDERS["exact"](16)
    naive = CONTENDERS["naive"](16)
    naive.load_state_dict(exact.state_dict())
    x = torch.randn(2, 70, 64)
    assert isinstance(exact, BenchedLayer)
    assert torch.allclose(exact(x), naive(x), atol=1e-5)
    assert not torch.allclose(exact(x), exact(x.flip(1)).flip(1), atol=1e-3), "order must count"


def test_rows_and_ratios_come_from_what_was_measured(monkeypatch, tmp_path):
    def pretend(work):
        ms = {"exact": 1.0, "chunk-start": 0.8, "naive": 12.0, "titans": 60.0}[work.name]
        cost = ms * work.length / 512 * work.head_dim / 64
        base = {"name": work.name, "head_dim": work.head_dim, "length": work.length}
        return {**base, "ms": cost, "tokens_per_second": 1.0, "peak_mb": cost}

    monkeypatch.setattr(memory, "_row", pretend)
    monkeypatch.setattr(memory.importlib.util, "find_spec", lambda name: object())
    told = []
    found = memory.run("full", lambda *step: told.append(step))
    assert found.ratios["titans_64"] == pytest.approx(60)
    assert found.ratios["naive_128"] == pytest.approx(12)
    assert found.ratios["length_exponent"] == pytest.approx(1)
    assert told[-1][1:] == (len(found.rows), len(found.rows))
    lengths = {row["length"] for row in found.rows if row["name"] == "exact"}
    assert lengths == {256, 512, 1024, 2048, 4096}
    found.plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_a_pass_is_timed_and_its_memory_told():
    found = measure(MemoryWork("exact", 16, 64, 1))
    assert found["ms"] > 0 and found["peak_mb"] >= 0


def test_a_contender_that_fails_is_named():
    with pytest.raises(RuntimeError, match="no-such at head dim 16"):
        memory._row(MemoryWork("no-such", 16, 64, 1))


def test_without_the_peer_its_ratios_are_absent(monkeypatch):
    monkeypatch.setattr(memory.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(
        memory,
        "_row",
        lambda work: {
            "name": work.name, "head_dim": work.head_dim, "length": work.length, "ms": 1.0,
            "tokens_per_second": 1.0, "peak_mb": 1.0,
        },
    )  # fmt: skip
    found = memory.run("quick", lambda *step: None)
    assert not [name for name in found.ratios if name.startswith("titans")]
    assert "bench" in found.notes[-1]
