"""Bases of made-up features with a known common part."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from atlas.config.plan import AlignSettings
from atlas.errors import InputError
from atlas.federation.alignment.bases import Features, make_bases

FIT, JUDGED = 200, 100
METHODS = ("paired", "cca", "unpaired", "random")


def draw(*shape, seed):
    return torch.from_numpy(np.random.default_rng([seed, *shape]).standard_normal(shape))


def made(widths, *, modules=2, noise=0.02, latent=12, seed=0):
    """Features that see the same latent values of texts, each through its own orthonormal map."""
    common = [draw(FIT + JUDGED, latent, seed=seed + i) for i in range(2 * modules)]
    spectrum = torch.linspace(3.0, 0.5, latent).double()

    def see(values, width, own):
        map_ = torch.linalg.qr(draw(width, latent, seed=own)).Q.mT
        whole = (values * spectrum) @ map_ + noise * draw(len(values), width, seed=own + 1)
        return 2.0 + own % 3 + (1 + own % 2) * whole

    found = {}
    for number, (name, (d_in, d_out)) in enumerate(widths.items()):
        sides = [
            tuple(
                see(common[2 * i + side], width, 10 * number + 2 * i + side) for i in range(modules)
            )
            for side, width in enumerate((d_in, d_out))
        ]
        found[name] = Features(*sides, identity=name)
    return found


WIDTHS = {"wide": (576, 192), "narrow": (64, 32), "middle": (64, 80)}


def bases(method="paired", rank=6, features=None, **changes):
    settings = AlignSettings(method=method, **changes)
    return make_bases(features or made(WIDTHS), rank, FIT, settings, 0)


@pytest.mark.parametrize("method", METHODS)
def test_every_basis_is_orthonormal_and_of_its_modules_width(method):
    found = bases(method)
    assert found.reference == "middle", "of equal width the first by name"
    for name, (d_in, d_out) in WIDTHS.items():
        assert len(found.pairs[name]) == 2
        for pair in found.pairs[name]:
            assert pair.a.shape == (6, d_in) and pair.b.shape == (d_out, 6)
            a, b = pair.a.float(), pair.b.float()
            assert torch.allclose(a @ a.mT, torch.eye(6), atol=1e-6)
            assert torch.allclose(b.mT @ b, torch.eye(6), atol=1e-6)


@pytest.mark.parametrize("method", ["paired", "cca"])
def test_coordinates_of_the_same_texts_agree(method):
    found, features = bases(method), made(WIDTHS)
    for entry in found.report:
        assert entry["after"] < 0.12
        assert entry["angle_after"] < 8
    assert len(found.report) == 2 * 2 * 2 and {e["side"] for e in found.report} == {
        "inputs",
        "outputs",
    }
    assert sum(entry["before"] for entry in found.report) / len(found.report) > 0.5
    # By hand, on texts that nothing was fitted to.
    for i in range(2):
        there = [features[n].inputs[i][FIT:] - features[n].inputs[i][:FIT].mean(0) for n in WIDTHS]
        pairs = [found.pairs[n][i] for n in WIDTHS]
        coordinates = [x @ p.a.mT / p.size_in for x, p in zip(there, pairs, strict=True)]
        gap = (coordinates[0] - coordinates[2]).norm() / coordinates[2].norm()
        assert float(gap) < 0.12


@pytest.mark.parametrize("method", ["unpaired", "random"])
def test_without_common_texts_coordinates_have_nothing_in_common(method):
    after = [entry["after"] for entry in bases(method).report]
    assert min(after) > 0.8 and sum(after) / len(after) > 1.1


def test_sizes_tell_how_large_coordinates_are():
    features = made({"narrow": (64, 32), "wide": (576, 192)}, noise=0.0)
    whole = features["wide"]
    larger = replace(whole, inputs=tuple(3 * x for x in whole.inputs))
    one, two = (bases(features={**features, "wide": w}) for w in (whole, larger))
    for small, large in zip(one.pairs["wide"], two.pairs["wide"], strict=True):
        assert large.size_in == pytest.approx(3 * small.size_in)
        assert large.size_out == small.size_out
        assert torch.allclose(large.a, small.a, atol=1e-9)
    assert all(p.size_in == p.size_out == 1.0 for p in one.pairs["narrow"])


def test_a_core_learned_elsewhere_does_here_what_it_does_there():
    """With features that are turned copies, the layer's change in one is that in the other."""
    features = made({"narrow": (64, 32), "wide": (576, 192)}, noise=0.0, latent=6, modules=1)
    found = bases(features=features)
    narrow, wide = (found.pairs[name][0] for name in ("narrow", "wide"))
    core, shift = draw(6, 6, seed=1), draw(6, seed=2)

    def change(pair, x):
        coordinates = x @ pair.a.mT / pair.size_in - pair.shift
        return pair.size_out * (coordinates @ core.mT + shift) @ pair.b.mT

    here, there = (f.inputs[0] for f in features.values())
    assert float(wide.shift.norm()) > 0.5, "their means are not turned copies"
    assert not narrow.shift.any()
    one, two = change(narrow, here) @ narrow.b, change(wide, there) @ wide.b
    assert torch.allclose(two / wide.size_out, one, atol=1e-6 * float(one.abs().max()))


@pytest.mark.parametrize("method", METHODS)
def test_the_same_bits_whatever_the_order_and_who_joins(method):
    features = made({"wide": (576, 192), "narrow": (60, 32)})
    one = bases(method, features=features)
    two = bases(method, features=dict(reversed(list(features.items()))))
    three = bases(method, features={**features, "third": made({"third": (99, 40)})["third"]})
    for name in features:
        for other in (two, three):
            for here, there in zip(one.pairs[name], other.pairs[name], strict=True):
                assert torch.equal(here.a, there.a) and torch.equal(here.b, there.b)


def test_methods_differ_and_draws_follow_the_seed():
    features = made(WIDTHS)
    found = {m: bases(m, features=features).pairs["wide"][0].a for m in METHODS}
    for one in METHODS:
        for two in METHODS:
            assert one == two or not torch.allclose(found[one], found[two], atol=1e-5)
    for method in ("unpaired", "random"):
        other = make_bases(features, 6, FIT, AlignSettings(method=method), 1).pairs["wide"][0].a
        assert not torch.allclose(other, found[method], atol=1e-3)


def test_one_backbone_alone_has_its_principal_directions():
    found = bases(features={"narrow": made(WIDTHS)["narrow"]})
    assert found.reference == "narrow" and not found.report
    assert found.summary() == {"reference": "narrow"}


def test_the_summary_is_the_mean_of_the_report():
    found = bases()
    told = found.summary()
    assert set(told) == {"reference", "wide", "narrow"}
    own = [entry["after"] for entry in found.report if entry["backbone"] == "wide"]
    assert told["wide"]["after"] == pytest.approx(sum(own) / len(own))


@pytest.mark.parametrize(
    ("rank", "changes", "message"),
    [
        (33, {}, r"adapter.rank: 33 given.*outputs of module 1 of narrow span 32.*1 to 32"),
        (0, {}, "adapter.rank: 0 given"),
    ],
)
def test_a_rank_that_layers_do_not_have_is_refused(rank, changes, message):
    with pytest.raises(InputError, match=message):
        bases(rank=rank, **changes)


def test_a_rank_that_texts_do_not_support_is_refused():
    with pytest.raises(InputError, match=r"rank: 12 given.*span 9 directions over 10 anchor texts"):
        make_bases(made(WIDTHS), 12, 10, AlignSettings(), 0)


def test_unequal_numbers_of_modules_are_refused():
    features = {**made(WIDTHS), "deep": made({"deep": (64, 32)}, modules=3)["deep"]}
    with pytest.raises(InputError, match="unequal numbers of adapted modules.*deep 3.*wide 2"):
        bases(features=features)


@pytest.mark.parametrize("method", ["unpaired", "rotated", "random"])
def test_a_model_that_is_called_otherwise_is_drawn_for_alike(method):
    features = made(WIDTHS)
    moved = {f"elsewhere/{name}": own for name, own in features.items()}
    here, there = bases(method, features=features), bases(method, features=moved)
    for name, pairs in here.pairs.items():
        for one, two in zip(pairs, there.pairs[f"elsewhere/{name}"], strict=True):
            assert torch.equal(one.a, two.a) and torch.equal(one.b, two.b)
