"""Sections of a report that show what methods tell: steps, energy, clusters, grants, forms."""

import json

import pytest

from atlas.report.html.document import run_document
from tests.report.folders import CLIENTS, make_federation, write_events


def tell(path, *events):
    write_events(path / "events.jsonl", events)
    return path


def section(path, name):
    document = run_document(path)
    assert document["missing"] == []
    return next((own for own in document["sections"] if own["id"] == name), None)


def column(table, name):
    place = [head["name"] for head in table["columns"]].index(name)
    return {row[0]: row[place] for row in table["rows"]}


def step(keep, eta):
    return {"noise": 0.4, "difference": 0.1, "rho": 0.5, "keep": keep, "eta": eta}


def test_estimated_steps_are_those_of_the_events(tmp_path):
    path = make_federation(tmp_path / "run")
    assert section(path, "steps") is None
    first = {"a-1": step(0.2, 0.6), "a-2": step(0.4, 0.4), "b-1": None, "b-2": step(0.9, 0.1)}
    second = {**first, "b-1": step(0.3, 0.5), "a-1": step(0.1, 0.7)}
    told = [{"round": n, "cohort": "tiny", "clients": c} for n, c in ((1, first), (2, second))]
    shown = section(tell(path, *(("shrunk", event) for event in told)), "steps")
    keep, eta, cells = shown["charts"]
    apples = next(own for own in keep["series"] if own["name"] == "apples")
    assert apples["x"] == [1, 2] and apples["y"] == pytest.approx([0.3, 0.25])
    assert (apples["low"], apples["high"]) == ([0.2, 0.1], [0.4, 0.4])
    bears = next(own for own in eta["series"] if own["name"] == "bears")
    assert bears["y"] == pytest.approx([0.1, 0.3])
    assert cells["frames"][0]["values"] == [[0.6, 0.7], [0.4, 0.4], [None, 0.5], [0.1, 0.1]]
    assert column(shown["tables"][0], "keep (c)") == {
        "a-1": 0.1,
        "a-2": 0.4,
        "b-1": 0.3,
        "b-2": 0.9,
    }


def test_steps_of_many_clients_are_told_by_the_summary(tmp_path):
    """The log has none of them beyond 64 clients."""
    path = make_federation(tmp_path / "run")
    summary = json.loads((path / "summary.json").read_text())
    summary["steps"] = {"a-1": step(0.2, 0.6), "b-1": None}
    (path / "summary.json").write_text(json.dumps(summary))
    shown = section(path, "steps")
    assert shown["charts"] == []
    assert column(shown["tables"][0], "step (eta)") == {"a-1": 0.6, "b-1": None}


def mixed(number, rows, bands=(4, 8, 16)):
    energy = {"bands": list(bands), "trained": rows, "mixed": [[1.0, 0.0, 0.0]] * len(rows)}
    known = {"error": None, "clients": CLIENTS[: len(rows)], "energy": energy}
    return "mixed", {"round": number, "cohort": "tiny", **known}


def test_energy_is_told_by_rank_and_client(tmp_path):
    path = make_federation(tmp_path / "run")
    assert section(path, "energy") is None
    rows = [[0.9, 0.1, 0.0], [0.6, 0.3, 0.1], [1.0, 0.0, 0.0], [0.8, 0.1, 0.1]]
    tell(path, mixed(1, rows), mixed(2, [[0.5, 0.5, 0.0], [0.7, 0.3, 0.0], *rows[2:]]))
    summary = json.loads((path / "summary.json").read_text())
    summary["ranks"] = {"a-1": [4, 8], "a-2": [4, 16], "b-1": [4, 4], "b-2": [16, 4]}
    summary["unused"] = {"a-2": {"rank": 16, "used": 4, "beyond": 0.005}}
    (path / "summary.json").write_text(json.dumps(summary))
    shown = section(path, "energy")
    large, middle, cells = shown["charts"]
    assert [large["title"], middle["title"]] == ["Rank 16, 2 clients", "Rank 8, 1 client"]
    lines = {own["name"]: own["y"] for own in large["series"]}
    assert lines["beyond rank 4"] == pytest.approx([0.3, 0.25])
    assert lines["beyond rank 8"] == pytest.approx([0.1, 0.05])
    assert [own["name"] for own in middle["series"]] == ["beyond rank 4"]
    assert cells["columns"] == ["1 to 4", "5 to 8", "9 to 16"]
    before, after = cells["frames"]
    assert before["values"][0] == [50.0, 50.0, 0.0] and after["values"][0] == [100.0, 0.0, 0.0]
    assert column(shown["tables"][0], "in use up to") == {"a-2": 4}


def test_ranks_that_stand_empty_are_told_where_all_are_equal(tmp_path):
    path = make_federation(tmp_path / "run")
    summary = json.loads((path / "summary.json").read_text())
    summary["unused"] = {"a-2": {"rank": 8, "used": 1, "beyond": 0.005}}
    (path / "summary.json").write_text(json.dumps(summary))
    shown = section(path, "energy")
    assert shown["charts"] == []
    assert column(shown["tables"][0], "in use up to") == {"a-2": 1}


def test_energy_follows_clients_that_were_away_for_a_round(tmp_path):
    path = make_federation(tmp_path / "run", finished=False)
    tell(path, mixed(1, [[0.9, 0.1, 0.0], [0.6, 0.2, 0.2]]), mixed(2, [[0.5, 0.5, 0.0]]))
    tell(path, mixed(3, [[0.9, 0.1, 0.0], [0.5, 0.2, 0.3], [1.0, 0.0, 0.0]]))
    shown = next(s for s in run_document(path)["sections"] if s["id"] == "energy")
    beyond = next(own for own in shown["charts"][0]["series"] if own["name"] == "beyond rank 8")
    assert shown["charts"][0]["title"] == "Rank 16, 1 client"
    assert beyond["x"] == [1, 3] and beyond["y"] == pytest.approx([0.2, 0.3])


def test_clusters_that_were_split_again_are_told_with_what_they_share(tmp_path):
    path = make_federation(tmp_path / "run")
    assert "split again" not in section(path, "clusters")["sentence"]
    lines = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    planned = next(event for event in lines if event["event"] == "planned")
    judged = {"useful": False, "gain": -0.1, "gain_needed": 0.01}
    tried = [row | judged for row in planned["clusters"]["tried"]]
    tried[0] |= {"useful": True, "gain": 0.5}
    more = {"tried": tried, "k": 3, "first": 2, "tree": [[0, 2], 1], "kin": [[0, 2, 0.75]]}
    planned["clusters"] |= more | {"labels": [0, 2, 1, 1]}
    (path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = section(path, "clusters")
    assert "come of 2 that were split again: [0 2] 1" in shown["sentence"]
    _, splits, kin = shown["tables"]
    assert column(splits, "useful") == {2: "yes", 3: "no"}
    assert column(splits, "gain") == {2: 0.5, 3: -0.1}
    assert column(splits, "chosen") == {2: "split again", 3: ""}
    assert kin["rows"] == [[0, 2, 0.75]]
    gain = next(chart for chart in shown["charts"] if chart["title"].startswith("gain"))
    assert [own["name"] for own in gain["series"]] == ["gain", "needed"]
    assert gain["marks"][0]["x"] == 2


def test_lowered_grants_forms_and_feedback_are_told(tmp_path):
    path = make_federation(tmp_path / "run")
    grant = {
        "round": 0, "client": "b-2", "device": "small", "ranks": [2, 2], "budget": 90, "used": 80,
        "measured": 95, "valid": False, "lowered": 2, "weights": 10, "activations": 20,
        "complexity": 1.0, "importance": [0.5, 0.5], "point": None,
    }  # fmt: skip
    sizes = {"mean": 0.02, "worst": 0.1}
    back = {"strength": 1.0, "residual": sizes, "lost": {"mean": 0.0, "worst": 0.0}}
    fitted = {"round": 4, "client": "a-1", "examples": 9, "steps": 2, "loss": 0.5, "form": "int8"}
    remembered = {"round": 4, "cohort": "tiny", "error": None, "feedback": back}
    tell(path, ("granted", grant), ("fitted", fitted), ("mixed", remembered))
    budgets = section(path, "budgets")["tables"][0]
    assert column(budgets, "lowered")["b-2"] == 2
    assert column(budgets, "fits") == {"a-1": "yes", "a-2": "yes", "b-1": "yes", "b-2": "no"}
    assert "1 of 13 replies were sent as int8" in section(path, "bytes")["note"]
    charts = {chart["title"]: chart for chart in section(path, "mixtures")["charts"]}
    kept = charts["Energy cut off and remembered, share of the mixture"]["series"]
    assert {own["name"]: own["y"] for own in kept} == {"residual": [0.02], "lost": [0.0]}
