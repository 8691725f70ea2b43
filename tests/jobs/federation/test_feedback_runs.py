"""Runs with feedback and other cuts: by settings, resumed, refused where they mean nothing."""

import itertools

import pytest

from atlas.build.federation import assemble
from atlas.config.federation import FederationConfig
from atlas.errors import InputError
from atlas.federation.rounds import run_round
from atlas.jobs.runner import resume_run, start_run
from atlas.report.words.federation import unused_words
from tests.federation.test_rounds import hashes, play
from tests.helpers import make_clients, make_config, stop_after

RANKS = {"ranks": {"a1": 1, "b1": [1, 2, 3, 4], "b2": 6}}


def own_config(**changes):
    settings = {
        "name": "own",
        "rounds": 3,
        "threads": 1,
        "backbone": {"name": "tiny", "max_length": 32},
        "adapter": {"modules": ["query", "value"], "blocks": 2, "rank": 2},
        "data": {"tasks": ["sentiment"], "clients_per_task": 3, "train": 12, "validation": 8},
        "train": {"epochs": 1, "batch": 4, "lr": 0.02},
    }
    settings["data"]["test"] = 10
    settings["adapter"]["ranks"] = {"sentiment-1": 5, "sentiment-2": 1}
    return FederationConfig.model_validate(settings | changes)


def test_every_arm_ends_elsewhere():
    arms = [{}, {"feedback": 0.5}, {"feedback": 1.0}, {"cut": "bands"}, {"cut": "own"}]
    found = [play(make_config(adapter=RANKS, mixing=arm, rounds=3))[0] for arm in arms]
    assert not any(federation.state.failures for federation in found)
    for one, two in itertools.combinations([hashes(federation) for federation in found], 2):
        assert one["b2"] != two["b2"]
    assert [bool(federation.state.residuals) for federation in found] == [0, 1, 1, 0, 0]


@pytest.mark.parametrize("strategy", ["atlas", "mira", "oracle", "ditto", "fedprox", "local"])
def test_strategies_that_mix_products_take_feedback(strategy):
    mixing = {"feedback": 1.0, "server_rank": 3}
    told = {"adapter": RANKS, "mixing": mixing, "strategy": strategy, "rounds": 3}
    federation, _, events = play_planned(make_config(**told, relation={"eta": "auto"}))
    assert not federation.state.failures
    accepts = {fields["accept"] for event, fields in events if event == "delivered"}
    if strategy == "atlas":
        assert accepts - {0.0, 1.0}, "nobody took a part, so blends were not looked at"
    assert bool(federation.state.residuals) == (strategy != "local")


def play_planned(config):
    from atlas.federation.prepare import make_plan

    federation = assemble(config, make_clients())
    events = []

    def watch(event, fields):
        events.append((event, dict(fields)))

    make_plan(federation.plan, federation.state, federation.engine, watch)
    for _ in range(config.rounds):
        run_round(federation.plan, federation.state, federation.engine, watch)
    return federation, None, events


def test_modules_that_do_not_travel_keep_their_residuals():
    told = {"adapter": RANKS, "mixing": {"feedback": 1.0}, "route": {"budget": 0.5}}
    federation, _, events = play(make_config(**told, rounds=4, sample=0.7, absent="last"))
    assert not federation.state.failures
    assert sum(event == "routed" for event, _ in events) == 4
    assert any(bool(v.any()) for v in federation.state.residuals["tiny"].tensors.values())


@pytest.mark.parametrize("state", ["memory", "disk"])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, state):
    config = own_config(mixing={"feedback": 0.8}, server={"state": state}, strategy="fedavg")
    whole = start_run(config, tmp_path / "whole")
    stopped = start_run(config, tmp_path / "parts", stop_after(2))
    assert stopped.summary is None
    again = resume_run(stopped.folder.path)
    assert again.summary["adapters_sha256"] == whole.summary["adapters_sha256"]
    assert (whole.folder.plots / "energy.png").is_file()
    other = start_run(config.model_copy(update={"mixing": type(config.mixing)()}), tmp_path / "off")
    assert other.summary["adapters_sha256"] != whole.summary["adapters_sha256"]
    if state == "disk":
        config = config.model_copy(update={"server": type(config.server)(state="memory")})
        memory = start_run(config, tmp_path / "memory")
        assert memory.summary["adapters_sha256"] == whole.summary["adapters_sha256"]


@pytest.mark.parametrize(
    ("strategy", "mixing", "why"),
    [
        (
            "hetlora",
            {"feedback": 0.5},
            "mixing.feedback: 0.5, but hetlora mixes in space",
        ),
        ("flora", {"feedback": 1.0}, "mixing.feedback: 1, but flora"),
        ("simgrad", {"feedback": 1.0}, "does not take the place"),
        ("flexlora", {"cut": "own"}, "mixing.cut: own, but flexlora mixes in space 'svd'"),
        ("mosaic", {"cut": "bands"}, "mixing.cut: bands, but mosaic"),
    ],
)
def test_refused_where_it_means_nothing(strategy, mixing, why):
    with pytest.raises(InputError, match=why.replace("(", "\\(")):
        assemble(make_config(strategy=strategy, mixing=mixing), make_clients())


def test_bands_and_feedback_do_not_go_together():
    with pytest.raises(ValueError, match="feedback: 1 given with cut: bands"):
        make_config(mixing={"feedback": 1.0, "cut": "bands"})


def test_words_for_ranks_that_hold_nothing():
    def words(count, smallest=8, **mixing):
        entry = {"rank": 64, "used": 8, "beyond": 0.002}
        unused = {f"a{n}": entry for n in range(1, count + 1)}
        summary = {"unused": unused, "score": {"clients": dict.fromkeys([*unused, "b"], 0.5)}}
        summary["ranks"] = {**{client: [64, 64] for client in unused}, "b": [smallest, 64]}
        (told,) = unused_words(summary, make_config(mixing=mixing))
        return told

    advice = "; try mixing.feedback=1 or smaller ranks."
    assert words(1) == f"a1 uses less than half of its ranks{advice}"
    assert words(1, 64) == "a1 uses less than half of its ranks; smaller ranks would do."
    assert words(3) == f"a1, a2 and a3 use less than half of their ranks{advice}"
    assert words(8, feedback=1.0) == (
        "8 of 9 clients, such as a1, a2 and a3, use less than half of their ranks; "
        "smaller ranks would do."
    )
    assert not list(unused_words({}, make_config()))
