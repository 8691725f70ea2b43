"""What a report shows of a run folder, whole or damaged."""

import json
import re

import pytest

from atlas.errors import InputError
from atlas.report.html.document import SECTIONS, run_document, runs_document
from atlas.report.html.page import make_report, open_document, render, write_report
from tests.report.folders import CLIENTS, make_federation, one_round, write_events

HOSTILE = {
    "<img src=x onerror=alert(1)>": "</script><script>alert(2)</script>",
    "\x1b[31mred\x1b[0m": "[bold red]markup[/]",
    "b\u202e-1": "{{ 7 * 7 }}",
    "' onload='alert(3)": "bears",
}


def section(document, name):
    return next(own for own in document["sections"] if own["id"] == name)


def embedded(page):
    return json.loads(re.search(r'id="document">(.*?)</script>', page, re.DOTALL).group(1))


def test_a_finished_federation_has_all_that_its_folder_tells(tmp_path):
    document = run_document(make_federation(tmp_path / "run"))
    assert document["missing"] == []
    expected = "clients scores losses cluster-scores mixing taken affinity fingerprints clusters "
    expected += "ranks rank-memory budgets importance bytes mixtures about"
    assert [own["id"] for own in document["sections"]] == expected.split()
    assert document["headline"].startswith("4 clients trained together for 3 rounds (atlas) and ")
    assert (
        "3.8 points more than each would by training alone; 2 of 4 gained" in document["headline"]
    )
    for own in document["sections"]:
        assert own["sentence"], own["id"]
        assert own["charts"] or own["tables"] or own["texts"], own["id"]
        for chart in own["charts"]:
            assert chart["type"] in ("line", "dots", "bars", "heatmap", "scatter")
    assert "atlas run demo" in section(document, "about")["texts"][0]["text"]


def test_gains_and_weights_are_the_folders_own(tmp_path):
    document = run_document(make_federation(tmp_path / "run"))
    table = section(document, "clients")["tables"][0]
    names = [column["name"] for column in table["columns"]]
    row = dict(zip(names, table["rows"][0], strict=True))
    assert (row["atlas"], row["alone"], row["gain"]) == (80.0, 70.0, 10.0)
    frames = section(document, "mixing")["charts"][0]["frames"]
    assert [frame["name"] for frame in frames] == ["round 1", "round 2", "round 3"]
    assert frames[-1]["values"][0] == [0.25] * 4


def test_tasks_and_clusters_have_one_colour(tmp_path):
    document = run_document(make_federation(tmp_path / "run"))
    by_task = {s["name"]: s["colour"] for s in section(document, "scores")["charts"][0]["series"]}
    by_cluster = section(document, "cluster-scores")["charts"][0]["series"]
    for series in by_cluster:
        task = "apples" if "apples" in series["name"] else "bears"
        assert series["colour"] == by_task[task]
    assert by_task["apples"] != by_task["bears"]


def test_training_alone_is_dashed_over_the_rounds_where_there_is_a_shadow(tmp_path):
    path = make_federation(tmp_path / "run")
    document = run_document(path)
    (scores,) = section(document, "scores")["charts"]
    training, losses = section(document, "losses")["charts"]
    for chart, first in ((scores, 52.5), (losses, 0.68)):
        dashed = {s["name"]: s for s in chart["series"] if s.get("dash") and not s.get("faint")}
        assert list(dashed) == ["apples, alone", "bears, alone"]
        assert dashed["apples, alone"]["y"][0] == pytest.approx(first)
        assert not any("low" in own for own in dashed.values())
        thin = [s["name"] for s in chart["series"] if s.get("dash") and s.get("faint")]
        assert thin == CLIENTS and chart["hidden"] == ["each alone"]
    assert not any(s.get("dash") for s in training["series"])
    assert "Dashed is training alone" in section(document, "scores")["sentence"]
    # Without a shadow, and in folders of old, no event tells of it.
    events = [json.loads(text) for text in (path / "events.jsonl").read_text().splitlines()]
    old = [json.dumps({k: v for k, v in e.items() if k != "alone"}) for e in events]
    (path / "events.jsonl").write_text("\n".join(old) + "\n")
    document = run_document(path)
    for name in ("scores", "losses"):
        own = section(document, name)
        assert not any(s.get("dash") for chart in own["charts"] for s in chart["series"])
        assert "alone" not in own["sentence"]


def test_a_section_without_data_is_left_out(tmp_path):
    path = make_federation(tmp_path / "run")
    kept = [
        line for line in (path / "events.jsonl").read_text().splitlines()
        if json.loads(line)["event"] not in ("planned", "granted", "mixed")
    ]  # fmt: skip
    (path / "events.jsonl").write_text("\n".join(kept) + "\n")
    document = run_document(path)
    ids = {own["id"] for own in document["sections"]}
    assert "clients" in ids and not ids & {"mixing", "budgets", "clusters", "affinity", "mixtures"}
    assert document["missing"] == []


def test_what_a_folder_lacks_is_told(tmp_path):
    path = make_federation(tmp_path / "run")
    lines = (path / "events.jsonl").read_text().splitlines()
    kept = [n for n in lines if not ('"round": 2' in n or '"round":2' in n)]
    (path / "events.jsonl").write_text(
        "\n".join([*kept[:3], "not an event", *kept[3:], '{"event": "tr'])
    )
    (path / "machine.json").write_text("[]")
    (path / "notes.txt").write_text("mine")
    missing = " ".join(run_document(path)["missing"])
    assert "2 damaged lines (line 4 and line " in missing
    assert "Round 2 left no end in events.jsonl" in missing
    assert "machine.json is not what it should be" in missing
    assert "not read: notes.txt" in missing


@pytest.mark.parametrize("lost", ["config.yaml", "events.jsonl", "summary.json", "machine.json"])
def test_any_one_file_may_be_gone(tmp_path, lost):
    path = make_federation(tmp_path / "run")
    (path / lost).unlink()
    document = run_document(path)
    assert document["missing"]
    assert embedded(render(document)) == document


@pytest.mark.parametrize("lost", ["config.yaml", "events.jsonl", "summary.json", "machine.json"])
@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"[1, 2]", b'{"kind": "other"}', b"{" * 9000]
)
def test_any_one_file_may_be_foreign(tmp_path, lost, content):
    path = make_federation(tmp_path / "run")
    (path / lost).write_bytes(content)
    document = run_document(path)
    known = lost == "machine.json" and content == b'{"kind": "other"}'  # it is a mapping
    assert document["missing"] or known or lost == "config.yaml"
    assert document["title"] == "run"


def test_one_odd_event_costs_one_section(tmp_path):
    path = make_federation(tmp_path / "run")
    with (path / "events.jsonl").open("a") as log:
        log.write(
            '{"event": "mixed", "cohort": "tiny", "round": 9, "weights": "all", "clients": 3}\n'
        )
    document = run_document(path)
    assert any("mixing" in told for told in document["missing"])
    assert section(document, "clients")["charts"]


def test_an_unfinished_run_says_how_far_it_is(tmp_path):
    path = make_federation(tmp_path / "run", rounds=2, finished=False)
    document = run_document(path)
    assert document["state"] == "stopped"
    assert "2 of 3 rounds are done" in document["missing"][0]
    assert section(document, "scores")["charts"]


def test_hostile_text_stays_text(tmp_path):
    path = make_federation(tmp_path / "run", tasks=HOSTILE)
    page = write_report([path]).read_text("utf-8")
    assert page.count("<script") == 2 and page.count("</script>") == 2
    assert "<img" not in page and "\x1b" not in page and "\u202e" not in page
    assert "{{ 7 * 7 }}" in page, "markup of templates is text"
    shown = json.dumps(embedded(page))
    assert "\\\\x1b[31mred" in shown and "<img src=x onerror=alert(1)>" in shown


def test_a_page_asks_for_nothing_and_lets_nothing_in(tmp_path):
    page = write_report([make_federation(tmp_path / "run")]).read_text("utf-8")
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    assert "default-src 'none'" in page
    assert len(page) < 300_000


def test_runs_stand_side_by_side(tmp_path):
    paths = [make_federation(tmp_path / name / "run") for name in ("one", "two")]
    paths.append(make_federation(tmp_path / "other", settings=["rounds=7"]))
    document = runs_document(paths)
    assert document["title"] == "run, run (2), other"
    overview = section(document, "overview")
    assert [row[0] for row in overview["tables"][0]["rows"]] == ["run", "run (2)", "other"]
    assert (
        "rounds: " in overview["texts"][0]["text"] and "7 (other)" in overview["texts"][0]["text"]
    )
    names = [
        series["name"] for series in section(document, "scores-together")["charts"][0]["series"]
    ]
    assert names == ["run", "run (2)", "other"]
    assert len(section(document, "mixing")["charts"]) == 3


def test_where_a_report_is_written(tmp_path):
    path = make_federation(tmp_path / "run")
    assert make_report([path])["report"] == str(path / "report.html")
    assert make_report([path], tmp_path / "new" / "r.html")["report"].endswith("new/r.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_report([path], tmp_path / "file" / "r.html")
    with pytest.raises(InputError, match="nothing of a run is in it"):
        write_report([tmp_path])
    with pytest.raises(InputError, match="name at least one"):
        open_document([])


def test_every_section_function_is_reached():
    assert all(make.__name__.endswith("_section") for own in SECTIONS.values() for make in own)
    assert CLIENTS == ["a-1", "a-2", "b-1", "b-2"]


def test_many_rounds_stay_a_small_page(tmp_path):
    path = make_federation(tmp_path / "run")
    write_events(path / "events.jsonl", [e for n in range(4, 2000) for e in one_round(n)])
    assert len(write_report([path]).read_bytes()) < 1_000_000
