"""Every kind of bad settings has a message that names the key, the value and what is allowed."""

from __future__ import annotations

import pytest

from atlas.config.load import load_config, load_resolved
from atlas.config.messages import nearest
from atlas.errors import InputError

BASE = "rounds: 3\nclients: [{id: a, task: t, data: d}]\n"
TRAIN_KEYS = "epochs, steps, batch, lr, head_lr"

# override -> the parts of its message: key, value, what is wrong, what is allowed
OVERRIDES = {
    "train.learning_rate=1": [
        "train.learning_rate: unknown key; did you mean train.lr? allowed: " + TRAIN_KEYS
    ],
    "train.batch_size=8": ["train.batch_size: unknown key; did you mean train.batch? allowed:"],
    "trian.lr=1": ["trian: unknown key; did you mean train? allowed: kind, name, seed"],
    "lr=1": ["lr: unknown key; did you mean train.lr? allowed: kind, name"],
    "train.early_stop.patienc=2": ["did you mean train.early_stop.patience? allowed: patience"],
    "clients.0.tsk=x": ["clients.0.tsk: unknown key; did you mean clients.0.task? allowed: id"],
    "zzzz=1": ["zzzz: unknown key; allowed: kind"],
    "train.lr=5": ["train.lr: 5 is too large; allowed: a number > 0 and <= 1"],
    "train.lr=0": ["train.lr: 0 is too small; allowed: a number > 0 and <= 1"],
    "train.lr=fast": ['train.lr: "fast" is not a number; allowed: a number > 0 and <= 1'],
    "train.lr=.nan": ["train.lr: NaN is not a finite number; allowed: a number"],
    "rounds=0": ["rounds: 0 is too small; allowed: a whole number >= 1"],
    "rounds=2.5": ["rounds: 2.5 is not written as a whole number; allowed: a whole number >= 1"],
    "rounds=many": ['rounds: "many" is not written as a whole number; allowed: a whole'],
    "rounds=true": ["rounds: true is not written as a whole number"],
    "adapter.rank=9999": [
        "adapter.rank: 9999 is too large; allowed: a whole number >= 1 and <= 512"
    ],
    "alone=maybe": ['alone: "maybe" is neither true nor false; allowed: true or false'],
    "alone=1": ["alone: 1 is neither true nor false; allowed: true or false"],
    "device=gpu": ['device: "gpu" has the wrong form; allowed: cpu, cuda, cuda:N or mps'],
    "device=cuda:x": ["allowed: cpu, cuda, cuda:N or mps"],
    "backbone={autocast: bfloat16, dtype: float64}": ["autocast: bfloat16 given"],
    "train.schedule=cosin": ["did you mean cosine? allowed: constant, linear, cosine"],
    "name=a/b": ['name: "a/b" has the wrong form; allowed: 1 to 64 letters, digits, - or _'],
    "name=7": ["name: 7 is not text; put it in quotes; allowed: 1 to 64 letters"],
    "name=": ["name: null is not text; allowed: 1 to 64 letters"],
    "threads=x": [
        'threads: "x" is not written as a whole number; '
        "allowed: a whole number >= 1 and <= 1024, or null"
    ],
    "data.path=3": ["data.path: 3 is not text; put it in quotes; allowed: a path, or null"],
    "adapter.modules=query": [
        'adapter.modules: "query" is not a list; did you mean [query]? allowed: a list of at'
    ],
    "data.tasks=sst2": ['data.tasks: "sst2" is not a list; did you mean [sst2]? allowed'],
    "data.tasks=sst2,mrpc": ["did you mean [sst2,mrpc]?"],
    "data.shares={train: 0.8, validation: 0.2}": [
        "data.shares: train 0.8 and validation 0.2 leave nothing for the test"
    ],
    "adapter.modules=[]": [
        "adapter.modules: [] has too few entries; allowed: a list of at least 1"
    ],
    "adapter.ranks={a b: 3}": [
        'the key "a b" has the wrong form; allowed: 1 to 64 letters, digits'
    ],
    "adapter.ranks.a=x": ['adapter.ranks.a: "x" is not', "a whole number", "or a list"],
    "adapter.ranks=3": ["adapter.ranks: 3 is not a mapping; allowed: a mapping"],
    "train=3": ["train: 3 is not a mapping; allowed: a mapping with the keys " + TRAIN_KEYS],
    "train.epochs=null": ["train: set exactly one of epochs and steps; the other must be null"],
    "clients=[{}]": ["clients.0.task: missing; allowed: text", "clients.0.id: missing"],
    "clients.0.id.x=1": ['clients.0.id.x: clients.0.id is "a", which has no entries'],
    "clients.0.device.x=1": ['clients.0.device: {"x": 1} is not text'],
    "clients.1.device=x": ['clients.1.device: clients is a list, "1" is not in it', "0 to 0"],
    "clients.x.device=x": ['clients.x.device: clients is a list, "x" is not in it'],
    "rounds.x=1": ["rounds.x: rounds is 3, which has no entries; allowed: a key that leads"],
    "tasks.t.text=[]": [
        "tasks.t.text: [] has too few entries; allowed: a list of at least 1 and at most 8"
    ],
    "rounds": ['override "rounds": expected key=value'],
    "=3": ['override "=3": expected key=value'],
    "train..lr=1": ['override "train..lr=1": expected key=value'],
    "data.tasks=[a": ['override "data.tasks=[a": line 1: expected'],
    "sizes.quick.rounds=1": ['override "sizes.quick.rounds=1"', "override the setting itself"],
    "\udc80=1": ["not UTF-8 text"],
    "size=quick": ['size: "quick" is unknown; allowed: none'],
    "kind=memry": ['kind: "memry" is unknown; allowed: federation, memory'],
    "kind=[a]": ['kind: ["a"] is unknown; allowed: federation, memory'],
    "a" + ".a" * 3000 + "=1": ["nested too deeply"],
}

FILES = {
    b"a: 1\nb: 2\na: 3\n": ["settings.yaml: line 3: the key 'a' is given twice, first on line 1"],
    b"train:\n  lr: 1\n  lr: 2\n": ["line 3: the key 'lr' is given twice, first on line 2"],
    b"[1, 2]": ["settings.yaml: expected a mapping of settings (key: value), found a list"],
    b"": ["settings.yaml: expected a mapping of settings (key: value), found nothing"],
    b"rounds: 1\nx: [": ["settings.yaml: line 2: "],
    b"rounds: 1\nname: \xff": ["settings.yaml: line 2: not UTF-8 text"],
    b"rounds: 1\nname: \x00": ["settings.yaml: line 2: a character that YAML does not allow"],
    b"rounds: !!python/object/apply:os.system [true]": [
        "line 1: the tag",
        "python/object",
        "not allowed",
    ],
    b"rounds: !!int '3'": ["line 1: the tag", "is not allowed"],
    b"a: &a [*a]": ["line 1: anchors and aliases are not allowed"],
    b"rounds: 1\n---\nrounds: 2": ["line 2: expected a single document", "another document"],
    b"1: 2": ["line 1: the key 1 is not text; put it in quotes"],
    b"? [a]\n: b": ["line 1: the key ['a'] is not text"],
    b'name: "\\ud800"': ["line 1: text that is not valid Unicode"],
    b"seed: " + b"9" * 5000: ["line 1: a number of too many digits"],
    b"a: " + b"[" * 3000: ["nested too deeply"],
    b"<<: {rounds: 1}": ["<<: unknown key"],
    b"sizes: 3": ["sizes: 3 is not a mapping"],
    b"sizes: {quick: 3}": ["sizes.quick: 3 is not a mapping of settings"],
    b"sizes: {quick: {}, full: {}}\nsize: quik": [
        'size: "quik" is unknown; did you mean quick? allowed: quick, full'
    ],
    b"sizes: {quick: {sizes: 1}}\nsize: quick": ["sizes: unknown key"],
    b"clients: [{id: a, task: t, data: d}, {id: a, task: t, data: d}]": [
        "clients: the id 'a' occurs twice; ids must differ"
    ],
}


def failure(source: str, overrides: list[str]) -> str:
    with pytest.raises(InputError) as caught:
        load_config(source, overrides)
    text = str(caught.value)
    assert "pydantic" not in text and "http" not in text
    return text


@pytest.mark.parametrize(("override", "parts"), OVERRIDES.items(), ids=lambda x: ascii(x)[:30])
def test_a_bad_override_is_explained(override, parts, tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(BASE)
    text = failure(str(path), [override])
    for part in parts:
        assert part in text
    # One line per problem: exactly as many lines as keys named at their beginning.
    assert len(text.splitlines()) == (2 if override == "clients=[{}]" else 1)


@pytest.mark.parametrize(("data", "parts"), FILES.items(), ids=lambda x: ascii(x)[:30])
def test_a_bad_file_is_explained(data, parts, tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_bytes(data)
    text = failure(str(path), [])
    for part in parts:
        assert part in text


def test_every_problem_has_its_line(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("rounds: 0\ntrain: {lr: 9, bach: 1}\ndevice: gpu\n")
    keys = [line.split(":")[0] for line in failure(str(path), []).splitlines()]
    assert sorted(keys) == ["device", "rounds", "train.bach", "train.lr"]


@pytest.mark.parametrize(
    "source", ["nothing-here", "no/such/file.yaml", "x" * 5000, "a\0b", "\udc80"]
)
def test_an_unknown_source_is_named(source):
    text = failure(source, [])
    assert "neither a preset nor a file" in text and "presets: " in text
    text.encode("utf-8")


def test_a_folder_is_no_source(tmp_path):
    assert "neither a preset nor a file" in failure(str(tmp_path), [])


def test_a_long_value_is_cut(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("rounds: " + "x" * 500)
    assert len(failure(str(path), [])) < 200


def test_a_missing_resolved_file_is_bad_input(tmp_path):
    with pytest.raises(InputError, match=r"config\.yaml: cannot be read: No such file"):
        load_resolved(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("learning_rate", "lr"),
        ("num_rounds", "rounds"),
        ("Rounds", "rounds"),
        ("roudns", "rounds"),
        ("max-steps", "steps"),
        ("", None),
        ("qqqq", None),
    ],
)
def test_the_nearest_name(word, expected):
    assert nearest(word, ["rounds", "lr", "steps"]) == expected
