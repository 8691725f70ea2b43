"""Short and own names of linear modules."""

import pytest

from atlas.backbones.blocks import is_linear
from atlas.backbones.families import FAMILIES
from atlas.errors import InputError

KINDS = {
    name: name for name in ("bert", "roberta", "distilbert", "mpnet", "llama", "gpt2", "atlas")
}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_short_name_is_one_linear_module(family, backbone_of):
    backbone = backbone_of(family.name)
    names = [backbone.select(1, [short]) for short in family.modules]
    assert all(len(found) == 1 for found in names)
    fused = 2 * (len(family.projections) == 1)  # queries, keys and values are one module's
    assert len(set(names)) == len(names) - fused
    linears = backbone.linears(1)
    assert {found[0] for found in names} == set(linears)
    for name, module in linears.items():
        assert is_linear(module)
        assert (module.in_features, module.out_features) in (
            tuple(module.weight.shape),
            tuple(module.weight.T.shape),
        )
        assert backbone.body.get_submodule(name) is module


def test_names_come_in_the_models_order_without_doubles(backbone_of):
    backbone = backbone_of("bert")
    assert backbone.select(0, ["value", "query", "self.query"]) == (
        "encoder.layer.0.attention.self.query",
        "encoder.layer.0.attention.self.value",
    )
    assert backbone.select(1, ["output"]) == ("encoder.layer.1.attention.output.dense",)
    assert backbone.select(1, ["down"]) == ("encoder.layer.1.output.dense",)
    assert len(backbone.select(1, ["dense"])) == 3
    assert backbone_of("llama").select(1, ["q_proj"]) == ("layers.1.self_attn.q_proj",)


@pytest.mark.parametrize("name", ["gate", "uery", "attention", ""])
def test_unknown_names_are_refused_with_the_allowed_ones(name, backbone_of):
    with pytest.raises(InputError, match="allowed: query, key, value, output, up, down, attention"):
        backbone_of("bert").select(0, ["query", name])
