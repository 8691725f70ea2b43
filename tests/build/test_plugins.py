"""Strategies, tasks and sources of data from a user's own file."""

import re
import sys
from pathlib import Path

import pytest
import torch

import atlas
from atlas.build import plugins
from atlas.config.load import load_config
from atlas.data import clients as sources
from atlas.data import tasks
from atlas.errors import InputError
from atlas.federation.strategies.base import STRATEGIES, Strategy
from atlas.federation.strategies.laws import check_strategy
from atlas.jobs.runner import resume_run

MINE = """
import torch

from atlas.data.clients import register_source
from atlas.data.examples import Record
from atlas.data.tasks import register_task
from atlas.federation.clients import Task
from atlas.federation.strategies.base import Strategy, View, register


def by_task(view: View) -> torch.Tensor:
    rows = [[float(a == b) for b in view.tasks] for a in view.tasks]
    weights = torch.tensor(rows, dtype=torch.float64)
    return weights / weights.sum(1, keepdim=True)


register(Strategy(name="by-task", relation=by_task))
register_task(Task("parity", "classification", ("text",), "label", labels=("even", "odd")))


class Numbers:
    def __init__(self, root, elsewhere):
        pass

    def records(self, task: Task, split: str) -> list[Record]:
        texts = [f"{split} number {i}" for i in range(400)]
        return [Record({"text": t, "label": i % 2}, f"{i}") for i, t in enumerate(texts)]


register_source("numbers", Numbers)
"""
SETTINGS = {
    "strategy": "by-task", "rounds": 2, "backbone": {"name": "tiny"}, "ranks": {"method": "fixed"},
    "adapter": {"blocks": 1, "rank": 2},
    "data": {"source": "numbers", "tasks": ["parity"], "train": 16, "validation": 8, "test": 8},
}  # fmt: skip


@pytest.fixture(autouse=True)
def forgotten():
    """What a test registers is gone after it."""
    registries = (STRATEGIES, tasks.TASKS, sources.SOURCES, plugins._loaded)
    before = [dict(registry) for registry in registries]
    yield
    for registry, kept in zip(registries, before, strict=True):
        registry.clear()
        registry.update(kept)


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def test_a_run_uses_what_a_users_file_registers(mine, tmp_path):
    run = atlas.run("demo", out=tmp_path / "runs", plugins=[mine], **SETTINGS)
    assert run.summary["strategy"] == "by-task"
    assert set(run.summary["score"]["clients"]) == {"parity-1", "parity-2", "parity-3"}
    assert run.resume() == run, "read twice in one process"


def test_a_study_and_a_plan_know_it_too(mine, tmp_path):
    given = {**SETTINGS, "plugins": [[str(mine)]], "rounds": 1}
    given["data"] = {**given["data"], "tasks": [["parity"]]}
    given["strategy"] = ["by-task", "local"]
    found = atlas.compare("demo", ceiling=False, out=tmp_path, **given)
    assert {row["keys"]["strategy"] for row in found["rows"]} == {"by-task", "local"}


def test_paths_are_seen_from_the_settings_file(mine, tmp_path, monkeypatch):
    (tmp_path / "own.yaml").write_text("plugins: [mine.py]\nstrategy: by-task\n")
    monkeypatch.chdir(tmp_path.parent)
    assert load_config(str(tmp_path / "own.yaml"), []).plugins == [str(mine)]


def test_a_changed_plugin_is_refused_on_resume(mine, tmp_path, monkeypatch):
    run = atlas.run("demo", out=tmp_path / "runs", plugins=[mine], **SETTINGS)
    mine.write_text(MINE + "# other\n")
    with pytest.raises(InputError, match="has changed since this process read it"):
        resume_run(run.path, overrides=["rounds=3"])
    plugins._loaded.clear()  # as in a new process, in which nothing is registered yet
    for registry in (STRATEGIES, tasks.TASKS, sources.SOURCES):
        for name in ("by-task", "parity", "numbers"):
            registry.pop(name, None)
    with pytest.raises(InputError, match=r"saved with other plugin mine\.py"):
        resume_run(run.path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import nowhere_to_be_found", "line 1: ModuleNotFoundError"),
        ("def broken(:", "SyntaxError"),
        ("x = 1\nraise RuntimeError('no')", "line 2: RuntimeError: no"),
        (MINE.replace("by-task", "fedavg"), "strategy 'fedavg' is registered twice"),
    ],
)
def test_bad_plugins_are_told_by_file_and_line(tmp_path, text, words):
    path = tmp_path / "bad.py"
    path.write_text(text)
    before = set(sys.modules)
    with pytest.raises(InputError, match=r"bad\.py") as error:
        atlas.run("demo", out=tmp_path / "runs", plugins=[path], **SETTINGS)
    assert words in str(error.value)
    assert not [name for name in set(sys.modules) - before if name.startswith("atlas_plugins")]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["missing.py", "not-installed"])
def test_what_is_not_there_is_refused(name, tmp_path):
    with pytest.raises(InputError, match="plugins: .*(cannot be read|neither)"):
        atlas.run("demo", out=tmp_path, plugins=[name], **SETTINGS)


def test_two_files_of_one_name_are_refused(mine, tmp_path):
    (tmp_path / "other").mkdir()
    again = tmp_path / "other" / "mine.py"
    again.write_text("x = 1\n")
    with pytest.raises(InputError, match="two of one name"):
        atlas.run("demo", out=tmp_path / "runs", plugins=[mine, again], **SETTINGS)


def test_an_unknown_source_is_refused_with_what_there_is(tmp_path):
    with pytest.raises(
        InputError, match="data.source: .*did you mean files.*synthetic, files, hub"
    ):
        atlas.run("demo", "data.source=fils", out=tmp_path)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_our_own_strategies_keep_the_laws(name):
    check_strategy(STRATEGIES[name])


def broken(change):
    def relation(view):
        return change(view, torch.eye(len(view.clients), dtype=torch.float64))

    return Strategy(name="mine", relation=relation)


def forget(view, own):
    view.examples.zero_()
    return own


def first_leads(view, own):
    return own[:1].expand(len(own), -1).clone()


@pytest.mark.parametrize(
    ("change", "law"),
    [
        (lambda view, own: own * 1.01, "rows_are_shares"),
        (lambda view, own: own[:, :1], "rows_are_shares"),
        (lambda view, own: own * float("nan"), "rows_are_shares"),
        (first_leads, "order_is_irrelevant"),
        (forget, "nothing_given_is_changed"),
        (lambda view, own: torch.rand(len(own), len(own)).softmax(1).double(), "mine"),
    ],
)
def test_the_laws_catch_what_breaks_them(change, law):
    with pytest.raises(AssertionError, match=law):
        check_strategy(broken(change))


def test_the_page_on_plugins_works_as_shown(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
    plugin, law = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    path = tmp_path / "mine.py"
    path.write_text(plugin)
    data = {**SETTINGS["data"], "source": "numbers", "tasks": ["parity"]}
    given = {**SETTINGS, "strategy": "halves", "rounds": 1, "data": data}
    run = atlas.run("demo", out=tmp_path / "runs", plugins=[path], **given)
    assert run.summary["strategy"] == "halves"
    exec(law, {"HALVES": STRATEGIES["halves"]})  # the page's own text
