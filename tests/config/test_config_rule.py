"""A memory rule is declared once: settings files, models and kernels cannot come to differ."""

from dataclasses import asdict, fields
from typing import get_args

import pytest
from pydantic import TypeAdapter

import atlas.config.rule
import atlas.memory.rules.rule
from atlas.backbones.memory_lm.config import AtlasConfig, checked_config
from atlas.build.memory import model_settings
from atlas.config.load import load_config
from atlas.config.memory import MemoryModelSettings
from atlas.config.rule import Rule
from atlas.errors import InputError
from atlas.memory.layer.settings import LayerSettings

SCHEMA = TypeAdapter(Rule).json_schema()["properties"]
CHOICES = [(name, own["enum"]) for name, own in SCHEMA.items() if "enum" in own]
NUMBERS = [(name, own["minimum"]) for name, own in SCHEMA.items() if "minimum" in own]
ABOVE = [
    (name, own["exclusiveMinimum"]) for name, own in SCHEMA.items() if "exclusiveMinimum" in own
]
OR_NULL = {name: own["anyOf"] for name, own in SCHEMA.items() if "anyOf" in own}
# Of the gradients, only this one goes with every learner; some numbers go with one choice alone.
ANY_LEARNER = {"gradient": "chunk-start"}
WITH = {
    "bias_power": {"bias": "lp"},
    "retention_power": {"retention": "lq"},
    "retention_mass": {"retention": "kl"},
    "retention_threshold": {"retention": "elastic-net"},
    "expansion": {"architecture": "mlp"},
    "anchor": {"architecture": "mlp"},
}


def together(name, value):
    return {**ANY_LEARNER, **WITH.get(name, {}), name: value}


def by_file(name, value):
    overrides = [f"model.rule.{key}={own}" for key, own in together(name, value).items()]
    return load_config("recall", ["size=quick", *overrides]).model.rule


def by_model(name, value):
    return checked_config(rule=together(name, value)).layer_settings().rule


def by_hand(name, value):
    return Rule(**together(name, value))


WAYS = [by_file, by_model, by_hand]


def test_it_is_one_and_the_same_class_everywhere():
    assert atlas.memory.rules.rule.Rule is atlas.config.rule.Rule is Rule
    read = MemoryModelSettings.model_fields
    assert read["rule"].annotation is Rule
    assert get_args(read["local_rules"].annotation) == (Rule,)
    given = {field.name: field.type for field in fields(LayerSettings)}
    assert (given["rule"], given["local_rules"]) == ("Rule", "tuple[Rule, ...]")


def test_every_field_is_described_and_checked():
    assert list(SCHEMA) == [field.name for field in fields(Rule)]
    assert {name for name, _ in CHOICES + NUMBERS + ABOVE} | set(OR_NULL) == set(SCHEMA)
    assert all(own["description"] for own in SCHEMA.values())


def test_defaults_are_those_of_the_rule():
    assert {name: own["default"] for name, own in SCHEMA.items()} == asdict(Rule())
    assert MemoryModelSettings().rule == Rule()
    assert AtlasConfig().layer_settings().rule == Rule()
    assert LayerSettings(2, 4, window=8).rule == Rule()


def test_a_file_s_rule_is_the_one_the_kernels_are_given():
    changes = ["model.rule.window=3", "model.rule.weighting=both", "model.local_shard=8"]
    config = load_config(
        "recall", ["size=quick", *changes, "model.local_rules=[{window: 3, read: before}]"]
    )
    layer = model_settings(config, 32).layer_settings()
    assert layer.rule == config.model.rule == Rule(window=3, weighting="both")
    assert list(layer.local_rules) == config.model.local_rules == [Rule(window=3, read="before")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "choices"), CHOICES)
def test_all_ways_allow_the_same_choices(way, name, choices):
    for choice in choices:
        assert getattr(way(name, choice), name) == choice
    with pytest.raises(InputError, match=f"{name}: .* allowed: {', '.join(choices)}$"):
        way(name, "other")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "least"), NUMBERS)
def test_all_ways_allow_the_same_numbers(way, name, least):
    assert getattr(way(name, least), name) == least
    with pytest.raises(InputError, match=f"{name}: {least - 1}"):
        way(name, least - 1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "least"), ABOVE)
def test_all_ways_allow_numbers_above_the_same(way, name, least):
    assert getattr(way(name, least + 1e-3), name) == least + 1e-3
    with pytest.raises(InputError, match=f"{name}: {least}.* a number > {least}"):
        way(name, least)


@pytest.mark.parametrize("way", WAYS)
def test_all_ways_refuse_what_does_not_go_together(way):
    with pytest.raises(InputError, match="window: 4; allowed with bias: lp: 1 only"):
        WITH["window"] = {"bias": "lp"}
        try:
            way("window", 4)
        finally:
            del WITH["window"]


@pytest.mark.parametrize("way", WAYS)
def test_all_ways_allow_the_same_momentum(way):
    assert [own.get("type") for own in OR_NULL["momentum"]] == ["number", "null"]
    assert way("momentum", 0.9).momentum == 0.9
    for wrong in (1.0, -0.1):
        with pytest.raises(InputError, match=f"momentum: {wrong}.*>= 0 and < 1, or null$"):
            way("momentum", wrong)


@pytest.mark.parametrize("way", [by_file, by_model])
def test_all_ways_know_the_same_fields(way):
    with pytest.raises(InputError, match=f"allowed: {', '.join(SCHEMA)}$"):
        way("other", 1)
