"""Ranks granted under budgets: pictures, the plan's table, the line while a run goes on."""

import io

import numpy as np
import pytest
from matplotlib.colors import to_hex
from rich.console import Console

from atlas.report.figures.drawing import PALETTE
from atlas.report.figures.ranks import (
    BESIDE,
    MOST_BESIDE,
    memory_figure,
    named_ranks,
    plot_ranks,
    ranks_figure,
    side_by_side,
)
from atlas.report.read.cohorts import OUTSIDE, read_granted, short_names
from atlas.report.tables.plan import granted_text, plan_view
from atlas.report.tables.runs import ranks_text
from atlas.runs.events import EventLog, read_events
from tests.report.figures.test_relations import make_planned, size_of, tick_words, write_run
from tests.report.test_report_live import lines

MB = 2**20
DEVICES = (("phone", 256, 8), ("laptop", 2048, 32), ("gpu-8gb", 7168, 64))
KINDS = (
    "attention.self.query",
    "attention.self.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)


def make_modules(blocks, kinds=2):
    return [f"encoder.layer.{block}.{kind}" for block in range(blocks) for kind in KINDS[:kinds]]


def make_grant(client, layers, place=0, **changes):
    device, memory, top = DEVICES[place % len(DEVICES)]
    choices = [rank for rank in (4, 8, 16, 32, 64) if rank <= top]
    ranks = [choices[(place + layer) % len(choices)] for layer in range(layers)]
    grant = {
        "round": 0,
        "client": client,
        "device": device,
        "ranks": ranks,
        "budget": memory * MB,
        "used": int(0.9 * memory * MB),
        "valid": True,
        "weights": 90 * MB,
        "activations": 20 * MB,
        "complexity": 0.5,
        "importance": [1.0] * layers,
        "measured": int(0.95 * memory * MB),
    }
    return grant | changes


def write_granted(path, planned, modules, grants):
    """A run folder whose clients were granted ranks."""
    folder = write_run(path, *([planned] if planned else []), rounds=0)
    clients = [grant["client"] for grant in grants]
    with EventLog(folder.events) as log:
        cohorts = {"minilm": {"clients": clients, "modules": modules}}
        log.log("started", {"rounds": 1, "after": 0, "tasks": {}, "cohorts": cohorts})
        for grant in grants:
            log.log("granted", grant)
    return folder


def make_run(path, count=9, groups=3, blocks=2, **plan):
    planned, modules = make_planned(count, groups, **plan), make_modules(blocks)
    grants = [make_grant(c, len(modules), i // groups) for i, c in enumerate(planned["clients"])]
    return write_granted(path, planned, modules, grants)


def granted_of(folder):
    (granted,) = read_granted(read_events(folder.events))
    return granted


@pytest.mark.parametrize(("count", "groups", "blocks"), [(9, 3, 2), (30, 3, 6), (80, 4, 12)])
def test_pictures_of_ranks_are_of_a_size_to_look_at(tmp_path, count, groups, blocks):
    pictures = plot_ranks(make_run(tmp_path / "run", count, groups, blocks))
    assert [path.name for path in pictures] == ["ranks.png", "rank-memory.png"]
    for path in pictures:
        assert path.parent == tmp_path / "run" / "plots"
        assert all(300 <= side <= 2000 for side in size_of(path)), path


def test_a_run_with_fixed_ranks_has_no_such_pictures(tmp_path):
    folder = write_run(tmp_path / "run", make_planned())
    assert plot_ranks(folder) == [] and not folder.plots.exists()


def test_clients_are_ordered_by_cluster_and_shown_with_their_device(tmp_path):
    granted = granted_of(make_run(tmp_path / "run", labels=[1, 0, 0, 1, 0, 0, 1, 0, 0]))
    spans, cells, bar = ranks_figure(granted).axes
    words = tick_words(spans)
    assert words[0] == "mnli-1 (phone)" and words[-1] == "sst2-3 (gpu-8gb)"
    assert words[:6] == sorted(words[:6]) and words[6:] == sorted(words[6:])
    inks = [label.get_color() for label in spans.get_yticklabels()]
    assert inks == [PALETTE[0]] * 6 + [PALETTE[2]] * 3, "of the commonest task: mnli and sst2"
    assert [word.get_text() for word in cells.get_xticklabels()] == [
        "0 query", "0 value", "1 query", "1 value",
    ]  # fmt: skip
    assert np.array_equal(cells.images[0].get_array(), granted.ranks)
    assert [int(text.get_text()) for text in cells.texts] == granted.ranks.flatten().tolist()
    assert [label.get_text() for label in bar.get_yticklabels()] == ["4", "8", "16", "32", "64"]


def test_spans_go_from_the_least_to_the_most_rank(tmp_path):
    granted = granted_of(make_run(tmp_path / "run"))
    bars, _, _, means = ranks_figure(granted).axes[0].collections
    ends = [sorted(segment[:, 0]) for segment in bars.get_segments()]
    assert ends == [[min(row), max(row)] for row in granted.ranks]
    assert means.get_offsets()[:, 0].tolist() == pytest.approx(granted.ranks.mean(1).tolist())


def test_names_and_numbers_are_thinned_where_there_is_little_room(tmp_path):
    spans, cells, _ = ranks_figure(granted_of(make_run(tmp_path / "run", 80, 4, 24))).axes
    assert not cells.texts
    assert len(tick_words(spans)) == 40
    assert len(cells.get_xticklabels()) == 24
    assert named_ranks(np.arange(1, 31)) == [2, 6, 10, 14, 18, 22, 26, 30]


def test_points_tell_budget_mean_rank_cluster_and_device(tmp_path):
    granted = granted_of(make_run(tmp_path / "run"))
    figure = memory_figure(granted)
    (axes,) = figure.axes
    assert "MB" in axes.get_xlabel() and axes.get_xscale() == "log"
    found = np.array([dots.get_offsets()[0] for dots in axes.collections])
    assert found == pytest.approx(granted.points)
    assert set(found[:, 0]) == {146, 1938, 7058}, "above 110 MB of weights and activations"
    fills = [to_hex(dots.get_facecolor()[0]) for dots in axes.collections]
    assert fills == granted.inks and len(set(fills)) == 3
    assert sorted(text.get_text() for text in axes.texts) == ["gpu-8gb", "laptop", "phone"]
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words[0] == "cluster" and words[4:] == ["device", "phone", "laptop", "gpu-8gb"]


def test_points_of_one_place_stand_side_by_side():
    budgets, heights = np.array([1.0, 1.0, 1.0, 2.0]), np.array([5.0, 5.0, 8.0, 5.0])
    assert side_by_side(budgets, heights) == [0.0, BESIDE, -BESIDE, 0.0]
    assert side_by_side(np.ones(2), np.array([5.0, 5.0 + BESIDE])) == [0.0, 0.0]
    many = side_by_side(np.ones(20), np.zeros(20))
    assert max(map(abs, many)) <= BESIDE * MOST_BESIDE / 2, "further away is another budget"


def test_budgets_from_the_settings_have_no_device_and_need_no_plan(tmp_path):
    grants = [make_grant(client, 2, device="", budget=300 * MB) for client in "ab"]
    granted = granted_of(write_granted(tmp_path / "run", None, make_modules(1), grants))
    assert tick_words(ranks_figure(granted).axes[0]) == ["a", "b"]
    figure = memory_figure(granted)
    assert not figure.axes[0].texts and not figure.legends
    assert granted.labels == (0, 0)


def test_a_client_outside_the_plan_comes_last_in_grey(tmp_path):
    planned, modules = make_planned(6), make_modules(1)
    grants = [make_grant(client, 2) for client in ["aa", *planned["clients"]]]
    granted = granted_of(write_granted(tmp_path / "run", planned, modules, grants))
    assert granted.clients[-1] == "aa" and granted.labels[-1] is None
    assert granted.inks[-1] == OUTSIDE
    words = [text.get_text() for text in memory_figure(granted).legends[0].get_texts()]
    assert "in none" in words


def test_cohorts_have_pictures_of_their_own(tmp_path):
    folder = write_run(tmp_path / "run", rounds=0)
    with EventLog(folder.events) as log:
        cohorts = {
            "minilm": {"clients": ["a"], "modules": make_modules(1)},
            "tiny": {"clients": ["b"], "modules": make_modules(2)},
            "other": {"clients": ["c"], "modules": make_modules(2)},
        }
        log.log("started", {"rounds": 1, "after": 0, "tasks": {}, "cohorts": cohorts})
        log.log("granted", make_grant("a", 2))
        log.log("granted", make_grant("b", 4))
    assert {path.stem for path in plot_ranks(folder)} == {
        "ranks-minilm", "rank-memory-minilm", "ranks-tiny", "rank-memory-tiny",
    }  # fmt: skip


def test_modules_are_named_as_briefly_as_tells_them_apart():
    assert short_names(make_modules(1, kinds=5)) == (
        "0 query", "0 value", "0 attention.output", "0 intermediate", "0 output",
    )  # fmt: skip
    assert short_names(["layers.11.self_attn.q_proj", "layers.11.mlp.up_proj"]) == (
        "11 q_proj", "11 up_proj",
    )  # fmt: skip
    assert short_names(["dense"]) == ("dense",)


def printed(budgets):
    facts = {"task": "sst2", "backbone": "minilm", "train": 16, "validation": 8, "test": 12}
    ranks = {client: entry["ranks"] for client, entry in budgets.items()} or {"a": [8]}
    plan = {"strategy": "atlas", "clients": dict.fromkeys(ranks, facts), "ranks": ranks}
    console = Console(file=io.StringIO(), width=80)
    console.print(plan_view({**plan, "budgets": budgets}))
    return console.file.getvalue()


def test_a_plan_shows_memory_ranks_and_complexity_in_80_columns():
    budgets = {
        "paraphrase-1": make_grant("", 4, 0, ranks=[4, 8, 8, 4], complexity=0.134),
        "paraphrase-2": make_grant("", 12, 1, device="workstation", measured=None, valid=False),
    }
    text = printed(budgets)
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert rows["client"] == [
        "device", "budget", "used", "measured", "valid", "ranks", "complexity",
    ]  # fmt: skip
    first = ["phone", "256.0", "230.4", "243.2", "yes", "4", "8", "8", "4", "0.13"]
    assert rows["paraphrase-1"] == first
    assert rows["paraphrase-2"] == ["workstation", "2048", "1843", "-", "no", "4/15.0/32", "0.50"]
    assert "trial step" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_long_names_wrap_and_numbers_stay_whole():
    long = make_grant("", 12, 2, device="a-device-with-quite-a-name", budget=77824 * MB)
    text = printed({"client-" + "x" * 57: long})
    for word in ("77824", "6451", "6810", "yes", "4/24.7/64", "0.50"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 80


def test_lowered_ranks_and_clients_that_fit_under_none_are_told():
    over = {f"c{i}": make_grant("", 2, measured=300 * MB, valid=False) for i in range(5)}
    text = " ".join(printed(over).split())
    assert "training takes more than the budget: c0, c1, c2 and 2 more; give more" in text
    assert "were lowered" not in text
    text = " ".join(printed({"c0": make_grant("", 2, lowered=2)}).split())
    assert "took more than the budget, so less was granted: c0" in text
    assert "smallest ranks take" not in text


def test_a_plan_with_fixed_ranks_has_no_such_table():
    assert "memory" not in printed({})


def test_ranks_in_few_words():
    assert granted_text([8, 8, 8, 8, 8]) == "8"
    assert granted_text([4, 16, 4, 16]) == "4 16 4 16"
    assert granted_text([4, 16, 4, 16, 32]) == "4/14.4/32"
    assert ranks_text([32, 4, 8]) == "4-32"


def test_grants_are_told_in_one_line_before_the_first_round():
    grants = [make_grant("a", 4, 0), make_grant("b", 4, 1, used=int(0.62 * 2048 * MB))]
    grants = [{**grant, "measured": None} for grant in grants]
    events = [("granted", grant) for grant in grants]
    begun = ("round_started", {"round": 1, "clients": ["a", "b"]})
    assert lines(*events) == []
    assert lines(*events, begun, begun) == ["ranks  2 clients, 4 to 32, 62 to 90 % of budget"]
    one = make_grant("a", 2, ranks=[8, 8])
    assert lines(("granted", one), begun) == ["ranks  1 client, 8, 95 % of budget"]
    assert lines(begun) == []
