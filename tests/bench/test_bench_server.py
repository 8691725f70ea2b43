"""The benchmark of the server, with few and small clients."""

import json

import pytest
import torch

from atlas.bench import server, server_work
from atlas.bench.processes import save_bench
from atlas.bench.server import (
    CASES,
    check_room,
    find_ratios,
    on_paper,
    run_cases,
    slope,
)
from atlas.bench.server_work import ServerCase, make_cohort, make_sketches, plan
from atlas.config.plan import ClusterSettings
from atlas.errors import InputError

SMALL = [ServerCase(n, 2, 2, 12, 32) for n in (130, 160)]


@pytest.fixture
def quick(monkeypatch):
    """In this process, with a number of clusters that need not be found, and a small simulation."""

    def here(command, log, environment):
        assert command[:2] == ["-m", "atlas.bench.server_work"]
        assert not environment
        server_work.main(command[2:])
        return 123

    monkeypatch.setattr(server, "run_watched", here)
    monkeypatch.setattr(server_work, "ClusterSettings", lambda: ClusterSettings(k=8))


def test_a_run_has_rows_ratios_notes_and_a_plot(quick, tmp_path):
    told = []
    found = run_cases(SMALL, lambda *step: told.append(step))
    assert [row["clients"] for row in found.rows] == [130, 160]
    for row, case in zip(found.rows, SMALL, strict=True):
        assert row["plan_seconds"] > 0 and row["mix_seconds"] > 0 and row["cpu_seconds"] > 0
        assert row["average_seconds"] > 0
        assert row["state_gb"] == round(case.clients * 4 * case.parameters / 1e9, 3)
        assert row["worst_error"] < 1e-6
        assert row["clusters"] == 8
        # Its own, eight neighbours, and some whose neighbour it is; a cluster has sixteen and more.
        assert 9 <= row["adapters_per_row"] < 13
    assert set(found.ratios) == {"time_exponent", "mix_exponent", "peak_gb"}
    assert any("million" in note for note in found.notes)
    assert any("1,600 clients" in note for note in found.notes)
    assert told[0] == ("130 clients", 0, 3) and told[-1] == ("clients", 3, 3)
    files = save_bench(found, tmp_path)
    assert json.loads(files[0].read_text())["ratios"] == found.ratios
    assert files[1].read_bytes()[:4] == b"\x89PNG"


def test_planted_groups_are_there_and_so_is_each_clients_own():
    case = ServerCase(60, 2, 2, 12, 32)
    cohort, sketches = make_cohort(case), make_sketches(case)
    tasks = torch.from_numpy(case.tasks())
    same = (tasks[:, None] == tasks) & ~torch.eye(60, dtype=torch.bool)
    told = torch.stack([one["text"].sum(0) for one in sketches.values()])
    for held in (told, cohort.tensors["lora_b/module-01"]):
        rows = torch.nn.functional.normalize(held.flatten(1), dim=1)
        alike = rows @ rows.T
        assert float(alike[same].mean()) > float(alike[~same & (alike < 0.99)].mean()) + 0.3
        assert float(alike[same].max()) < 0.999
    assert sum(value.nbytes for value in cohort.tensors.values()) == 60 * 4 * case.parameters
    assert case.bytes == 2 * 60 * 4 * case.parameters
    member = next(m for m in cohort.members if m.labels == 2)
    head = cohort.tensors["head/classifier.weight"][cohort.places[member.id]]
    assert head[:2].all() and not head[2:].any(), "labels that a client lacks are zero"


def test_planted_groups_are_found_by_the_rules_of_a_run():
    case = ServerCase(130, 2, 2, 12, 128)
    _, found = plan(case, make_cohort(case), make_sketches(case))
    assert found == {"clusters": 8, "ari": 1.0}


def test_the_full_case_is_what_is_promised():
    last = CASES["full"][-1]
    assert last.clients == 10_000
    assert 95_000 < last.parameters < 105_000
    assert [case.clients for case in CASES["full"]][:3] == [300, 1_000, 3_000]


def test_a_disk_without_room_is_refused(tmp_path):
    with pytest.raises(InputError, match="GB free.*TMPDIR"):
        check_room(10**18, tmp_path)
    check_room(0, tmp_path)


def row_of(clients, plan, mix, peak):
    return {"clients": clients, "plan_seconds": plan, "mix_seconds": mix, "peak_gb": peak}


def test_exponents_are_those_of_the_last_decade():
    rows = [row_of(n, 5.0, 2e-4 * n**1.5, 0.5) for n in (100, 300, 1_000, 3_000, 10_000)]
    found = find_ratios(rows)
    assert found["mix_exponent"] == pytest.approx(1.5, abs=1e-3)
    whole = [row["plan_seconds"] + row["mix_seconds"] for row in rows[2:]]
    assert found["time_exponent"] == pytest.approx(slope([1e3, 3e3, 1e4], whole), abs=1e-3)
    assert found["peak_gb"] == 0.5
    assert slope([5.0], [3.0]) == 0.0


def test_a_million_cost_what_the_last_cost_each():
    rows = [row_of(10_000, 80.0, 280.0, 1.25) | {"ms_per_client": 36.0}]
    words = on_paper(rows, ServerCase(10_000, 16, 8, 384, 1024), 2_000.0)
    assert "36.0 ms each take 10.0 hours" in words
    assert "3.2 GB of memory and 0.80 TB of disk" in words
    assert "1.2 GB of memory" in on_paper(rows, ServerCase(10_000, 16, 8, 384, 1024), -5.0)
