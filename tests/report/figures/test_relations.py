"""Pictures of who learns from whom, from fabricated run folders."""

import io
import struct

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text
from rich.console import Console

from atlas.ops.clustering.clusters import contingency, kmeans_labels, score_partition
from atlas.report.figures import run as plots
from atlas.report.figures.drawing import PALETTE, file_suffixes
from atlas.report.figures.heatmaps import affinity_figure, mixing_figure
from atlas.report.figures.points import fingerprint_figure
from atlas.report.figures.run import (
    accuracy_figure,
    last_mixture,
    plot_relations,
    relation_figures,
    tried_figure,
)
from atlas.report.read.cohorts import PlannedCohort, read_planned
from atlas.report.tables.plan import plan_view
from atlas.runs.events import EventLog, read_events
from atlas.runs.folder import RunFolder

TASKS = ("sst2", "mnli", "qnli", "rte", "cola", "mrpc")
ALL = ["affinity", "cluster-accuracy", "clusters", "fingerprints", "mixing"]


def make_planned(count=9, groups=3, cohort="minilm", *, spread=0.02, labels=None):
    """A cohort whose fingerprints lie in `groups` lumps, one per task."""
    draw = np.random.default_rng(0)
    group = [i % groups for i in range(count)]
    centres = draw.standard_normal((groups, 6))
    rows = centres[group] / np.linalg.norm(centres[group], axis=1, keepdims=True)
    rows = rows + spread * draw.standard_normal((count, 6))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    centred = rows - rows.mean(0)
    points = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    tasks = [TASKS[g] for g in group]
    tried = [score_partition(rows, kmeans_labels(rows, k, 0)) for k in range(2, min(9, count))]
    tried = tried if groups > 1 else []
    one = score_partition(rows, [0] * count)
    best = max(tried, key=lambda found: found.score, default=one)
    labels = list(best.labels) if labels is None else labels
    planned = {
        "round": 0,
        "cohort": cohort,
        "clients": [f"{task}-{i // groups + 1}" for i, task in enumerate(tasks)],
        "tasks": tasks,
        "parts": {
            "text": {"reliability": 0.93, "weight": 0.9},
            "label": {"reliability": 0.3, "weight": 0.3},
        },
        "explained": 0.98,
        "points": points.tolist(),
        "warnings": ["the label part is hardly reliable"],
        "clusters": {
            "method": "kmeans",
            "k": len(set(labels)),
            "labels": labels,
            "silhouette": best.silhouette or None,
            "purity": {"mean": 1.0, "weighted": 1.0},
            "ari": 1.0,
            "table": {str(c): row for c, row in contingency(labels, tasks).items()},
            "tried": [tried_row(metrics, groups) for metrics in tried],
        },
    }
    if count <= 64:
        affinity = np.exp(-np.square(rows[:, None] - rows[None]).sum(-1))
        edges = affinity * np.equal.outer(labels, labels) * (1 - np.eye(count))
        total = edges.sum(1, keepdims=True)
        shares = np.where(total > 0, edges / np.where(total > 0, total, 1), np.eye(count))
        planned |= {"affinity": affinity.tolist(), "neighbours": shares.tolist()}
    return planned


def tried_row(metrics, groups):
    return {
        "k": metrics.k,
        "silhouette": metrics.silhouette,
        "davies_bouldin": metrics.davies_bouldin,
        "calinski_harabasz": metrics.calinski_harabasz,
        "score": metrics.score,
        "stability": max(0.1, 1.0 - 0.2 * abs(metrics.k - groups)),
        "real": metrics.k <= groups,
        "share": 0.9 - 0.05 * metrics.k,
        "needed": 0.72,
    }


def write_run(path, *plans, rounds=4):
    """A run folder that holds a config and events only."""
    path.mkdir()
    folder = RunFolder(path)
    folder.config.write_text("name: made-up\n")
    draw = np.random.default_rng(1)
    tasks = {c: t for p in plans for c, t in zip(p["clients"], p["tasks"] or (), strict=False)}
    with EventLog(folder.events) as log:
        log.log("started", {"rounds": rounds, "after": 0, "strategy": "atlas", "tasks": tasks})
        for planned in plans:
            log.log("planned", planned)
        for number in range(1, rounds + 1):
            for planned in plans:
                log_round(log, planned, number, draw)
    return folder


def log_round(log, planned, number, draw):
    mixed = {"round": number, "cohort": planned["cohort"]}
    if "neighbours" in planned:
        size = len(planned["clients"])
        weights = 0.5 * np.eye(size) + 0.5 * np.array(planned["neighbours"])
        mixed |= {"clients": planned["clients"], "weights": weights.tolist()}
    log.log("mixed", mixed)
    for i, client in enumerate(planned["clients"]):
        score = 0.5 + 0.08 * number + 0.04 * (i % 3) + 0.02 * draw.standard_normal()
        members = {client: {"score": score, "accuracy": score}}
        log.log("validated", {"round": number, "client": client, "members": members})


def read(event):
    return PlannedCohort.read({"event": "planned", **event})


def size_of(path):
    """Width and height of a PNG."""
    return struct.unpack(">II", path.read_bytes()[16:24])


def drawn(folder):
    return {path.stem: path for path in plot_relations(folder)}


def names_of(folder):
    """What would be drawn, without the seconds that writing takes."""
    events = read_events(folder.events)
    return sorted(name for p in read_planned(events) for name, _ in relation_figures(p, events))


def tick_words(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


@pytest.mark.parametrize(("count", "groups"), [(9, 3), (40, 4), (2, 1), (1, 1)])
def test_every_picture_is_there_and_of_a_size_to_look_at(tmp_path, count, groups):
    pictures = drawn(write_run(tmp_path / "run", make_planned(count, groups)))
    assert sorted(pictures) == [name for name in ALL if name != "clusters" or groups > 1]
    for path in pictures.values():
        assert path.parent == tmp_path / "run" / "plots"
        assert all(400 <= side <= 2000 for side in size_of(path)), path


def test_pictures_follow_the_clusters_and_nothing_else(tmp_path):
    found = drawn(write_run(tmp_path / "found", make_planned(6)))
    again = drawn(write_run(tmp_path / "again", make_planned(6)))
    other = drawn(write_run(tmp_path / "other", make_planned(6, labels=[0, 0, 1, 1, 0, 1])))
    for name in ALL:
        assert found[name].read_bytes() == again[name].read_bytes(), name
        assert found[name].read_bytes() != other[name].read_bytes(), name


def test_without_a_plan_nothing_is_written(tmp_path):
    folder = write_run(tmp_path / "run")
    assert plot_relations(folder) == []
    assert not folder.plots.exists()


def test_too_many_clients_for_matrices(tmp_path):
    assert sorted(drawn(write_run(tmp_path / "run", make_planned(80, 4)))) == [
        "cluster-accuracy",
        "clusters",
        "fingerprints",
    ]


def test_fingerprints_without_clusters(tmp_path):
    planned = {**make_planned(), "clusters": None}
    names = names_of(write_run(tmp_path / "run", planned))
    assert names == ["affinity", "fingerprints", "mixing"]
    assert tick_words(affinity_figure(read(planned)).axes[0]) == sorted(planned["clients"])


@pytest.mark.parametrize("tasks", [None, [], [None] * 9, [""] * 9])
def test_tasks_may_be_unknown(tmp_path, tasks):
    planned = {**make_planned(), "tasks": tasks}
    planned["clusters"]["table"] = planned["clusters"]["purity"] = None
    assert names_of(write_run(tmp_path / "run", planned)) == ALL
    assert read(planned).names() == {c: f"{c}: unknown x3" for c in range(3)}
    assert "ARI" in printed({"planned": [planned]})


def test_several_cohorts_have_files_of_their_own(tmp_path):
    both = [{**make_planned(2, 1, name), "clusters": None} for name in ("minilm", "hub/other")]
    assert sorted(drawn(write_run(tmp_path / "run", *both))) == sorted(
        f"{name}-{cohort}"
        for name in ("affinity", "fingerprints", "mixing")
        for cohort in ("minilm", "hub-other")
    )
    assert file_suffixes(["a/b", "a b", "../a-b"]) == {
        "a/b": "-a-b", "a b": "-a-b-other", "../a-b": "-a-b-other-other",
    }  # fmt: skip


def test_a_run_that_did_not_validate_has_no_scores_to_draw(tmp_path):
    folder = write_run(tmp_path / "run", make_planned(), rounds=0)
    assert names_of(folder) == ["affinity", "clusters", "fingerprints"]


def test_legends_stay_short(tmp_path):
    folder = write_run(tmp_path / "run", make_planned(20, 2, labels=list(range(20))))
    events = read_events(folder.events)
    (planned,) = read_planned(events)
    accuracy = accuracy_figure(planned, events)
    assert len(accuracy.axes[0].lines) == 20
    assert len(accuracy.legends[0].get_texts()) == 12
    words = [text.get_text() for text in fingerprint_figure(planned).legends[0].get_texts()]
    assert words[12:] == ["11: mnli x1", "8 more", "task", "mnli", "sst2"]


def test_a_plan_made_anew_replaces_the_first(tmp_path):
    first, second = make_planned(), make_planned(labels=[0] * 9)
    folder = write_run(tmp_path / "run", first, second)
    (planned,) = read_planned(read_events(folder.events))
    assert planned.names() == {0: "0: mnli x3, qnli x3, sst2 x3"}


def test_undefined_numbers_are_left_out(tmp_path):
    planned = make_planned()
    planned["explained"] = planned["parts"]["label"]["reliability"] = None
    planned["affinity"][0][1] = None
    planned["clusters"]["tried"][0] |= {"stability": None, "silhouette": None, "real": None}
    assert sorted(drawn(write_run(tmp_path / "run", planned))) == ALL
    title = fingerprint_figure(read(planned)).axes[0].get_title()
    assert title == "Fingerprints\nreliability: text 0.93"


def test_heatmaps_are_ordered_by_cluster_and_then_by_id():
    event = make_planned(labels=[1, 0, 0, 1, 0, 0, 1, 0, 0])
    planned = read(event)
    expected = [
        *sorted(c for c in event["clients"] if not c.startswith("sst2")),
        *sorted(c for c in event["clients"] if c.startswith("sst2")),
    ]
    left, right, *bars = affinity_figure(planned).axes
    assert len(bars) == 2
    for axes, key in ((left, "affinity"), (right, "neighbours")):
        assert tick_words(axes) == expected
        values, where = axes.images[0].get_array(), [event["clients"].index(c) for c in expected]
        assert np.array_equal(values, np.array(event[key])[np.ix_(where, where)])
        assert sorted({float(line.get_xdata()[0]) for line in axes.lines}) == [0.0, 5.5]
        assert axes.get_ylabel() == "client"
    assert left.get_title() == "Raw affinity"
    assert "normalised" in right.get_title()
    assert right.get_xlabel() == "learns from"
    assert left.get_yticklabels()[0].get_color() == PALETTE[0]
    assert left.get_yticklabels()[-1].get_color() == PALETTE[2], "as sst2 in all pictures"


def test_pairs_and_not_the_diagonal_set_the_scale():
    event = make_planned()
    weights = 0.9 * np.eye(9) + 0.1 * np.array(event["neighbours"])
    mixed = {"round": 7, "clients": event["clients"], "weights": weights.tolist()}
    axes, bar = mixing_figure(read(event), mixed).axes
    assert axes.get_title() == "Effective W of round 7"
    assert axes.images[0].get_clim()[1] == pytest.approx(
        (weights - np.diag(weights.diagonal())).max()
    )
    assert bar._colorbar.extend == "max"

    alone = {"round": 7, "clients": event["clients"], "weights": np.eye(9).tolist()}
    axes, bar = mixing_figure(read(event), alone).axes
    assert axes.images[0].get_clim() == (0.0, 1.0)
    assert bar._colorbar.extend == "neither"


def test_weights_per_module_are_averaged_and_absent_clients_left_blank():
    event = make_planned()
    weights = [np.eye(8).tolist(), np.full((8, 8), 1 / 8).tolist()]
    mixed = {"round": 2, "clients": event["clients"][1:], "weights": weights}
    axes = mixing_figure(read(event), mixed).axes[0]
    assert "mean over modules" in axes.get_title()
    values, where = axes.images[0].get_array(), tick_words(axes).index(event["clients"][0])
    assert np.ma.getmaskarray(np.ma.masked_invalid(values))[where].all()
    assert values[where - 1, where - 1] == pytest.approx((1 + 1 / 8) / 2)


def test_the_last_mixture_with_weights_counts(tmp_path):
    folder = write_run(tmp_path / "run", make_planned(), rounds=3)
    events = read_events(folder.events)
    assert last_mixture("minilm", events)["round"] == 3
    assert last_mixture("other", events) is None


def test_ids_of_many_clients_are_thinned():
    axes = affinity_figure(read(make_planned(40, 4))).axes[0]
    assert len(tick_words(axes)) == 20
    assert axes.images[0].get_clim()[0] > 0
    assert not axes.texts
    assert not fingerprint_figure(read(make_planned(40, 4))).axes[0].texts


def test_points_have_the_colour_of_their_cluster_the_marker_of_their_task_and_an_id():
    planned = read(make_planned())
    figure = fingerprint_figure(planned)
    (axes,) = figure.axes
    assert axes.get_title() == (
        "Fingerprints, 98 % of the variance kept\nreliability: text 0.93, label 0.30"
    )
    assert [text.get_text() for text in axes.texts] == list(planned.clients)
    fills = [to_hex(dots.get_facecolor()[0]) for dots in axes.collections]
    assert fills == [planned.colour(label) for label in planned.labels] and len(set(fills)) == 3
    shapes = {
        (task, dots.get_paths()[0].vertices.tobytes())
        for task, dots in zip(planned.tasks, axes.collections, strict=True)
    }
    assert len(shapes) == len({shape for _, shape in shapes}) == 3
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words == ["cluster", *planned.names().values(), "task", "mnli", "qnli", "sst2"]


@pytest.mark.parametrize("spread", [0.3, 0.02, 1e-4])
def test_ids_keep_out_of_each_others_way(spread):
    figure = fingerprint_figure(read(make_planned(18, 3, spread=spread)))
    figure.draw_without_rendering()
    frame = figure.axes[0].get_window_extent()
    # The words alone, without the line that an annotation may have.
    boxes = [Text.get_window_extent(text) for text in figure.axes[0].texts]
    assert all(frame.containsx(b.x0) and frame.containsx(b.x1) for b in boxes)
    assert not [1 for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]


def test_panels_mark_the_chosen_k_and_leave_unreal_splits_hollow():
    clusters = make_planned()["clusters"]
    figure = tried_figure(clusters)
    assert [axes.get_title().split(",")[0] for axes in figure.axes[:5]] == [
        "Silhouette", "Davies-Bouldin", "Calinski-Harabasz", "Weighted score", "Stability",
    ]  # fmt: skip
    for axes, key in zip(figure.axes, ("silhouette", "davies_bouldin"), strict=False):
        (dots,) = axes.collections
        assert dots.get_offsets().tolist() == [[row["k"], row[key]] for row in clusters["tried"]]
        hollow = [to_hex(fill) == "#ffffff" for fill in dots.get_facecolor()]
        assert hollow == [not row["real"] for row in clusters["tried"]]
        assert list(axes.lines[0].get_xdata()) == [3, 3]
    assert "chosen, k = 3" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_accuracy_is_the_mean_over_each_clusters_clients(tmp_path):
    folder = write_run(tmp_path / "run", make_planned())
    events = read_events(folder.events)
    (planned,) = read_planned(events)
    axes = accuracy_figure(planned, events).axes[0]
    assert [line.get_label() for line in axes.lines] == list(planned.names().values())
    assert axes.lines[0].get_label() == "0: sst2 x3"
    held = [e["members"] for e in events if e["event"] == "validated" and e["round"] == 4]
    scores = [s["score"] for m in held for c, s in m.items() if c.startswith("sst2")]
    assert axes.lines[0].get_xdata()[-1] == 4
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(100 * np.mean(scores))


def test_a_run_draws_them_with_its_other_pictures(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run", make_planned(4, 2))
    score = {"clients": dict.fromkeys(make_planned(4, 2)["clients"], 0.8)}
    summary = {"strategy": "atlas", "rounds": 4, "score": score, "majority": score}
    monkeypatch.setattr(plots, "read_summary", lambda path: summary)
    plots.plot_run(folder)
    assert sorted(path.stem for path in folder.plots.iterdir()) == sorted([*ALL, "clients"])


def printed(changes):
    plan = {"strategy": "atlas", "ranks": {"sst2-1": [8, 8]}, **changes}
    facts = {"task": "sst2", "backbone": "minilm", "train": 16, "validation": 8, "test": 12}
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    console.print(plan_view({"clients": {"sst2-1": facts}, **plan}))
    return console.file.getvalue()


@pytest.mark.parametrize("changes", [{}, {"planned": []}, {"planned": None}])
def test_a_plan_of_clients_alone(changes):
    text = printed(changes)
    assert "sst2-1" in text
    assert "fingerprints" not in text


def test_a_plan_shows_splits_clusters_and_warnings():
    text = printed({"planned": [make_planned()]})
    assert "reliability: text 0.93 (weight 0.90), label 0.30 (weight 0.30)" in text
    assert "98.0 %" in text
    assert "*3" in text
    assert "clusters by kmeans, k = 3" in text
    assert "purity mean 1.00, weighted 1.00; ARI 1.00" in text
    assert "\x1b[33mthe label part is hardly reliable" in text


def test_the_mark_is_on_the_partition_in_use_and_not_on_a_number():
    """Two clusters of which one was split into two: k = 3, but not the k = 3 that was tried."""
    planned = make_planned()
    planned["clusters"] |= {"first": 2, "tree": [[0, 1], 2], "kin": [[0, 1, 0.85]]}
    text = printed({"planned": [planned]})
    assert "*3" not in text and "+2" in text
    assert "in use: the 2 of + split again, [0 1] 2" in text
    assert "0 and 1 have 0.85" in text
    planned["clusters"] |= {"first": 3, "tree": [0, 1, 2], "kin": []}
    text = printed({"planned": [planned]})
    assert "*3" in text and "in use" not in text
    planned["clusters"] |= {"k": 2, "tree": [0, 1]}
    text = printed({"planned": [planned]})
    assert "*3" in text and "*2" not in text and "in use" not in text
    assert "of the 3 in the sample, 1 held a single client" in text
    planned["clusters"] |= {"k": 3, "tree": [[0, 1], 2]}
    text = printed({"planned": [planned]})
    assert "+3" in text and "*3" not in text, "one was split again, another was dropped"
    planned["clusters"] |= {"k": 3, "tree": [0, 1, 2]}
    planned["clusters"]["tried"][1] |= {"real": True, "useful": False}
    figure = tried_figure(planned["clusters"])
    assert to_hex(figure.axes[0].collections[0].get_facecolor()[1]) == "#ffffff"
    planned["clusters"] |= {"first": 2, "tree": [[0, 1], 2]}
    words = [text.get_text() for text in tried_figure(planned["clusters"]).legends[0].get_texts()]
    assert "chosen, k = 2, then split into 3" in words


def test_a_plan_with_fingerprints_or_one_cluster_only():
    text = printed({"planned": [{**make_planned(), "clusters": None}]})
    assert "explained" in text and "splits tried" not in text
    text = printed({"planned": [make_planned(4, 1)]})
    assert "clusters by kmeans, k = 1" in text and "splits tried" not in text
