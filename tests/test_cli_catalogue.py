"""The verbs that list what there is, and that they list it from where it is declared."""

import json
import subprocess
import sys

import pytest

from atlas.config.describe import find_settings, first_sentence, settings_of
from atlas.config.federation import FederationConfig
from atlas.config.load import KINDS, load_config, preset_names
from atlas.errors import InputError
from atlas.federation.strategies import STRATEGIES, Strategy, list_strategies
from tests.test_cli import atlas

__all__ = ["atlas"]


def test_presets_are_listed_with_their_kind_and_a_line(atlas):
    code, out, _ = atlas("presets", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["name"] for row in rows] == preset_names()
    for row in rows:
        assert row["kind"] == load_config(row["name"], []).kind
        assert len(row["about"]) > 20 and "\n" not in row["about"]
        assert row["sizes"] == ["quick", "full"]
    code, out, _ = atlas("presets")
    assert code == 0 and all(name in out for name in preset_names())


def test_the_line_of_a_preset_is_the_first_sentence_of_its_comment():
    text = "# atlas run x\n# One thing\n# and another. More.\nname: x\n# not this\n"
    assert first_sentence(text) == "One thing and another"
    assert first_sentence("name: x\n") == ""


def test_strategies_are_those_registered_and_say_what_w_is(atlas, monkeypatch):
    code, out, _ = atlas("strategies", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["name"] for row in rows] == sorted(STRATEGIES)
    assert all(row["about"] and row["W"] for row in rows)
    assert "atlas" in atlas("strategies")[1]

    def mine(view):
        """W is mine."""

    known = {**STRATEGIES, "own": Strategy(name="own", relation=mine)}
    monkeypatch.setattr("atlas.federation.strategies.base.STRATEGIES", known)
    assert next(row for row in list_strategies() if row["name"] == "own")["W"] == "W is mine"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_setting_has_a_type_what_is_allowed_and_a_sentence(kind):
    for facts in settings_of(kind):
        assert facts.about and facts.allowed and facts.type, facts.key
        assert "any value" not in facts.type, facts.key


OFF = ("train.early_stop.", "task.hub.", "task.tokenizer.", "task.arithmetic.")
"""Blocks that are null by default: what their keys are holds once they are given."""


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_default_told_is_the_one_that_holds(kind):
    config = KINDS[kind]().model_dump(mode="json")
    for facts in settings_of(kind):
        if "<" in facts.key or facts.key.startswith(OFF):
            continue
        value = config
        for part in facts.key.split("."):
            value = value[part]
        assert value == facts.default, facts.key


def test_settings_by_key_block_and_free_key(atlas):
    rows = json.loads(atlas("settings", "train.lr", "--json")[1])
    assert [(row["kind"], row["default"]) for row in rows] == [
        ("federation", FederationConfig().train.lr),
        ("memory", 0.003),
        ("grokking", 0.01),
    ]
    rows = json.loads(atlas("settings", "train", "--kind", "memory", "--json")[1])
    assert {row["kind"] for row in rows} == {"memory"}
    assert all(row["key"].startswith("train.") for row in rows) and len(rows) > 8
    (row,) = json.loads(atlas("settings", "devices.watch.room", "--json")[1])
    assert row["key"] == "devices.<name>.room"
    code, out, _ = atlas("settings", "relation.eta")
    assert code == 0
    assert "step toward the neighbours' mean" in out and "even, shrink, auto" in out
    code, out, _ = atlas("settings")
    assert code == 0 and "kind: federation" in out and "kind: memory" in out


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("trian", "train"),
        ("train.learning_rate", "train.lr"),
        ("momentum", "model.rule.momentum"),
        ("lr", "train.lr"),
        ("train.lrr", "train.lr"),
        ("ranks.chioces", "ranks.choices"),
        ("devices.watch.rom", "devices.watch.room"),
        ("relation.batchs", "fingerprint.batches"),
        ("foo", None),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest(atlas, key, meant):
    code, _, err = atlas("settings", key)
    assert code == 2
    assert err.startswith("error: ") and key in err
    assert f"did you mean {meant}?" in err if meant else "did you mean" not in err
    with pytest.raises(InputError):
        find_settings(key, list(KINDS))


def test_an_unknown_kind_is_refused(atlas):
    code, _, err = atlas("settings", "--kind", "poem")
    assert code == 2 and "federation, memory" in err


@pytest.mark.parametrize("verb", ["presets", "settings"])
def test_what_there_is_is_told_without_torch(verb):
    code = (
        f"import sys; sys.argv = ['atlas', {verb!r}, '--json']\n"
        "from atlas import cli\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "False"


def test_the_help_of_run_explains_sizes(atlas):
    code, out, _ = atlas("run", "--help")
    assert code == 0
    told = " ".join(out.replace("│", " ").split())
    assert "listed by: atlas settings. size=quick and size=full pick" in told
