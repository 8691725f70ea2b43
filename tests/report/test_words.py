"""The end of a run in words."""

import pytest

from atlas.config.federation import FederationConfig
from atlas.config.load import load_config
from atlas.report.words.budgets import budget_words, granted_line
from atlas.report.words.declined import read_answers
from atlas.report.words.english import counted, listed, points, standard_error
from atlas.report.words.federation import federation_words, step_words
from atlas.report.words.legends import compare_legend
from atlas.report.words.memory import memory_words

ATLAS = FederationConfig(strategy="atlas")


def make_summary(gains, strategy="atlas", **more):
    """A run whose clients score 0.6 alone."""
    scores = {client: 0.6 + gain for client, gain in gains.items()}
    mean = sum(gains.values()) / len(gains)
    return {
        "strategy": strategy,
        "score": {"clients": scores},
        "accuracy": {"clients": scores},
        "alone": {"clients": dict.fromkeys(gains, 0.6)},
        "gain": {"mean": mean, "worst": min(gains.values())},
        "test_examples": dict.fromkeys(gains, 100),
        "refused": [],
        "failures": [],
        **more,
    }


def make_events(accepts, *, neighbours=None, asked=None):
    """A run with one row of `accepts` a round, {client: accept}."""
    clients = list(accepts[0])
    events = [{"event": "started", "cohorts": {"tiny": {"clients": clients}}}]
    if neighbours is not None:
        events.append({"event": "planned", "clients": clients, "neighbours": neighbours})
    for number, row in enumerate(accepts, start=1):
        present = asked[number - 1] if asked else clients
        events.append({"event": "round_started", "round": number, "clients": present})
        events += [
            {"event": "delivered", "round": number, "client": client, "accept": accept}
            for client, accept in row.items()
        ]
    return events


@pytest.mark.parametrize(
    ("gains", "told"),
    [
        ({"a": 0.032}, "a gained 3.2 points over training alone."),
        ({"a": 0.01}, "a gained 1.0 point over training alone."),
        ({"a": -0.05}, "a lost 5.0 points against training alone."),
        ({"a": 0.0}, "a scores as it does alone."),
        (
            {"a": 0.1, "b": 0.02},
            "All 2 clients gained over training alone, a most (+10.0 points). The mean gain is +6",
        ),
        (
            {"a": 0.1, "b": -0.02, "c": 0.0},
            "1 of 3 clients gained over training alone, a (+10.0 points). 1 lost, b (-2.0); 1 "
            "scores the same. The mean gain is +2.7 points.",
        ),
        (
            {"a": -0.1, "b": -0.02},
            "None of the 2 clients gained over training alone. 2 lost, a most (-10.0).",
        ),
        (
            {"a": 0.0, "b": 0.0},
            "None of the 2 clients gained over training alone. 2 score the same",
        ),
    ],
)
def test_who_gained_is_told(gains, told):
    assert federation_words(make_summary(gains), [], ATLAS).startswith(told)


def test_a_run_without_training_alone_says_that_gains_are_not_known():
    summary = make_summary({"a": 0.1, "b": 0.1})
    del summary["alone"], summary["gain"]
    assert "cannot tell what anybody gained" in federation_words(summary, [], ATLAS)
    local = make_summary({"a": 0.0}, strategy="local")
    config = FederationConfig(strategy="local")
    assert "nothing to gain here" in federation_words(local, [], config)
    assert "nobody alike" not in federation_words(local, make_events([{"a": 0.0}]), config)


def test_clients_that_declined_every_mixture_are_named_with_the_reason():
    summary = make_summary({"a": 0.0, "b": 0.0})
    events = make_events([{"a": 0.0, "b": 0.0}] * 2, neighbours=[[0, 1], [1, 0]])
    words = federation_words(summary, events, ATLAS)
    assert (
        "All 2 clients declined every mixture offered: on their validation data their own adapter "
        "was better by more than a standard error (keep_margin=1). That is why nobody gained"
    ) in words
    some = make_events([{"a": 0.0, "b": 1.0}] * 2, neighbours=[[0, 1], [1, 0]])
    words = federation_words(summary, some, ATLAS.model_copy(update={"keep_margin": 2.0}))
    assert "a declined every mixture offered: on its validation data its own adapter" in words
    assert "more than 2 standard errors (keep_margin). That leaves its gain 0;" in words


def test_declined_is_told_from_having_been_offered_nothing():
    accepts = [{"a": 0.0, "b": 0.5, "c": 0.0}, {"a": 0.0, "b": 0.0, "c": 0.0}]
    lonely = [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    found = read_answers(make_events(accepts, neighbours=lonely), ATLAS)
    assert (found.declined, found.lonely, found.sometimes) == (["a"], ["c"], {"b": (1, 2)})
    assert "c had nobody alike to learn from." in federation_words(
        make_summary({"a": 0.0, "b": 0.1, "c": 0.0}), make_events(accepts, neighbours=lonely), ATLAS
    )
    # b was asked in the second round alone, so only then was there a mixture for a.
    asked = [["a", "c"], ["a", "b", "c"]]
    accepts = [{"a": 0.0}, {"a": 1.0}]
    events = make_events([{"a": 0.0, "b": 0.0, "c": 0.0}], neighbours=lonely)[:2]
    events += make_events(accepts, asked=asked)[1:]
    assert read_answers(events, ATLAS).declined == []
    # Who may not choose declines nothing, however little was delivered.
    plain = FederationConfig(strategy="fedavg")
    assert read_answers(make_events([{"a": 0.0, "b": 0.0}]), plain).declined == []
    warm = ATLAS.model_copy(update={"relation": ATLAS.relation.model_copy(update={"warmup": 1})})
    events = make_events([{"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 1.0}], neighbours=[[0, 1], [1, 0]])
    assert read_answers(events, warm).sometimes == {}


def test_who_ends_with_what_it_learned_alone_is_named():
    events = make_events([{"a": 1.0, "b": 1.0}], neighbours=[[0, 1], [1, 0]])
    for client, loss in (("a", 0.25), ("b", 0.5)):
        alone = {"score": 0.6, "loss": 0.25}
        events.append(
            {"event": "tested", "client": client, "scores": {"score": 0.6, "loss": loss}}
            | {"alone": alone}
        )
    words = federation_words(make_summary({"a": 0.0, "b": 0.0}), events, ATLAS)
    assert "a ended with what it learned alone, which its validation data clearly" in words


def test_what_a_test_set_can_tell_is_its_standard_error():
    words = federation_words(make_summary({"a": 0.1, "b": -0.1}), [], ATLAS)
    error = 100 * standard_error(0.7, 100)
    assert f"{error:.1f} to 5.0 points (one standard error)" in words and round(error, 1) == 4.6
    assert standard_error(1.0, 10) > 0
    many = make_summary({"a": 0.1, "b": 0.1}, test_examples={"a": 50, "b": 2000})
    assert "With 50 to 2,000 test examples a client" in federation_words(many, [], ATLAS)
    old = make_summary({"a": 0.1})
    del old["test_examples"]
    assert "standard error" not in federation_words(old, [], ATLAS)


def test_estimated_steps_are_told():
    one = {"noise": 1.0, "difference": 3.0, "rho": 0.5, "keep": 0.75, "eta": 0.1}
    two = {**one, "difference": 0.0, "keep": 0.0, "eta": 0.66}
    told = " ".join(step_words({"steps": {"a1": one, "a2": two, "b1": None}}))
    assert "0% (a2) to 75% (a1)" in told
    assert "Nothing could be estimated of b1" in told
    assert not list(step_words({}))


def test_budgets_are_told_by_what_was_measured():
    fits = {"ranks": [4], "budget": 100, "used": 97, "measured": None, "valid": True, "lowered": 0}
    over = {**fits, "measured": 120, "valid": False}
    assert not list(budget_words({"a": fits})) and not list(budget_words({}))
    told = list(budget_words({"a": fits, "b": over, "c": {**over, "measured": 130, "lowered": 1}}))
    assert told[0].endswith("so less was granted: c.")
    assert "memory of b and c: a step takes up to 130 % of the budget; give more" in told[1]
    old = {key: value for key, value in fits.items() if key != "lowered"}
    assert not list(budget_words({"a": old}))
    line = granted_line([{"client": "a", **fits}, {"client": "b", **over}])
    assert line == "ranks  2 clients, 4, 97 to 120 % of budget; does not fit: b"


def test_replies_that_did_not_count_are_told():
    refused = [{"client": "a", "round": 1, "reason": "not finite"}]
    words = federation_words(make_summary({"a": 0.1, "b": 0.1}, refused=refused), [], ATLAS)
    assert "1 reply was refused (a)" in words
    words = federation_words(make_summary({"a": 0.1}, failures=refused * 2), [], ATLAS)
    assert "2 requests failed (a)" in words


def test_a_memory_run_says_who_is_ahead_and_by_how_much():
    summary = {"accuracy": {"memory": 0.98, "window": 0.12}, "chance": 0.03125}
    config = load_config("recall", [])
    assert memory_words(summary, config) == (
        "memory gets 98.0 % of the answers right, window 12.0 %; a guess 3.1 %. memory is 86.0 "
        "points ahead of window. The test has 512 sequences of 8 questions: a figure is known to "
        "about ± 0.2 points at best (one standard error)."
    )
    level = {"accuracy": {"memory": 0.5, "window": 0.5}, "chance": 0.5}
    assert "memory and window are level." in memory_words(level, config)
    alone = {"accuracy": {"memory": 0.5}, "chance": 0.5}
    assert memory_words(alone, config).startswith(
        "memory gets 50.0 % of the answers right; a guess"
    )


def test_numbers_and_names():
    assert [counted(n, "round") for n in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
    assert listed(["a"]) == "a" and listed(["a", "b"]) == "a and b"
    assert listed(list("abcdefgh")) == "a, b, c, d, e and 3 more"
    assert points(-0.01) == "1.0 point"


def test_legends_are_of_what_is_shown():
    lines = list(compare_legend({"d", "mix\nerror"}, ["80.0 (186 ± 10 %)"]))
    assert len(lines) == 2
    assert "Cohen's d" in lines[0] and "mix error: " in lines[0] and "p (W)" not in lines[0]
    assert "from alone (0 %) to the ceiling (100 %)" in lines[1] and "standard error" in lines[1]
    assert list(compare_legend(set(), ["80.0"])) == []
