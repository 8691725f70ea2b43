"""`import atlas`: the verbs of the command line in Python, by the same names, with its results."""

import importlib
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import atlas
from atlas.config.load import load_config
from atlas.config.reading import override_texts, parse_override
from atlas.errors import InputError

TINY = {
    "backbone": {"name": "tiny"},
    "adapter": {"blocks": 1, "rank": 2},
    "ranks": {"method": "fixed"},
    "data": {"train": 8, "validation": 8, "test": 8},
    "rounds": 1,
}
PACKAGES = [
    found.name
    for found in pkgutil.walk_packages(atlas.__path__, "atlas.")
    if found.ispkg and found.name not in ("atlas.bench.peers", "atlas.cli")
]


def command(*words):
    """What the command line prints."""
    script = "import sys; from atlas.cli import main; main()"
    words = [sys.executable, "-c", script, *words, *override_texts(TINY), "--json"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def timeless(found):
    """Without what differs from one time to the next."""
    return {key: value for key, value in found.items() if key != "seconds"}


def test_a_run_gives_what_the_command_line_gives(tmp_path):
    run = atlas.run("demo", strategy="fedavg", out=tmp_path / "here", **TINY)
    there = command("run", "demo", "strategy=fedavg", "--out", str(tmp_path / "there"))
    assert timeless(run.summary) == timeless(there)
    again = atlas.open_run("demo", tmp_path / "here")
    assert again == run == run.resume()
    assert run.config.strategy == "fedavg" and run.config.backbone.name == "tiny"
    assert run.events()[-1]["event"] == "finished"


def test_watchers_see_a_run(tmp_path):
    seen, done = [], []
    atlas.run(
        "demo",
        "strategy=local",
        out=tmp_path,
        watch=lambda event, fields: seen.append(event),
        progress=lambda what, so_far, total: done.append((what, so_far, total)),
        **TINY,
    )
    assert seen[0] == "started" and "round_finished" in seen and seen[-1] == "finished"
    assert done


def test_a_plan_gives_what_the_command_line_gives():
    assert atlas.plan("demo", **TINY) == command("plan", "demo")


def test_a_study_gives_what_the_command_line_gives(tmp_path):
    found = atlas.compare(
        "demo", strategy=["local", "fedavg"], ceiling=False, out=tmp_path / "here", **TINY
    )
    words = ["compare", "demo", "strategy=local,fedavg", "--no-ceiling"]
    there = command(*words, "--out", str(tmp_path / "there"))
    assert [timeless(row) for row in found["rows"]] == [timeless(row) for row in there["rows"]]
    assert found["study"] == there["study"]
    assert (tmp_path / "here" / found["study"] / "report.html").is_file()


def test_workers_share_a_study(tmp_path):
    seeds = atlas.compare(
        "demo", "strategy=local", seed=[0, 1], workers=2, ceiling=False, out=tmp_path, **TINY
    )
    assert [row["keys"]["seed"] for row in seeds["rows"]] == [0, 1]


def test_bad_input_is_told_as_on_the_command_line(tmp_path):
    with pytest.raises(InputError, match="strateg"):
        atlas.run("demo", strategi="atlas", out=tmp_path)
    with pytest.raises(InputError, match="no such run"):
        atlas.open_run("nobody", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "texts"),
    [
        ({"rounds": 3, "strategy": "atlas"}, ["rounds=3", "strategy=atlas"]),
        ({"train": {"lr": 1e-3, "clip": None}}, ["train.lr=0.001", "train.clip=null"]),
        ({"data": {"tasks": ["sst2", "cola"]}}, ['data.tasks=["sst2", "cola"]']),
        ({"name": "3", "keep_best": True}, ['name="3"', "keep_best=true"]),
        ({"data": {"path": Path("a, b")}}, ['data.path="a, b"']),
        ({"name": "yes: no"}, ['name="yes: no"']),
    ],
)
def test_settings_become_the_texts_of_the_command_line(settings, texts):
    assert override_texts(settings) == texts
    for text in texts:
        path, value = parse_override(text)
        for part in path:
            settings = settings[part]
        assert value == (str(settings) if isinstance(settings, Path) else settings)
        break


def test_lists_are_values_or_what_is_compared():
    assert override_texts({"seed": (0, 1)}, lists="compared") == ["seed=0,1"]
    tasks = {"data": {"tasks": [["sst2"], ["sst2", "cola"]]}}
    assert override_texts(tasks, lists="compared") == ['data.tasks=["sst2"],["sst2", "cola"]']


def test_settings_by_keyword_are_those_of_a_file():
    config = load_config("demo", override_texts({"train": {"lr": 1e-3}, "seed": 4}))
    assert config.train.lr == 1e-3 and config.seed == 4
    assert config.train.epochs == 2, "the rest of the block stays as the preset has it"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_offers_what_it_says(package):
    module = importlib.import_module(package)
    assert module.__doc__ and module.__all__
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        module.nothing  # noqa: B018
    assert set(module.__all__) <= set(dir(module))


def test_fronts_cost_no_torch():
    eager = {"atlas.federation.strategies", "atlas.backbones.memory_lm"}
    lazy = [name for name in PACKAGES if name not in eager]
    script = (
        f"import sys, importlib; [importlib.import_module(n) for n in {['atlas', *lazy]}]; "
        "import atlas; dir(atlas); atlas.__version__; "
        "print([m for m in ('torch', 'transformers', 'numpy', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_there_is_nothing_else_at_the_front():
    verbs = {"compare", "federate", "open_run", "plan", "run"}
    assert set(atlas.__all__) == {"Run", "__version__", *verbs}
    with pytest.raises(AttributeError, match="no attribute 'train'"):
        atlas.train  # noqa: B018


def wait_policy(**environment):
    """What torch's threads are told in a process that imports atlas."""
    script = "import os, atlas, torch; print(os.environ.get('OMP_WAIT_POLICY'))"
    kept = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**kept, "OMP_DISPLAY_ENV": "true", **environment},
    )
    shown = [line for line in done.stderr.splitlines() if "OMP_WAIT_POLICY" in line]
    return done.stdout.strip(), {line.split("'")[1] for line in shown if "'" in line}


def test_threads_wait_asleep_unless_the_user_says_otherwise():
    told, shown = wait_policy()
    assert told == "PASSIVE" and shown <= {"PASSIVE"}
    assert shown, "the library of torch's threads has read it"
    told, shown = wait_policy(OMP_WAIT_POLICY="ACTIVE")
    assert told == "ACTIVE" and shown == {"ACTIVE"}
    assert wait_policy(GOMP_SPINCOUNT="1000")[0] == "None"
