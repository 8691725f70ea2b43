"""Reading settings: sources, sizes, overrides, YAML, round trips."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import atlas
from atlas.config.federation import FederationConfig
from atlas.config.load import dump_config, load_config, load_resolved, preset_names
from atlas.config.reading import parse_mapping, parse_yaml, to_yaml
from atlas.errors import InputError

SIZED = """
rounds: 3
train: {lr: 1e-3, batch: 4}
data: {tasks: [sst2, mrpc]}
sizes:
  quick: {rounds: 1, train: {batch: 2}, data: {tasks: [sst2]}}
  full: {rounds: 50}
"""


@pytest.fixture
def write(tmp_path):
    def make(text: str | bytes) -> str:
        path = tmp_path / "settings.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return make


def test_the_source_alone_gives_its_values_and_the_defaults(write):
    config = load_config(write("rounds: 7\n"), [])
    assert config.rounds == 7
    assert config == FederationConfig(rounds=7)


def test_overrides_win_and_are_typed(write):
    config = load_config(
        write("train: {lr: 0.5}\nclients: [{id: a, task: t, data: d}, {id: b, task: t, data: d}]"),
        [
            "train.lr=1e-3",
            "data.tasks=[sst2,mrpc]",
            "clients.1.device=cuda",
            "train.early_stop.patience=2",
            "adapter.ranks.a=[2, 4]",
            "backbone.name = tiny",
            "name='7'",
        ],
    )
    assert config.train.lr == 1e-3
    assert config.data.tasks == ["sst2", "mrpc"]
    assert [client.device for client in config.clients] == ["", "cuda"]
    assert config.train.early_stop is not None and config.train.early_stop.patience == 2
    assert config.adapter.ranks == {"a": [2, 4]}
    assert config.backbone.name == "tiny"
    assert config.name == "7"


def test_the_last_of_two_overrides_wins(write):
    assert load_config(write("rounds: 1"), ["rounds=2", "rounds=3"]).rounds == 3


def test_a_null_on_the_way_of_an_override_becomes_a_mapping(write):
    config = load_config(write("train: {early_stop: null}"), ["train.early_stop.patience=3"])
    assert config.train.early_stop is not None and config.train.early_stop.patience == 3


def test_order_is_file_then_size_then_overrides(write):
    source = write(SIZED)
    assert load_config(source, []).rounds == 3
    quick = load_config(source, ["train.batch=8", "size=quick"])
    assert (quick.rounds, quick.train.batch, quick.train.lr) == (1, 8, 1e-3)
    assert quick.data.tasks == ["sst2"], "lists are replaced, not joined"
    assert load_config(write(SIZED + "size: full\n"), []).rounds == 50
    assert load_config(write(SIZED + "size: full\n"), ["size=quick"]).rounds == 1
    assert load_config(write(SIZED + "size: full\n"), ["size=null"]).rounds == 3
    assert load_config(source, ["size=full", "size=quick"]).rounds == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        ("-.5e+2", -50.0),
        ("3.", 3.0),
        ("010", 10),
        ("0o17", 15),
        ("0x1f", 31),
        ("-7", -7),
        ("yes", "yes"),
        ("off", "off"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("=", "="),
        ("true", True),
        ("~", None),
        ("", None),
        ("'1e-3'", "1e-3"),
        ("1e", "1e"),
    ],
)
def test_scalars_follow_yaml_1_2(text, value):
    read = parse_yaml(text, "here")
    assert read == value and type(read) is type(value)


def test_plain_values_survive_a_round_trip():
    pieces = ["yes", "no", "1e-3", "0o7", "1:30", "null", "~", "", " a ", "- x", "a: b", "#c", "é"]
    pieces += [
        "\n",
        "\t",
        "\x85",
        "\u2028",
        "\ufeff",
        "🙂",
        "'",
        '"',
        "\\",
        "!!str",
        "&a",
        "*a",
        "<<",
    ]
    draw = random.Random(0)
    for _ in range(300):
        text = "".join(draw.choices(pieces, k=draw.randint(1, 4)))
        number = draw.uniform(-1, 1) * 10.0 ** draw.randint(-300, 300)
        values = {"a": {text: [text, number, draw.randint(-(10**20), 10**20)]}, "b": None}
        assert parse_mapping(to_yaml(values).encode(), "here") == values


def test_the_resolved_settings_read_back_equal(tmp_path):
    config = FederationConfig.model_validate(
        {
            "name": "yes",
            "train": {"lr": 1e-05, "epochs": None, "steps": 3, "early_stop": {"patience": 2}},
            "data": {"path": "some/./where", "tasks": ["1e-3", "no", "012"]},
            "adapter": {"ranks": {"0": 3, "b": [1, 2]}},
            "tasks": {"t": {"text": ["a\nb: c"], "labels": ["yes", "no"], "prompt": "Q: {x} # y"}},
            "clients": [{"id": "c", "task": "t", "data": "/files/c.jsonl"}],
        }
    )
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config), "utf-8")
    again = load_resolved(path)
    assert again == config
    assert dump_config(again) == dump_config(config)
    near = {"clients": [config.clients[0].model_copy(update={"data": Path("files/c.jsonl")})]}
    path.write_text(dump_config(config.model_copy(update=near)), "utf-8")
    found = load_resolved(path).clients[0].data
    assert found == tmp_path / "files" / "c.jsonl", "a relative one is seen from the file's folder"


@pytest.mark.parametrize("name", preset_names() or ["none"])
@pytest.mark.parametrize("size", ["base", "quick", "full"])
def test_every_preset_loads_in_every_size_and_round_trips(name, size, tmp_path):
    if name == "none":
        pytest.skip("no presets yet")
    config = load_config(name, [] if size == "base" else [f"size={size}"])
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config), "utf-8")
    assert load_resolved(path) == config


def test_a_preset_is_found_by_name_and_a_near_one_is_offered(monkeypatch, tmp_path):
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "demo.yaml").write_text("rounds: 2\n")
    (tmp_path / "presets" / "glue.yaml").write_text("rounds: 4\n")
    monkeypatch.setattr("atlas.config.load.resources.files", lambda package: tmp_path)
    assert preset_names() == ["demo", "glue"]
    assert load_config("glue", []).rounds == 4
    with pytest.raises(InputError, match='"dmo".*did you mean demo\\? presets: demo, glue'):
        load_config("dmo", [])


def test_settings_lie_over_those_of_their_base(write):
    own = load_config(write("{base: recall, name: own, model: {rule: {chunk: 8}}}"), ["size=quick"])
    recall = load_config("recall", ["size=quick"])
    rule = replace(recall.model.rule, chunk=8)
    assert own == recall.model_copy(
        update={"name": "own", "model": recall.model.model_copy(update={"rule": rule})}
    )
    sized = write("{base: titans, sizes: {quick: {seed: 5}}}")
    assert load_config(sized, ["size=quick"]).model_dump() == {
        **load_config("titans", ["size=quick"]).model_dump(),
        "seed": 5,
    }
    for base in ("nobody", "[1]", "{a: 1}", "5"):
        with pytest.raises(InputError, match="base: .*allowed: .*recall"):
            load_config(write(f"base: {base}"), [])


def test_a_preset_is_not_its_own_base(monkeypatch, tmp_path):
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "own.yaml").write_text("{base: own}")
    monkeypatch.setattr("atlas.config.load.resources.files", lambda package: tmp_path)
    with pytest.raises(InputError, match='preset own: base: "own"'):
        load_config("own", [])


def test_fuzzed_files_and_overrides_fail_only_as_bad_input(write):
    draw = random.Random(1)
    alphabet = list("abz019:-[]{},#&*!|>'\"%@`\\.~=\n\t ") + [
        "rounds",
        "train:",
        "lr",
        "1e-3",
        "\x00",
    ]
    for _ in range(100):
        text = "".join(draw.choices(alphabet, k=draw.randint(1, 25)))
        for source, overrides in ((text, []), ("rounds: 1", [text]), ("a: 1", [f"rounds={text}"])):
            try:
                load_config(write(source), overrides)
            except InputError as error:
                assert str(error)
    for _ in range(100):
        try:
            load_config(write(draw.randbytes(draw.randint(1, 30))), [])
        except InputError as error:
            assert str(error)


def test_reading_settings_imports_no_torch():
    source = str(Path(atlas.__file__).parents[1])
    code = (
        f"import sys; sys.path.insert(0, {source!r})\n"
        "import atlas.config.load, atlas.runs.seeds, atlas.runs.folder, atlas.runs.events\n"
        "import atlas.runs.folder, atlas.runs.process, atlas.runs.process\n"
        "atlas.runs.process.machine_facts(); atlas.runs.folder.schema()\n"
        "heavy = {'torch', 'transformers', 'peft'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_steps_alone_are_enough(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\n")
    train = load_config(str(path), ["train.steps=5"]).train
    assert (train.epochs, train.steps) == (None, 5)
    train = load_config(str(path), []).train
    assert (train.epochs, train.steps) == (1, None)
    with pytest.raises(InputError, match=r"train: set exactly one .*\(epochs: 2, steps: 5 given\)"):
        load_config(str(path), ["train.steps=5", "train.epochs=2"])
    with pytest.raises(InputError, match="train: set exactly one of epochs and steps"):
        load_config("demo", ["train.steps=5"])


def test_a_recorded_run_from_before_a_key_keeps_what_it_meant(tmp_path):
    recorded = json.loads(load_config("demo", []).model_dump_json())
    now = tmp_path / "now.yaml"
    now.write_text(dump_config(load_config("demo", [])))
    assert load_resolved(now).clusters.splits == "useful"
    for block, key in (("clusters", "splits"), ("relation", "scale"), ("relation", "siblings")):
        del recorded[block][key]
    before = tmp_path / "before.yaml"
    before.write_text(json.dumps(recorded))
    found = load_resolved(before)
    assert (found.clusters.splits, found.relation.scale) == ("real", "unit")
    assert found.relation.siblings == "apart"
    assert found.relation.alpha == 1.0
