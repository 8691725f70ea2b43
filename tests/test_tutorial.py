"""The tutorial works as written: its commands run in order, on a tiny model."""

import csv
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.test_cli import atlas
from tests.test_docs_commands import blocks

__all__ = ["atlas"]

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
TINY = ["backbone.name=tiny", "rounds=1", "train.epochs=1", "threads=1"]
SIZED = {"run", "plan", "compare"}


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """The folder a reader of the page would have made."""
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine"
    mine.mkdir()
    for file in (ROOT / "examples" / "clients").iterdir():
        if file.suffix in (".csv", ".jsonl"):
            shutil.copy(file, mine)
    (settings,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    (mine / "messages.yaml").write_text(settings, encoding="utf-8")
    return tmp_path


def test_every_command_of_the_tutorial_does_what_it_says(desk, atlas):
    lines = [shlex.split(line)[1:] for line in blocks(PAGE)]
    # A server runs until it is stopped: tests/jobs/serve asks one.
    asked = [words for words in lines if words[0] not in ("serve", "compare")]
    assert len(asked) == 10
    for words in asked:
        code, out, err = atlas(*words, *(TINY if words[0] in SIZED else ()))
        assert code == 0, f"{words}: {out} {err}"
        if words[0] == "plan":
            assert "memory for training in MB" in out and "limits nothing" not in out
    assert (desk / "runs" / "messages" / "report.html").exists()
    assert (desk / "support-adapter" / "adapter_config.json").exists()
    with (desk / "answers.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with (desk / "mine" / "support.csv").open(encoding="utf-8", newline="") as file:
        assert [row["text"] for row in rows] == [row["text"] for row in csv.DictReader(file)]
    assert {row["answer"] for row in rows} <= {"routine", "urgent"}
    served = {path.name for path in (desk / "adapters").iterdir() if path.is_dir()}
    assert served >= {"support", "ward", "bakery", "hotel", "garage"}
