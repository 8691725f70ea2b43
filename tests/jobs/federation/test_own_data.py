"""A run on files of one's own tells what became of every row."""

import json

import jsonschema
import pytest

from atlas.jobs.federation.plan import plan_run
from atlas.jobs.runner import start_run
from atlas.report.live import RoundLine
from atlas.report.tables.data import MOST_LISTED, data_lines
from atlas.report.tables.plan import plan_view
from atlas.runs.folder import schema
from tests.data.helpers import sentences, write_jsonl
from tests.helpers import make_config

LONG = "word " * 60


@pytest.fixture
def listed(tmp_path):
    """A client with every trouble, and one whose test is large enough but whose class is one."""
    rows = [{"sentence": f"{r['sentence']} {LONG}", "label": r["label"]} for r in sentences(5)]
    rows += sentences(35, start=10) + sentences(3, start=10)
    rows += [{"sentence": "both", "label": 0}, {"sentence": "both", "label": 1}]
    rows += [{"sentence": "nothing", "label": None}]
    lines = [f"same class {i};1" for i in range(180)]
    (tmp_path / "ones.csv").write_text("\n".join(["sentence;label", *lines]))
    messy = write_jsonl(tmp_path / "messy.jsonl", rows)
    return [
        {"id": "messy", "task": "sst2", "data": str(messy)},
        {"id": "ones", "task": "cola", "data": str(tmp_path / "ones.csv")},
    ]


def test_counts_and_warnings_are_told_and_in_the_summary(listed, tmp_path):
    seen = {}
    finished = start_run(
        make_config(rounds=1, clients=listed),
        tmp_path / "runs",
        lambda name, fields: seen.setdefault(name, fields),
    )
    told = finished.summary["data"]
    assert seen["data"]["clients"] == told
    jsonschema.validate(finished.summary, schema())
    messy, ones = told["messy"], told["ones"]
    counts = {k: messy[k] for k in ("rows", "used", "dropped", "duplicates", "conflicts")}
    wanted = {"rows": 46, "used": 40, "dropped": 1, "duplicates": 3, "conflicts": 2}
    assert counts == wanted and messy["truncated"] == 5 and ones["truncated"] == 0
    assert [ones[k] for k in ("train", "validation", "test")] == [90, 36, 54]
    text = "\n".join(messy["warnings"])
    assert "1 row without label" in text and "says 'negative'" in text
    assert "12 test examples are too few to tell" in text and "one class" not in text
    assert "read with semicolons" in ones["warnings"][0]
    assert ones["warnings"][1:] == ["one class only: all 90 training examples are 'acceptable'"]
    events = [json.loads(line)["event"] for line in finished.folder.events.open()]
    assert events.index("data") < events.index("round_started")


def test_a_device_that_limits_nothing_is_told_of(listed, tmp_path):
    (tmp_path / "own.yaml").write_text("rounds: 1\n")
    ones = {**listed[1], "test_data": None, "backbone": ""}
    people = [{**ones, "id": id, "device": id} for id in ("laptop", "lapptop")]
    small = ["backbone.name=tiny", "threads=1", f"clients={json.dumps(people)}"]
    told = plan_run(str(tmp_path / "own.yaml"), small)["data"]
    assert "ranks.method is fixed; with ranks.method=importance" in told["laptop"]["warnings"][-1]
    assert "unknown device 'lapptop'; did you mean laptop?" in told["lapptop"]["warnings"][-1]
    by_memory = [*small[:2], f"clients={json.dumps(people[:1])}", "ranks.method=importance"]
    told = plan_run(str(tmp_path / "own.yaml"), by_memory)["data"]
    assert not any("ranks.method" in warning for warning in told["laptop"]["warnings"])


def test_the_lines_name_clients(listed, tmp_path):
    settings = make_config(clients=listed).model_dump(mode="json", exclude_unset=True)
    (tmp_path / "mine.yaml").write_text(json.dumps(settings))
    plan = plan_run(str(tmp_path / "mine.yaml"), [])
    lines = RoundLine().add("data", {"clients": plan["data"]}).splitlines()
    assert lines[0] == (
        "data  messy: 46 rows, 40 used (20 train, 8 validation, 12 test), 3 duplicates, 1 dropped, "
        "2 in conflict, 5 truncated"
    )
    assert any(line.startswith("  ones: one class only") for line in lines)
    shown = [str(part) for part in plan_view(plan).renderables]
    assert lines[0] in shown


def test_many_clients_are_summed_up():
    keys = ("rows", "used", "train", "validation", "test", "duplicates", "dropped")
    facts = {**dict.fromkeys((*keys, "conflicts", "truncated"), 2), "warnings": ["few"]}
    clients = {f"c{i}": facts for i in range(MOST_LISTED + 5)}
    lines = data_lines(clients)
    assert lines[0].startswith(f"data  {MOST_LISTED + 5} clients: {2 * (MOST_LISTED + 5)} rows")
    assert len(lines) == 2 + 2 * MOST_LISTED and "5 more clients" in lines[-1]
    assert data_lines({}) == []


def test_made_up_data_has_nothing_to_tell():
    assert (
        plan_run("demo", ["backbone.name=tiny", "ranks.method=fixed", "strategy=local"])["data"]
        == {}
    )
