"""Compressed replies: what is left out is made up for, both sides agree, and bytes are saved."""

from collections import Counter

import pytest
import torch

from atlas.config.plan import WireSettings
from atlas.federation.adapters.adapter import Adapter, adapter_sha256
from atlas.federation.exchange.compression import (
    CODES,
    PLACES,
    SCALES,
    VALUES,
    Compression,
    Sent,
    packed_shapes,
)
from atlas.federation.exchange.guard import Expected, PackedReply, Refusal, check_reply
from atlas.federation.exchange.message import decode, encode
from atlas.federation.exchange.transport import CONTRACTS, Failure
from atlas.federation.rounds import run_round
from tests.federation.test_rounds import Spy, hashes, play
from tests.helpers import make_config, reloaded

FORMS = ("bfloat16", "int8", "topk")
RANKS = [1 + client % 5 for client in range(30)]
"""Unequal ranks of thirty clients."""
FACTS = {"examples": 5, "steps": 1, "loss": 0.5}


def shapes_of(rank):
    return {"lora_a/m": (rank, 24), "lora_b/m": (16, rank), "head/classifier.bias": (3,)}


def drawn(rank, seed, size=1.0):
    generator = torch.Generator().manual_seed(seed)
    return Adapter(
        {
            name: size * torch.randn(shape, generator=generator, dtype=torch.float64)
            for name, shape in shapes_of(rank).items()
        }
    )


def vector(adapter):
    return torch.cat([adapter[name].flatten() for name in sorted(adapter)])


def naive_form(form, values, share):
    """What a form makes of a list of numbers, one by one."""
    if form == "bfloat16":
        return [float(torch.tensor(v, dtype=torch.float64).to(torch.bfloat16)) for v in values]
    if form == "topk":
        kept = -(-round(share * len(values) * 1e9) // 10**9)
        order = sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))[:kept]
        return [float(torch.tensor(v).float()) if i in order else 0.0 for i, v in enumerate(values)]
    found = []
    for start in range(0, len(values), 256):
        block = values[start : start + 256]
        step = float(torch.tensor(max(map(abs, block)) / 127).float())
        found += [step * round(v / step) if step else 0.0 for v in block]
    return found


class Pair:
    """One client and what the server has of it, in a loop of fits and whole deliveries."""

    def __init__(self, rank, form, share, feedback, seed):
        self.form, self.share, self.feedback = form, share, feedback
        self.server = drawn(rank, seed)
        self.sent = Sent(Adapter({k: v.clone() for k, v in self.server.items()}))

    def take(self, mixture, share=1.0):
        """What a whole or partial delivery leaves both sides with."""
        self.sent = self.sent.delivered(mixture, share)
        here = self.server if share < 1 else mixture
        self.server = Adapter({k: v + share * (mixture[k] - v) for k, v in here.items()})
        assert adapter_sha256(self.server) == adapter_sha256(self.sent.known)

    def round(self, trained):
        base = adapter_sha256(self.server)
        how = Compression(self.form, self.share, self.feedback, base)
        tensors, form, self.sent = how.apply(trained, self.sent)
        facts = FACTS | ({"form": form} if form else {})
        shapes = {name: tuple(value.shape) for name, value in trained.items()}
        packed = PackedReply(self.form, self.share, self.server)
        expected = Expected(shapes, torch.float64, packed=packed)
        found = check_reply(encode(tensors, facts), CONTRACTS["fit"].reply, expected)
        assert not isinstance(found, Refusal), found
        self.server = Adapter(found.tensors)
        assert adapter_sha256(self.server) == adapter_sha256(self.sent.known)
        return form


def federate(form, share, feedback, rounds):
    """Thirty clients of unequal ranks that pull to places of their own and are averaged.

    Returns:
        By client the mean over rounds of what arrived minus what was trained, by entry.
    """
    pairs = [Pair(rank, form, share, feedback, 7) for rank in RANKS]
    goals = [drawn(rank, 100 + k) for k, rank in enumerate(RANKS)]
    gaps = [torch.zeros(len(vector(goal)), dtype=torch.float64) for goal in goals]
    for number in range(rounds):
        own = {rank: [p for p, r in zip(pairs, RANKS, strict=True) if r == rank] for rank in RANKS}
        mixed = {
            rank: {name: sum(p.server[name] for p in some) / len(some) for name in shapes_of(rank)}
            for rank, some in own.items()
        }
        for k, (pair, rank) in enumerate(zip(pairs, RANKS, strict=True)):
            pair.take(mixed[rank])
            noise = drawn(rank, 1000 * number + k, 0.01)
            trained = Adapter(
                {n: v + 0.05 * (goals[k][n] - v) + noise[n] for n, v in mixed[rank].items()}
            )
            pair.round(trained)
            gaps[k] += (vector(pair.server) - vector(trained)) / rounds
    return gaps


@pytest.mark.parametrize(("form", "share"), [("int8", 1.0), ("topk", 0.1), ("bfloat16", 1.0)])
def test_feedback_makes_the_average_over_rounds_exact(form, share):
    """What is missing of the sum is what the last message left out; without feedback it grows."""
    errors = {}
    for feedback in (True, False):
        for rounds in (15, 60):
            gaps = federate(form, share, feedback, rounds)
            errors[feedback, rounds] = float(torch.cat(gaps).abs().mean())
    assert errors[True, 60] < errors[True, 15] / 2.5
    assert errors[True, 60] < errors[False, 60] / (5 if form == "topk" else 1.2)
    if form == "topk":
        assert errors[False, 60] > errors[False, 15] / 1.5  # a bias that time does not average out


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rank", [1, 3, 5])
def test_a_message_equals_its_naive_twin(form, rank):
    """c' = r + Q(h - r + carry * left), left' = h + carry * left - c', entry by entry."""
    pair, cut = Pair(rank, form, 0.3, True, 3), 0.3
    known, left = vector(pair.server).tolist(), [0.0] * len(vector(pair.server))
    carry = 0.0
    for number, share in enumerate((1.0, 0.5, 0.0, 1.0)):
        trained = drawn(rank, 50 + number)
        target = [h + carry * e for h, e in zip(vector(trained).tolist(), left, strict=True)]
        change = naive_form(form, [t - c for t, c in zip(target, known, strict=True)], cut)
        known = [c + q for c, q in zip(known, change, strict=True)]
        left = [t - c for t, c in zip(target, known, strict=True)]
        assert pair.round(trained) == form
        assert torch.allclose(vector(pair.server), torch.tensor(known).double(), atol=1e-6)
        assert torch.allclose(vector(pair.sent.left), torch.tensor(left).double(), atol=1e-6)
        mixture = drawn(rank, 70 + number)
        pair.take(mixture, share)
        moves = zip(known, vector(mixture).tolist(), strict=True)
        known, carry = [c + share * (m - c) for c, m in moves], share


def test_what_is_held_on_to_arrives_without_being_added_twice():
    """Where no mixture takes an adapter's place, the differences alone bring it across."""
    pair, trained = Pair(4, "topk", 0.1, True, 3), drawn(4, 50)
    gaps = []
    for _ in range(12):
        pair.round(trained)
        gaps.append(float((vector(pair.server) - vector(trained)).norm()))
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-6


def test_after_a_lost_reply_all_is_sent_as_it_is_once():
    pair = Pair(2, "int8", 1.0, True, 3)
    assert pair.round(drawn(2, 1)) == "int8"
    before = pair.server
    assert pair.round(drawn(2, 2)) == "int8"
    pair.server = before  # the server never got it
    assert pair.round(drawn(2, 3)) is None
    assert adapter_sha256(pair.server) == adapter_sha256(drawn(2, 3))
    assert pair.round(drawn(2, 4)) == "int8"


def good(form="topk", share=0.2):
    base = drawn(3, 1)
    count = len(vector(base))
    how = Compression(form, share, True, adapter_sha256(base))
    tensors, _, _ = how.apply(drawn(3, 2), Sent(base))
    shapes = {name: tuple(value.shape) for name, value in base.items()}
    expected = Expected(shapes, torch.float64, packed=PackedReply(form, share, base))
    return tensors, expected, count


def refused(tensors, expected, **facts):
    found = check_reply(encode(tensors, FACTS | facts), CONTRACTS["fit"].reply, expected)
    assert isinstance(found, Refusal)
    return found.reason


def test_what_no_client_would_pack_is_refused():
    tensors, expected, count = good()
    places, values = tensors[PLACES], tensors[VALUES]
    for wrong in (
        places.flip(0), torch.zeros_like(places), places + count, places - count,
        torch.full_like(places, 2**31 - 1),
    ):  # fmt: skip
        assert "rising" in refused({**tensors, PLACES: wrong}, expected, form="topk")
    assert "shape" in refused({PLACES: places[1:], VALUES: values[1:]}, expected, form="topk")
    assert "dtype" in refused({**tensors, PLACES: places.long()}, expected, form="topk")
    assert "missing" in refused({VALUES: values}, expected, form="topk")
    assert "finite" in refused({**tensors, VALUES: values / 0}, expected, form="topk")
    assert "norm" in refused({**tensors, VALUES: values * 1e9}, expected, form="topk")
    assert "form" in refused(tensors, expected, form="int8")
    assert "form" in refused(tensors, expected)
    plain = Expected(expected.shapes, torch.float64)
    assert "keys" in refused(tensors, plain, form="topk")
    tensors, expected, _ = good("int8")
    bad = {CODES: tensors[CODES], SCALES: tensors[SCALES] * float("nan")}
    assert "finite" in refused(bad, expected, form="int8")


def sizes(config, **more):
    federation, spy, _ = play(config, **more)
    up = [len(r) for task, _, rs in spy.log if task == "fit" for r in rs.values()]
    return federation, spy, sum(up)


def wired(form, **more):
    return make_config(wire={"form": form, **more}, alone=False, rounds=3, adapter={"rank": 8})


def test_every_form_saves_bytes_and_they_are_those_of_the_wire():
    plain, spy, most = sizes(wired("plain"))
    numbers = sum(v.numel() for r in spy.log[0][2].values() for v in decode(r).tensors.values())
    assert all("compress" not in decode(p).facts for t, ps, _ in spy.log for p in ps.values())
    found = {"plain": hashes(plain)}
    for form, each in (("bfloat16", 2), ("int8", 1 + 4 / 256), ("topk", 0.1 * 8)):
        federation, spy, up = sizes(wired(form))
        assert not federation.state.failures and not federation.state.refused
        assert 3 * each * numbers < up < 3 * (each * numbers + 5 * 450)
        assert up < most * (each / 4 + 0.15)
        for client in federation.holders:
            wire = sum(len(r[client]) for _, _, r in spy.log if client in r)
            assert federation.state.ledger.totals[client]["up"] == wire
        found[form] = hashes(federation)
    assert len({tuple(sorted(one.items())) for one in found.values()}) == 4


@pytest.mark.parametrize("form", FORMS)
def test_switching_feedback_off_changes_the_run(form):
    on, off = (play(wired(form, feedback=feedback))[0] for feedback in (True, False))
    assert hashes(on) != hashes(off)
    assert not on.state.failures and not off.state.failures


@pytest.mark.parametrize(
    "changes",
    [{}, {"strategy": "flora"}, {"keep_best": True, "alone": True}, {"sample": 0.5}],
    ids=["whole", "merged", "chosen", "sampled"],
)
def test_a_resumed_run_equals_an_uninterrupted_one(changes):
    config = make_config(wire={"form": "topk"}, rounds=3, **changes)
    first, spy, _ = play(config, rounds=2)
    second = reloaded(first, config)
    second.state.cohorts = dict(first.state.cohorts)
    second.state.references.cohorts = dict(first.state.references.cohorts)
    logs = []
    for federation in (first, second):
        watched = Spy(federation.engine)
        run_round(federation.plan, federation.state, watched, lambda event, fields: None)
        logs.append(watched.log)
    assert logs[0] == logs[1]
    assert hashes(first) == hashes(second)
    assert {decode(r).facts.get("form") for r in logs[1][0][2].values()} == {"topk"}


@pytest.mark.parametrize(("warmup", "whole"), [(4, [("b1", 3)]), (0, [])], ids=["alone", "mixed"])
def test_a_lost_reply_is_followed_by_a_whole_one_unless_a_delivery_comes_between(warmup, whole):
    """Whoever is given an adapter, as those are whose reply was refused, is known to have it."""
    seen = Counter()

    def tamper(task, client, reply):
        seen[task, client] += 1
        bad = (task, client) == ("fit", "a2") and seen[task, client] == 1
        lost = (task, client) == ("fit", "b1") and seen[task, client] == 2
        return reply[:-1] if bad else Failure("late") if lost else reply

    relation = {"warmup": warmup}  # W = I: nothing is delivered
    config = make_config(wire={"form": "int8"}, alone=False, rounds=4, relation=relation)
    federation, spy, events = play(config, tamper)
    fitted = [(f["client"], f["round"], f.get("form")) for e, f in events if e == "fitted"]
    assert [(client, number) for client, number, form in fitted if form is None] == whole
    assert len(fitted) == 4 * 5 - 2
    assert len(federation.state.refused) == len(federation.state.failures) == 1


def test_sizes_of_a_form_are_known_before_anything_is_read():
    share = WireSettings().share
    assert packed_shapes("topk", 5, share)[PLACES][0] == (1,)
    assert packed_shapes("topk", 101, share)[VALUES] == ((11,), torch.float32)
    assert packed_shapes("int8", 513, share)[SCALES][0] == (3,)
    assert packed_shapes("bfloat16", 513, share) == {VALUES: ((513,), torch.bfloat16)}
