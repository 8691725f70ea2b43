"""One client answers one task with what is no answer: the run goes on to its end without it."""

import io
import json

import pytest
from rich.console import Console

from atlas.build.federation import assemble
from atlas.federation.exchange.message import encode
from atlas.federation.exchange.transport import Failure
from atlas.jobs.federation.run import FederationJob
from atlas.jobs.runner import new_folder, save
from atlas.report.live import PlainDisplay
from atlas.runs.events import EventLog, read_events
from tests.federation.exchange.hostile import (
    ESCAPE,
    NUMBERS,
    first_member,
    with_facts,
    with_header,
    with_literal,
    with_text,
)
from tests.federation.test_rounds import Spy
from tests.helpers import make_clients, make_config

BAD = ("a1", "a2", "b1", "b2")
"""Clients that answer badly, each in its own way; c1 is honest."""
PLANNED = {
    "strategy": "atlas", "keep_best": False, "adapter": {"ranks": {}, "blocks": 3},
    "ranks": {"method": "importance", "choices": [1, 2, 3], "budget": 1000},
    "fingerprint": {"sketch": 16, "folds": 2},
}  # fmt: skip
ROUTED = {"strategy": "mosaic", "route": {"budget": 0.5}, "relevance": {"sketch": 64}}
SETTINGS = {
    "fingerprint": PLANNED,
    "capacity": PLANNED,
    "assign": PLANNED,
    "signature": {"strategy": "simgrad", "relevance": {"sketch": 64}},
    "salience": ROUTED,
}
"""Of the runs in which a task is asked; others are asked in every run."""


def finish_run(tmp_path, tamper, **changes):
    """A whole run, with its log and its display, of which one may tamper with the replies."""
    federation = assemble(make_config(rounds=1, **changes), make_clients())
    federation.engine = Spy(federation.engine, tamper)
    folder = new_folder(federation.config, tmp_path, 1)
    job, shown = FederationJob(federation), io.StringIO()
    display = PlainDisplay(Console(file=shown, width=200))
    with EventLog(folder.events) as log:

        def observe(event, fields):
            log.log(event, fields)
            display.event(event, fields)

        observe("started", {"kind": "federation", **job.facts()})
        job.begin(folder, observe)
        assert job.run_rounds(observe, lambda: save(job, folder, 0.0) or True)
        summary = job.finish(folder, observe, 0.0)
    return federation, summary, read_events(folder.events), shown.getvalue()


SOME = ("text", "nothing", "nested", "beyond floats", "NaN", "surrogate")


def numbers(task, fact, *skip, ways=SOME):
    """A number of a task's facts, spelled in ways that are none."""
    return {
        f"{task} {fact} {what}": (task, with_literal(fact, literal))
        for what, literal in NUMBERS.items()
        if what in ways and what not in skip
    }


MODULES = "encoder.layer.0.attention.self.query"
CASES = {
    **numbers("fit", "loss", "nothing", ways=NUMBERS),
    **numbers("fit", "examples"),
    **numbers("fit", "steps"),
    **numbers("capacity", "tokens"),
    **numbers("signature", "norm"),
    **numbers("assign", "bytes", "nothing"),
    **numbers("deliver", "accept"),
    **numbers("deliver", "pick"),
    **numbers("deliver", "sha256"),
    **numbers("evaluate", "members", ways=NUMBERS),
    **numbers("fingerprint", "norms"),
    **numbers("salience", "salience"),
    **{f"evaluate score {what}": ("evaluate", first_member(score=value)) for what, value in {
        "text": "high", "nothing": None, "missing": ..., "huge": 10**400, "beyond": 7.0,
        "nested": {"a": 1}, "truth": True,
    }.items()},
    "evaluate of a stranger": ("evaluate", with_facts(members={"b1": {"loss": 1.0}})),
    "evaluate of nobody": ("evaluate", with_facts(members={})),
    "evaluate of many": (
        "evaluate", with_facts(members={f"x{i}": {"loss": 1.0} for i in range(9000)})
    ),
    "evaluate of other shadows": ("evaluate", with_facts(alone={"b1": {"loss": 1.0}})),
    "evaluate with a shadow's text": ("evaluate", with_facts(alone={"a1": {"loss": "low"}})),
    "evaluate with less of a shadow": ("evaluate", with_facts(alone={"a1": {"loss": 1.0}})),
    "evaluate with other names": ("evaluate", first_member(**{ESCAPE: 1.0})),
    "evaluate with a tensor": (
        "evaluate", lambda reply: encode({"more": __import__("torch").zeros(10**5)}, {})
    ),
    "split bytes of 300 digits": ("fit", with_facts(split_up=10**300, split_down=1)),
    "split bytes of one way": ("fit", with_facts(split_up=3)),
    "split bytes of a client that is whole": ("fit", with_facts(split_up=3, split_down=3)),
    "unknown fact": ("fit", with_facts(**{ESCAPE * 800: 1})),
    "salience unasked": ("fit", with_facts(salience=[1.0] * 4)),
    "salience too long": ("salience", with_facts(salience=[1.0] * 5)),
    "salience too short": ("salience", with_facts(salience=[])),
    "beta unasked": ("fit", with_facts(beta=[0.5] * 9)),
    "more tokens than texts hold": ("capacity", with_facts(tokens=10**12, longest=10**12)),
    "more tokens than a batch": ("capacity", with_facts(tokens=10**5)),
    "norms of other parts": ("fingerprint", with_facts(norms={ESCAPE: {MODULES: 1.0}})),
    "norms of other modules": ("fingerprint", with_facts(norms={"text": {ESCAPE: 1.0}})),
    "norms of no block": (
        "fingerprint", with_facts(norms={"text": {"dense": 1.0}, "label": {"dense": 1.0}})
    ),
    "norms of text": ("fingerprint", with_facts(norms={"text": {MODULES: "long"}})),
    "a pick too many": ("deliver", with_facts(pick=7)),
    "a twin key": ("fit", with_literal("loss", '1.0, "loss": 2.0')),
    "facts are a list": ("fit", lambda reply: with_text(reply, "[]")),
    "facts are no JSON": ("evaluate", lambda reply: with_text(reply, "{" + ESCAPE)),
    "facts are missing": ("deliver", with_header(lambda text: "{}")),
    "header number": ("deliver", with_header(lambda text: '{"a": ' + "9" * 5000 + "}")),
    "header surrogate": ("fit", with_header(lambda text: text[:-1] + ', "\\ud800": {}}')),
    "header twin": ("fit", with_header(lambda text: text[:-1] + ", " + text[1:])),
    "header NaN": ("fit", with_header(lambda text: text.replace("[3,", "[NaN,"))),
    "header deep": ("fit", with_header(lambda text: "[" * 10**4)),
    "header huge shape": ("fit", with_header(lambda text: text.replace("[3,", f"[{10**18},"))),
    "header not UTF-8": ("evaluate", with_header(lambda text: b"\xff" * 64)),
    "long reason": ("fit", lambda reply: Failure(ESCAPE * 1000)),
    "surrogate reason": ("evaluate", lambda reply: Failure("\ud800\u202e[/]")),
    "not bytes": ("evaluate", lambda reply: "text"),
    "nothing": ("deliver", lambda reply: None),
    "adapter of no message": ("adapter", lambda reply: b"junk"),
    "adapter of other sizes": ("adapter", lambda reply: encode({}, {})),
}  # fmt: skip


def in_runs():
    """Cases by the settings of their run, as many to a run as there are clients to answer badly."""
    kinds = {}
    for case, (key, _) in CASES.items():
        kinds.setdefault(key if key in SETTINGS else "", []).append(case)
    for key, cases in kinds.items():
        for start in range(0, len(cases), len(BAD)):
            yield pytest.param(key, cases[start : start + len(BAD)], id=cases[start])


@pytest.mark.parametrize(("key", "cases"), list(in_runs()))
def test_the_run_ends_without_the_replies(key, cases, tmp_path):
    spoils = {}
    for client, case in zip(BAD, cases, strict=False):
        task, spoil = CASES[case]
        spoils["fit" if task == "salience" else task, client] = spoil

    def tamper(task, client, reply):
        return spoils[task, client](reply) if (task, client) in spoils else reply

    changes = {"alone": False, **SETTINGS.get(key, {})}
    federation, summary, events, shown = finish_run(tmp_path, tamper, **changes)
    trouble = [*summary["failures"], *summary["refused"]]
    assert {entry["client"] for entry in trouble} == {client for _, client in spoils}
    honest = {client for client in federation.holders if client not in BAD}
    assert honest <= set(summary["score"]["clients"])
    for reason in [entry["reason"] for entry in trouble]:
        assert 0 < len(reason) <= 200 and reason.isprintable() and reason.isascii()
    logged = [e for e in events if e["event"] in ("refused", "failure")]
    assert len(logged) == len(trouble)
    assert not set(shown) & {"\x1b", "\a"}
    assert len(json.dumps(summary)) < 20_000


def test_an_honest_run_has_no_trouble(tmp_path):
    for changes in ({"alone": False}, *(SETTINGS[key] for key in ("capacity", "salience"))):
        _, summary, _, _ = finish_run(tmp_path, None, **changes)
        assert not summary["failures"] and not summary["refused"]
