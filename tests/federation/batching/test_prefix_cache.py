"""Outputs of the lower blocks: once per text, the same bits whoever asked before."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from atlas.backbones.load import load_backbone
from atlas.build.federation import build_federation
from atlas.build.models import HOST_MB
from atlas.errors import InputError
from atlas.federation.batching import spill as spill
from atlas.federation.batching.backbone import Inputs
from atlas.federation.batching.forward import run, stack_cohorts
from atlas.federation.batching.prefix_cache import PrefixCache, TokenTexts, run_prefix
from atlas.federation.batching.spill import SpillingRows
from tests.helpers import make_config

CPU = torch.device("cpu")


def make_texts(lengths, seed=0, vocabulary=200):
    draw = np.random.default_rng(seed)
    lengths = np.array(lengths)
    total = int(lengths.sum())
    ids = draw.integers(1, vocabulary, total)
    return TokenTexts(ids, np.zeros(total, dtype=np.int64), np.cumsum(lengths) - lengths, lengths)


def part(texts, chosen):
    """Some of the texts, in another order."""
    rows = [slice(texts.offsets[i], texts.offsets[i] + texts.lengths[i]) for i in chosen]
    lengths = texts.lengths[chosen]
    ids = np.concatenate([texts.ids[row] for row in rows])
    return TokenTexts(ids, np.zeros_like(ids), np.cumsum(lengths) - lengths, lengths)


def outputs(cache, texts):
    """What the cache holds of each text."""
    places = cache.places(texts)
    pairs = zip(places, texts.lengths, strict=True)
    found = [cache.take(torch.arange(place, place + length)) for place, length in pairs]
    return [torch.cat([hidden, *projected], dim=-1) for hidden, projected in found]


@pytest.mark.parametrize("name", ["tiny", "tiny-causal", "minilm"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("holds", ["inputs", "projections"])
def test_a_cold_and_a_warm_cache_give_the_same_bits(name, threads, holds):
    backbone = load_backbone(name)
    texts = make_texts(np.random.default_rng(1).integers(1, 30, 60))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        cold = outputs(PrefixCache(backbone, backbone.depth - 1, 2**24, "exact", holds), texts)
        warm = PrefixCache(backbone, backbone.depth - 1, 2**24, "exact", holds)
        for some in ([3], [59, 7, 3, 20, 21], list(range(0, 60, 7))):
            outputs(warm, part(texts, some))
        for one, other in zip(cold, outputs(warm, texts), strict=True):
            assert torch.equal(one, other)
    finally:
        torch.set_num_threads(before)


def test_as_many_cores_as_there_are_give_the_same_bits(two_cores):
    backbone = load_backbone("minilm")
    texts = make_texts(np.random.default_rng(1).integers(1, 30, 60))
    two = outputs(PrefixCache(backbone, 3, 2**24, "exact"), texts)
    torch.set_num_threads(1)
    one = outputs(PrefixCache(backbone, 3, 2**24, "exact"), texts)
    for first, second in zip(one, two, strict=True):
        assert torch.equal(first, second)


def test_the_cache_holds_what_the_blocks_put_out():
    backbone = load_backbone("tiny", dtype=torch.float64)
    texts = make_texts([5, 9, 1, 9, 30])
    found = outputs(PrefixCache(backbone, 2, 2**24, "exact"), texts)
    for text, got in enumerate(found):
        start, length = texts.offsets[text], texts.lengths[text]
        ids = torch.from_numpy(texts.ids[start : start + length])[None]
        mask = torch.ones_like(ids, dtype=torch.bool)
        wanted = run_prefix(backbone, Inputs(ids, mask, torch.zeros_like(ids)), 2)[0]
        assert torch.allclose(got, wanted, atol=1e-12, rtol=0)


def test_equal_texts_are_computed_once_and_other_segments_are_other_texts():
    backbone = load_backbone("tiny")
    texts = make_texts([6, 4])
    cache = PrefixCache(backbone, 1, 2**24, "exact")
    first = cache.places(texts)
    assert cache.tokens == 10
    assert cache.places(part(texts, [1, 0, 1])).tolist() == [first[1], first[0], first[1]]
    assert cache.tokens == 10
    cache.places(replace(texts, types=np.ones_like(texts.types)))
    assert cache.tokens == 20


@pytest.mark.parametrize("name", ["tiny", "tiny-causal"])
def test_projections_are_those_of_the_block_above(name):
    backbone = load_backbone(name, dtype=torch.float64)
    texts, caches = make_texts([5, 9, 1]), []
    for holds in ("inputs", "projections"):
        caches.append(PrefixCache(backbone, 1, 2**24, "exact", holds))
        index = torch.from_numpy(caches[-1].places(texts))
    (wanted, nothing), (hidden, projected) = (cache.take(index) for cache in caches)
    assert torch.equal(hidden, wanted) and not nothing
    block = backbone.body.get_submodule(f"{backbone.family.blocks}.1")
    entered = block.input_layernorm(hidden) if backbone.can_generate else hidden
    names = [backbone.select(1, [short])[0] for short in ("query", "key", "value")]
    for name, found in zip(names, projected, strict=True):
        assert torch.allclose(found, backbone.linears(1)[name](entered), atol=1e-12, rtol=0)


def test_beyond_its_budget_a_cache_is_in_a_file_and_holds_the_same(monkeypatch, tmp_path):
    monkeypatch.setenv("ATLAS_CACHE", str(tmp_path))
    backbone = load_backbone("tiny")
    texts = make_texts(np.random.default_rng(2).integers(1, 30, 40))
    small = PrefixCache(backbone, 1, 100 * backbone.width * 4, "exact")
    large = PrefixCache(backbone, 1, 2**24, "exact")
    for one, other in zip(outputs(small, texts), outputs(large, texts), strict=True):
        assert torch.equal(one, other)
    assert small.on_disk and not large.on_disk
    assert not list(tmp_path.iterdir()), "the file has no name"


def test_half_is_always_read_back_through_its_codec():
    backbone = load_backbone("tiny")
    texts = make_texts([12, 7])
    exact = outputs(PrefixCache(backbone, 1, 2**24, "exact"), texts)
    cache = PrefixCache(backbone, 1, 2**24, "half")
    for first, again, true in zip(outputs(cache, texts), outputs(cache, texts), exact, strict=True):
        assert torch.equal(first, again) and first.dtype == true.dtype
        assert not torch.equal(first, true), "half must lose something"
        assert ((first - true).abs() <= true.abs() / 2048 + 1e-7).all()


def test_half_refuses_what_it_cannot_hold(monkeypatch):
    backbone = load_backbone("tiny")
    huge = torch.tensor(1e6).expand(backbone.width)
    monkeypatch.setattr(backbone, "embed", lambda given: huge.expand(*given.ids.shape, -1))
    monkeypatch.setattr(backbone, "block", lambda index, hidden, context: hidden)
    with pytest.raises(InputError, match="prefix_format"):
        PrefixCache(backbone, 1, 2**24, "half").places(make_texts([8]))


@pytest.mark.parametrize("budget", [0, 40, 10_000])
@pytest.mark.parametrize("reserved", [0, 60, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_slabs_give_back_what_was_appended(budget, reserved, dtype, elsewhere):
    rows = torch.arange(300).reshape(100, 3).to(dtype)
    found = SpillingRows(3, dtype, CPU, budget * 3 * dtype.itemsize)
    # What an accelerator holds stays there; here its memory is played by the host's.
    found.spills = not elsewhere
    found.reserve(reserved)
    begins = [found.append(rows[start : start + 7]) for start in range(0, 100, 7)]
    assert begins == list(range(0, 100, 7)) and found.count == 100
    for index in ([[99, 0, 41], [40, 39, 7]], [[5, 6, 7]], [[98, 99, 98]], [[]]):
        index = torch.tensor(index, dtype=torch.long)
        assert torch.equal(found.take(index), rows[index])
    assert found.on_disk == (budget < 100)


def test_a_file_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spill.os, "pwrite", full)
    with pytest.raises(InputError, match="No space left on device; set ATLAS_CACHE"):
        SpillingRows(3, torch.float32, CPU, 0).append(torch.zeros(2, 3))
    monkeypatch.setenv("ATLAS_CACHE", str(tmp_path / "missing"))
    with pytest.raises(InputError, match="No such file or directory; set ATLAS_CACHE"):
        SpillingRows(3, torch.float32, CPU, 0).reserve(1)


@pytest.mark.parametrize("fails_at", range(1, 9))
def test_a_cache_whose_file_failed_still_holds_what_it_held(fails_at, monkeypatch):
    backbone = load_backbone("tiny")
    texts, more = make_texts([5, 9]), make_texts([7, 3], seed=1)
    wanted = PrefixCache(backbone, 1, 2**24, "exact", "projections")
    cache = PrefixCache(backbone, 1, 0, "exact", "projections")
    cache.places(texts)
    write, calls = spill.os.pwrite, []

    def failing(*args):
        calls.append(1)
        if len(calls) == fails_at:
            raise OSError(28, "No space left on device")
        return write(*args)

    monkeypatch.setattr(spill.os, "pwrite", failing)
    with pytest.raises(InputError):
        cache.places(more)
    monkeypatch.setattr(spill.os, "pwrite", write)
    for some in (texts, more):
        for one, other in zip(outputs(cache, some), outputs(wanted, some), strict=True):
            assert torch.equal(one, other)


def test_runs_of_a_process_share_a_cache_and_settings_that_differ_do_not():
    first = build_federation(make_config(seed=0)).engine.groups[0]
    again = build_federation(make_config(seed=0, strategy="local")).engine.groups[0]
    held = first.store.model.prefix
    before = held.tokens
    assert before and again.store.model.prefix is held and held.tokens == before
    given = build_federation(make_config(train={"prefix_cache_mb": HOST_MB})).engine.groups[0]
    assert given.model.prefix is held, "what is meant where nothing is said"
    half = build_federation(make_config(train={"prefix_format": "half"})).engine.groups[0]
    assert half.model.prefix is not held
    assert (
        build_federation(make_config(train={"prefix_cache_mb": 0})).engine.groups[0].model.prefix
        is None
    )


@pytest.mark.parametrize(("holds", "calls"), [(None, 0), ("projections", 0), ("inputs", 1)])
def test_a_pass_calls_projections_of_the_first_block_only_where_they_are_not_held(holds, calls):
    config = make_config(adapter={"blocks": 2}, train={"prefix_holds": holds})
    group = build_federation(config).engine.groups[0]
    model, called = group.model, []
    for name in model.backbone.select(model.first_block, ["query"]):
        linear = model.backbone.linears(model.first_block)[name]
        handle = linear.register_forward_hook(lambda *_: called.append(1))
    stack = stack_cohorts([group.arms["held"]])
    picks = [group.lesson(client).train for client in sorted(group.holders)]
    called.clear()  # what the lower blocks and the cache took
    batch = group.store.batch(picks)
    with torch.no_grad():
        losses = run(model, stack, batch).client_losses()
        handle.remove()
        plain = run(model, stack, replace(batch, projected=())).client_losses()
    assert len(called) == calls
    assert torch.allclose(losses, plain, atol=1e-6, rtol=0)


def test_where_only_the_last_block_is_adapted_nothing_but_inputs_is_held():
    group = build_federation(make_config(adapter={"blocks": 1})).engine.groups[0]
    client = min(group.holders)
    assert not group.store.batch([group.lesson(client).train]).projected
