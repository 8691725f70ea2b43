"""What the README shows works as shown."""

import re
from pathlib import Path

import pytest
import torch

from atlas.cli import app
from atlas.config.load import load_config, preset_names
from atlas.federation.rounds import run_round
from atlas.federation.strategies.base import STRATEGIES, View

ROOT = Path(__file__).parent.parent
EXAMPLE = "examples/clients/clients.yaml"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_every_verb_shown_exists():
    known = {c.name or c.callback.__name__ for c in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    shown = set(re.findall(r"^\s+atlas (\w+)", README, flags=re.MULTILINE))
    assert shown == known


def test_every_file_and_link_named_is_there():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target
    tree = re.search(r"    src/atlas/\n(.*?)\n\n", README, flags=re.DOTALL).group(1)
    for line in tree.splitlines():
        name = line.split()[0]
        place = ROOT / "src" / "atlas" / name if line.startswith("      ") else ROOT / name
        assert place.exists(), name


def test_the_example_strategy_is_one_file_and_one_line(monkeypatch):
    from atlas.build.federation import assemble
    from tests.helpers import make_clients, make_config

    monkeypatch.setattr("atlas.federation.strategies.base.STRATEGIES", dict(STRATEGIES))
    code = PYTHON[-1]
    scope = {}
    exec(compile(code, "neighbours.py", "exec"), scope)  # the README's own text
    view = View(("a", "b", "c"), torch.ones(3), ("x", "y", "x"), 1)
    wanted = torch.tensor([[0.5, 0, 0.5], [0, 1, 0], [0.5, 0, 0.5]], dtype=torch.float64)
    assert torch.equal(scope["same_task"](view), wanted)
    federation = assemble(make_config(strategy="neighbours"), make_clients())
    run_round(federation.plan, federation.state, federation.engine, lambda e, f: None)
    assert not federation.state.failures


@pytest.mark.parametrize("size", ["quick", "full"])
@pytest.mark.parametrize("name", [*preset_names(), EXAMPLE])
def test_every_shipped_config_loads_in_both_sizes(name, size, monkeypatch):
    monkeypatch.chdir(ROOT)
    plain, sized = load_config(name, []), load_config(name, [f"size={size}"])
    assert plain != sized


def test_the_example_of_own_clients_runs(monkeypatch, tmp_path):
    from atlas.jobs.runner import start_run

    monkeypatch.chdir(ROOT)
    config = load_config(EXAMPLE, ["backbone.name=tiny", "size=quick"])
    finished = start_run(config, tmp_path)
    names = ["bakery", "garage", "hotel", "support", "ward", "workshop"]
    assert sorted(finished.summary["score"]["clients"]) == names
    assert set(finished.summary["metrics"].values()) == {"balanced_accuracy"}
    for told in finished.summary["data"].values():
        assert told["rows"] == told["used"] == 100 and not told["warnings"]


def test_the_files_of_the_example_are_those_of_its_generator(tmp_path):
    folder = ROOT / "examples" / "clients"
    code = (folder / "make_clients.py").read_text(encoding="utf-8")
    scope = {"__name__": "example", "__file__": str(tmp_path / "make_clients.py")}
    exec(compile(code, "make_clients.py", "exec"), scope)
    scope["main"]()
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == sorted(p.name for p in folder.iterdir() if p.suffix in (".csv", ".jsonl"))
    for name in made:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_client_of_the_example_gains(monkeypatch, tmp_path, seed):
    from atlas.jobs.runner import start_run

    monkeypatch.chdir(ROOT)
    summary = start_run(load_config(EXAMPLE, [f"seed={seed}"]), tmp_path).summary
    assert summary["gain"]["worst"] > 0


def test_the_python_shown_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code = PYTHON[0].replace('"demo"', '"demo", *SMALL')
    small = ["backbone.name=tiny", "adapter.blocks=1", "ranks.method=fixed", "data.train=8"]
    scope = {"SMALL": [*small, "data.validation=8", "data.test=8"]}
    exec(compile(code.replace("rounds=3", "rounds=1"), "readme.py", "exec"), scope)
    assert scope["run"].path == Path("runs/demo") and len(scope["table"]["rows"]) == 4
    assert set(scope["plan"]["clients"]) == set(scope["run"].summary["score"]["clients"])
