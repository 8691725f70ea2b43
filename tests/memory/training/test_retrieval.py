"""The same questions with three memories, judged word by word."""

import numpy as np
import pytest
import torch
from scipy import stats

from atlas.backbones.memory_lm import AtlasCache
from atlas.config.episodes import EpisodeSettings
from atlas.config.memory_train import AlertSettings
from atlas.memory.layer.gates import Floors, GateMode
from atlas.memory.training.episode_batches import ARITHMETIC, WORDS, EpisodeBatch
from atlas.memory.training.episodes import EpisodeReader
from atlas.memory.training.loop import Lines
from atlas.memory.training.retrieval import EMPTIED, OTHER, OWN, ask, judge
from atlas.memory.training.watch import Alerts, model_figures
from atlas.ops.paired_answers import mcnemar, resampled_interval
from tests.backbones.memory_lm.helpers import make_model
from tests.memory.training.test_episodes import FLOORS, batch

ROWS = 5
EPISODE = tuple(batch(i, task, rows=ROWS) for i, task in enumerate([WORDS, ARITHMETIC, WORDS]))
READER = EpisodeReader(EpisodeSettings(), AtlasCache)


def asked(model, rows=2, memories=(OWN, EMPTIED, OTHER)):
    return ask(READER, model, EPISODE, FLOORS, rows=rows, memories=memories)


def test_a_question_is_right_when_all_its_tokens_are():
    own = batch(1, rows=ROWS)
    logits = torch.nn.functional.one_hot(own.storage.ids, 40).double()
    assert judge(logits, own).right.all()
    place = torch.nonzero(own.questions == 3)[1]
    logits[place[0], place[1]] = 0
    found = judge(logits, own, first=10)
    assert found.right.tolist() == [True, True, True, False, True]
    assert found.stream.tolist() == [10, 11, 12, 13, 14]


def test_answers_do_not_depend_on_how_many_streams_are_read_at_once():
    model = make_model("gate")
    one, two = asked(model, rows=2, memories=(OWN, EMPTIED)), asked(model, 50, (OWN, EMPTIED))
    assert one.loss == pytest.approx(two.loss, abs=1e-10)
    for name in (OWN, EMPTIED):
        for task in (WORDS, ARITHMETIC):
            assert sorted(one.answers[name][task].stream) == sorted(two.answers[name][task].stream)
            assert one.answers[name][task].accuracy == two.answers[name][task].accuracy


def test_memories_differ_for_a_model_that_has_one_and_for_no_other(monkeypatch):
    seen = {}
    original = EpisodeReader.read

    def watched(self, model, lines, memory, mode, floors, **more):
        out, states = original(self, model, lines, memory, mode, floors, **more)
        seen.setdefault(model.config.placement, []).append(out.logits)
        return out, states

    monkeypatch.setattr(EpisodeReader, "read", watched)
    for kind in ("gate", "none"):
        asked(make_model(kind), rows=ROWS)
        # Three of storage, two that are looked at, then three for each memory.
        own, emptied, other = (seen[make_model(kind).config.placement][i] for i in (5, 8, 11))
        same = torch.equal(own, emptied), torch.equal(own, other)
        assert same == ((kind == "none"),) * 2


def test_streams_are_given_the_memory_of_another():
    """Half of the streams away stands a twin, so another's memory is like one's own."""

    def twins(lines):
        return Lines(lines.ids[[0, 1, 0, 1]], lines.targets[[0, 1, 0, 1]])

    def numbered(questions):
        found = questions[[0, 1, 0, 1]].clone()
        found[2:][found[2:] >= 0] += 2
        return found

    paired = tuple(
        EpisodeBatch(b.task, twins(b.storage), twins(b.retrieval), numbered(b.questions))
        for b in EPISODE
    )
    model = make_model("gate")
    found = ask(READER, model, paired, FLOORS, rows=4, memories=(OWN, OTHER))
    for task in (WORDS, ARITHMETIC):
        own, other = (found.answers[name][task].right for name in (OWN, OTHER))
        assert np.array_equal(own, other) and len(own) == 4 * (2 if task == WORDS else 1)


def test_mcnemar_is_the_binomial_test_of_those_that_differ():
    draw = np.random.default_rng(0)
    first, second = draw.random(400) < 0.6, draw.random(400) < 0.5
    found = mcnemar(first, second)
    one, two = int((first & ~second).sum()), int((~first & second).sum())
    assert (found["first_only"], found["second_only"]) == (one, two)
    assert found["p"] == pytest.approx(stats.binomtest(one, one + two, 0.5).pvalue)
    assert found["difference"] == pytest.approx(first.mean() - second.mean())
    assert mcnemar(first, first)["p"] == 1.0


def test_the_interval_is_wider_where_answers_of_a_stream_lean_on_each_other():
    draw = np.random.default_rng(1)
    streams = np.repeat(np.arange(40), 10)
    leaning = np.repeat(draw.normal(0.3, 1.0, 40), 10)
    low, high = resampled_interval(leaning, streams, np.random.default_rng(2))
    assert low < leaning.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * leaning[::10].std() / 40**0.5, rel=0.1)
    alone = resampled_interval(leaning, np.arange(400), np.random.default_rng(2))
    assert alone[1] - alone[0] < 0.5 * (high - low)


def test_figures_are_of_the_whole_model():
    memory = {
        "layers.0/M_norm": 1.0, "layers.1/M_norm": 3.0, "layers.0/M_max": 5.0,
        "layers.1/M_max": 4.0, "layers.0/gate.mix.mean": 0.2, "layers.1/gate.mix.mean": 0.4,
        "layers.0/gate.mix.risk": 0.9, "layers.1/gate.mix.risk": 0.5,
    }  # fmt: skip
    found = model_figures(memory)
    assert found["M_norm"] == 2.0 and found["M_max"] == 5.0
    assert found["gate_mean"] == pytest.approx(0.3) and found["gate_collapse_risk"] == 0.9
    assert model_figures(None) == {}


def test_an_alert_is_told_once_whenever_a_threshold_is_crossed():
    alerts = Alerts(AlertSettings(risk=0.9, dead=0.5, share=0.05))

    def look(risk, share=0.5):
        values = {"layers.1/gate.mix.risk": risk, "layers.1/gate.mix.mean": share}
        return [(a.layer, a.measure, a.raised) for a in alerts.look(values)]

    assert look(0.5) == []
    assert look(0.95) == [("layers.1", "risk", True)]
    assert look(0.96) == [], "not at every step"
    assert look(0.96, 0.04) == [("layers.1", "share", True)]
    again = Alerts(alerts.settings, sorted(alerts.active))
    assert again.active == {"layers.1/risk", "layers.1/share"}
    assert look(0.5, 0.04) == [("layers.1", "risk", False)]
    assert look(0.95, 0.5) == [("layers.1", "risk", True), ("layers.1", "share", False)]
    assert list(alerts.look(None)) == []


def test_floors_of_a_phase_hold_where_they_are_higher():
    settings = EpisodeSettings.model_validate({"retrieval": {"target": 0.5, "floor": 0.4}})
    reader = EpisodeReader(settings, AtlasCache)
    phases = [reader.floors(Floors(mix=mix), mode) for mix in (0.1, 0.6) for mode in GateMode]
    assert [floors.mix for floors in phases] == [0.1, 0.4, 0.6, 0.6]
