"""Arms: bundles of settings that are compared as one."""

import pytest

from atlas.config.grid import lay_out, read_arm
from atlas.config.load import load_config
from atlas.errors import InputError


@pytest.mark.parametrize(
    ("text", "name", "settings"),
    [
        ("strategy=atlas", "strategy=atlas", {"strategy": "atlas"}),
        (" a.b=1   c=x ", "a.b=1 c=x", {"a.b": "1", "c": "x"}),
        ("control: strategy=atlas a.b=0", "control", {"strategy": "atlas", "a.b": "0"}),
        ("no graph_1-a: a=1", "no graph_1-a", {"a": "1"}),
        ("full:", "full", {}),
        ("ranks={a: 3, b: 4} x=[1, 2]", None, {"ranks": "{a: 3, b: 4}", "x": "[1, 2]"}),
        ("prompt='Q: {q} A:' x=1", None, {"prompt": "'Q: {q} A:'", "x": "1"}),
        ("keep: ranks={a: 3}", "keep", {"ranks": "{a: 3}"}),
    ],
)
def test_an_arm_is_named_by_its_label_or_its_settings(text, name, settings):
    arm = read_arm(text)
    assert arm.settings == settings
    assert arm.name == name or (name is None and arm.name == text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected key=value"),
        ("strategy", "expected key=value"),
        ("a=1 strategy", "expected key=value"),
        ("x y: =1", "expected key=value"),
        ("a=1 b=2 a=3", "a is given twice"),
        ("a.b=1 a.b=1", "a.b is given twice"),
        ("strategy=local,fedavg", "strategy has several values; give each an arm"),
        ("seed=3", "paired by seed"),
        ("ctl!: a=1", "allowed as label: 1 to 40 letters, digits, spaces, - or _"),
        ("x" * 41 + ": a=1", "allowed as label"),
        (" : a=1", "allowed as label"),
        (": a=1", "allowed as label"),
        ("sizes.quick.rounds=1", "size blocks stay"),
    ],
)
def test_bad_arms_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        read_arm(text)


def test_arms_multiply_with_comma_values():
    cases = lay_out(["alone=false", "seed=0,1"], ["control: rounds=3", "rounds=4 sample=0.5"])
    assert [(case.name, case.keys) for case in cases] == [
        ("control", {"rounds": "3", "seed": "0"}),
        ("control", {"rounds": "3", "seed": "1"}),
        ("rounds=4 sample=0.5", {"rounds": "4", "sample": "0.5", "seed": "0"}),
        ("rounds=4 sample=0.5", {"rounds": "4", "sample": "0.5", "seed": "1"}),
    ]
    assert cases[3].overrides == ("alone=false", "seed=1", "rounds=4", "sample=0.5")
    named = lay_out(["rounds=1,2", "seed=0,1"], ["a: sample=0.5", "b:"])
    assert list(dict.fromkeys(case.name for case in named)) == [
        "a rounds=1", "a rounds=2", "b rounds=1", "b rounds=2",
    ]  # fmt: skip
    assert named[0].columns == {"arm": "a", "rounds": "1"}


def test_an_arm_wins_over_the_common_settings():
    # Also where it, or the common settings, name the whole block.
    cases = lay_out(
        ["rounds=2", "relation={eta: 0.1, cross: 0.2}"],
        ["rounds=3 relation.eta=0", "relation={eta: 0.4}"],
    )
    first, second = [load_config("demo", case.overrides) for case in cases]
    assert (first.rounds, first.relation.eta, first.relation.cross) == (3, 0.0, 0.2)
    assert (second.rounds, second.relation.eta, second.relation.cross) == (2, 0.4, 0.0)
    # One that sets a compared key is one run per seed, not one for every value as well.
    cases = lay_out(["rounds=1,2", "seed=0,1"], ["sample=1.0", "b: rounds=1"])
    assert [(case.name, case.keys["seed"]) for case in cases] == [
        ("sample=1.0 rounds=1", "0"),
        ("sample=1.0 rounds=1", "1"),
        ("sample=1.0 rounds=2", "0"),
        ("sample=1.0 rounds=2", "1"),
        ("b rounds=1", "0"),
        ("b rounds=1", "1"),
    ]
    assert load_config("demo", cases[4].overrides).rounds == 1


@pytest.mark.parametrize(
    ("overrides", "arms", "message"),
    [
        ([], [], "nothing to compare: give a key several values"),
        (["rounds=3"], ["a: alone=true"], "nothing to compare: give a second --arm"),
        (["seed=0,1"], ["a: alone=true", "a: alone=false"], 'the same label as "a"'),
        (
            [],
            ["alone=true rounds=1", "b: rounds=1 alone=true"],
            'settings as "alone=true rounds=1"',
        ),
        (["seed=0,0"], ["alone=true"], "given once"),
        (["train.lr=1e-3,1e-4"], ["train={epochs: 2}"], "train overlaps with train.lr"),
        (["train={epochs: 1},{epochs: 2}"], ["train.lr=1e-3"], "train.lr overlaps with train,"),
    ],
)
def test_arms_that_tell_nothing_are_refused(overrides, arms, message):
    with pytest.raises(InputError, match=message):
        lay_out(overrides, arms)


def test_without_arms_a_case_is_a_combination():
    cases = lay_out(["rounds=3", "strategy=local,fedavg", "seed=0,1"])
    assert [case.keys for case in cases][1] == {"strategy": "local", "seed": "1"}
    assert cases[1].overrides == ("rounds=3", "strategy=local", "seed=1")
    assert [case.name for case in cases[::2]] == ["strategy=local", "strategy=fedavg"]
    assert [case.name for case in lay_out(["seed=0,1"])] == ["all", "all"]
