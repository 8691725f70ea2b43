import pytest

from atlas.config.grid import expand, split_values
from atlas.errors import InputError


def test_commas_inside_brackets_and_quotes_do_not_split():
    assert split_values("a,b") == ["a", "b"]
    assert split_values("[sst2,mrpc],[cola]") == ["[sst2,mrpc]", "[cola]"]
    assert split_values("{a: 1, b: 2}, null") == ["{a: 1, b: 2}", "null"]
    assert split_values("'a,b',c") == ["'a,b'", "c"]


def test_all_combinations_in_order():
    fixed, combinations = expand(["rounds=3", "strategy=local,fedavg", "seed=0,1"])
    assert fixed == ["rounds=3"]
    assert combinations == [
        {"strategy": "local", "seed": "0"},
        {"strategy": "local", "seed": "1"},
        {"strategy": "fedavg", "seed": "0"},
        {"strategy": "fedavg", "seed": "1"},
    ]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rounds=3"], "nothing to compare"),
        (["seed=0,"], "every value"),
        (["seed=0,0"], "given once"),
        (["seed=0,1", "seed=2,3"], "compared twice"),
    ],
)
def test_bad_grids_are_refused(overrides, message):
    with pytest.raises(InputError, match=message):
        expand(overrides)
