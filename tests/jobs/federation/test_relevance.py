"""Whole runs of strategies on relevance: summaries, resumes to the same bits, pictures."""

import jsonschema
import numpy as np
import pytest

from atlas.jobs.runner import resume_run, start_run
from atlas.report.figures.heatmaps import rounds_figure
from atlas.report.figures.run import mixtures
from atlas.report.read.cohorts import read_signed
from atlas.runs.checkpoint import latest_round
from atlas.runs.events import read_events
from atlas.runs.folder import schema
from tests.jobs.federation.test_runs import FORK, interrupt_after_first_round, small


@pytest.mark.parametrize("strategy", ["simgrad", "repsim"])
def test_a_stopped_run_goes_on_to_the_same_bits(strategy, tmp_path):
    """What the server remembers of signatures decides W, so it must be there again."""
    config = small(strategy=strategy, rounds=3, relevance={"sketch": 64, "batches": 1, "ema": 0.8})
    whole = start_run(config, tmp_path / "whole")
    jsonschema.validate(whole.summary, schema())
    process = FORK.Process(target=interrupt_after_first_round, args=(config, tmp_path))
    process.start()
    process.join(timeout=60)
    assert process.exitcode == 0
    again = resume_run(tmp_path / "small")
    assert again.summary["adapters_sha256"] == whole.summary["adapters_sha256"]
    saved = [latest_round(run.folder.rounds).tensors for run in (whole, again)]
    names = [name for name in saved[0] if "|signature|" in name]
    assert len(names) == len(whole.summary["score"]["clients"])
    assert all(saved[0][name].equal(saved[1][name]) for name in names)


@pytest.mark.pictures
def test_w_of_every_round_is_logged_and_drawn(tmp_path):
    finished = start_run(small(strategy="simgrad", rounds=6), tmp_path)
    assert (finished.folder.plots / "relevance.png").stat().st_size > 1000
    events = read_events(finished.folder.events)
    signed = [event for event in events if event["event"] == "signed"]
    assert len(signed) == 6 * len(finished.summary["score"]["clients"])
    assert all(event["clip"] == 1.0 and event["noise"] == 1e-4 for event in signed)
    (planned,) = read_signed(events)
    assert planned.tasks == tuple(sorted(planned.tasks))
    found = mixtures(planned.cohort, events)
    assert [event["round"] for event in found] == [1, 2, 3, 4, 5, 6]
    figure = rounds_figure(planned, found)
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == [f"W of round {number}" for number in (1, 3, 4, 6)]
    drawn = figure.axes[0].images[0].get_array().data
    assert np.allclose(drawn, planned.arrange(found[0]["weights"], found[0]["clients"]))
    plain = start_run(small(strategy="fedavg", name="plain"), tmp_path)
    assert not (plain.folder.plots / "relevance.png").exists()
