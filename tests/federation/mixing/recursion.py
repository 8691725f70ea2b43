"""Rounds of clients that move at random, and their twin: the recursion in dense matrices."""

import numpy as np
import torch
from scipy.sparse import csr_array

from atlas.config.plan import MixingSettings
from atlas.federation.adapters.adapter import Adapter, Layout, Member, adapter_sha256
from atlas.federation.adapters.cohort import InMemory, initial_cohort
from atlas.federation.batching.backbone import HeadLayer
from atlas.federation.exchange.message import decode, encode
from atlas.federation.exchange.transport import Failure
from atlas.federation.mixing.cutting import blend
from atlas.federation.mixing.deliver import unpack_mixtures
from atlas.federation.rounds import run_round
from atlas.federation.server import RunPlan, ServerState
from atlas.federation.strategies.base import Strategy
from atlas.ops.graph.sparse_rows import LARGEST_DENSE, share_rows
from atlas.ops.lowrank.factors import delta
from tests.ops.lowrank.spectra import best

LAYOUT = Layout(
    "law",
    ("m0", "m1"),
    ((14, 12), (11, 13)),
    (HeadLayer("classifier", 5, 0, True, "identity"),),
    16.0,
)
MODULES = range(2)
FULL = 13
"""A rank at which no residual is cut."""


def make_cohort(ranks, place=None, seed=0, dtype=torch.float64):
    members = [Member(f"c{k:03d}", (r, max(1, r - k % 2)), ("n", "y")) for k, r in enumerate(ranks)]
    made = initial_cohort(LAYOUT, members, 0, dtype=dtype, place=place or InMemory())
    draw = np.random.default_rng(seed)
    for row, member in enumerate(members):
        own = made.take(member.id)
        made.fill(row, {k: torch.from_numpy(draw.standard_normal(v.shape)) for k, v in own.items()})
    return made


def dense(cohort):
    """The change of every client in every module: [modules][n, d_out, d_in]."""
    layers = [cohort.layer(i) for i in MODULES]
    return [delta(one.a.double(), one.b.double(), one.scales) for one in layers]


def mixing_of(n, number):
    """Another W in every round, one row of it e_k."""
    draw = np.random.default_rng(100 + number)
    weights = draw.uniform(0.1, 1.0, (n, n))
    if n > LARGEST_DENSE:
        weights *= draw.uniform(size=(n, n)) < 4 / n
        weights += np.eye(n) * 0.5
    weights /= weights.sum(1, keepdims=True)
    weights[number % n] = np.eye(n)[number % n]
    return weights


class Clients:
    """Clients that train by moving at random, and take of their mixtures what they are told to."""

    def __init__(self, cohort, step=0.3, shares=None, absent=(), refused=(), hold=None):
        self.held, self.step = cohort, step
        self.shares = shares or (lambda client, number: 1.0)
        self.absent, self.refused = set(absent), set(refused)
        self.hold = hold or (lambda client, number, adapter: adapter)
        self.number = 0
        self.trained = {}

    def ask(self, task, payloads):
        return {c: getattr(self, task)(c, decode(data)) for c, data in sorted(payloads.items())}

    def fit(self, client, message):
        self.number = message.facts["round"]
        own = self.held.take(client)
        if (client, self.number) in self.absent:
            return Failure("out of reach")
        place = int(client[1:])
        draw = np.random.default_rng((7, self.number, place))
        moved = Adapter(
            {
                k: v + self.step * torch.from_numpy(draw.standard_normal(v.shape))
                for k, v in own.items()
            }
        )
        self.held = self.held.put({client: moved})
        # A weight of nothing is no answer, though the client has trained.
        examples = 0 if (client, self.number) in self.refused else 5
        facts = {"examples": examples, "steps": 1, "loss": 0.5}
        return encode({k: v.to(own[k].dtype) for k, v in moved.items()}, facts)

    def deliver(self, client, message):
        offers = unpack_mixtures(message)
        share = self.shares(client, self.number) if offers else 0.0
        if offers:
            own = self.held.select([client])
            taken = blend(own, own.put({client: offers[0]}), share).take(client)
            self.held = self.held.put({client: self.hold(client, self.number, taken)})
        told = {"accept": share, "pick": 0, "sha256": adapter_sha256(self.held.take(client))}
        return encode({}, told)


def play(ranks, feedback, rounds=4, place=None, relation=mixing_of, state=None, **told):
    """Run rounds; yields the state before and after each, the clients and the events."""
    more = {key: told.pop(key) for key in ("absent_rule", "server_rank", "cut") if key in told}
    dtype = told.pop("dtype", torch.float64)
    n = len(ranks)

    def relate(view):
        weights = relation(n, view.round)
        if n > LARGEST_DENSE:
            return share_rows(csr_array(weights))
        return torch.from_numpy(weights)

    settings = MixingSettings(
        cut=more.get("cut", "leading"),
        feedback=feedback,
        server_rank=more.get("server_rank", FULL),
    )
    names = [f"c{k:03d}" for k in range(n)]
    plan = RunPlan(
        strategy=Strategy(name="law", relation=relate),
        tasks=dict.fromkeys(names, "t"),
        rounds=rounds,
        seed=0,
        absent=more.get("absent_rule", "restrict"),
        validate_every=0,
        mixing=settings,
    )
    cohort = make_cohort(ranks, place, dtype=dtype)
    state = state or ServerState({"law": cohort})
    clients = Clients(told.pop("begin", None) or make_cohort(ranks, dtype=dtype), **told)
    for _ in range(rounds):
        events = []
        run_round(plan, state, clients, lambda e, f, all=events: all.append((e, dict(f))))
        yield state, clients, events


class Twin:
    """The recursion in dense matrices: trained plus f e, mixed, cut, and what is left of it."""

    def __init__(self, ranks, feedback):
        start = make_cohort(ranks)
        self.ranks = [[m.ranks[i] for m in start.members] for i in MODULES]
        self.held, self.feedback = dense(start), feedback
        self.left = [torch.zeros_like(one) for one in self.held]
        self.uncut = [one.clone() for one in self.held]

    def round(self, weights, change, shares):
        """`change` is what training did to each client [modules][n, ...]."""
        for i in MODULES:
            trained = self.held[i] + change[i]
            sent = trained + self.feedback * self.left[i]
            mixture = torch.einsum("kl,lij->kij", weights, sent)
            free = self.uncut[i] + change[i]
            self.uncut[i] = (1 - shares) * free + shares * torch.einsum(
                "kl,lij->kij", weights, free
            )
            whole = (1 - shares) * sent + shares * mixture
            for k, rank in enumerate(self.ranks[i]):
                if shares[k] and weights[k, k] != 1:
                    share, cut = shares[k, 0, 0], best(mixture[k], rank)
                    self.held[i][k] = best((1 - share) * trained[k] + share * cut, rank)
                else:
                    self.held[i][k] = trained[k]
                self.left[i][k] = whole[k] - self.held[i][k]


def settled(n, number, sent, absent_rule):
    """W of those who replied, or of all."""
    weights = torch.from_numpy(mixing_of(n, number))
    if absent_rule == "last":
        return weights
    kept = weights * sent
    total = kept.sum(1, keepdim=True)
    return torch.where(total > 0, kept / total.clamp_min(1e-300), torch.eye(n, dtype=kept.dtype))


def some_shares(client, number):
    return (1.0, 0.5, 0.0, 0.25, 1.0)[(int(client[1:]) + number) % 5]


def follow(ranks, feedback, rounds=4, absent_rule="restrict", absent=(), refused=(), shares=None):
    """Rounds beside their twin; yields both after each."""
    n, twin = len(ranks), Twin(ranks, feedback)
    before = dense(make_cohort(ranks))
    told = {"absent": absent, "refused": refused, "shares": shares, "absent_rule": absent_rule}
    gone = set(absent) | set(refused)
    sent = {}
    for number, (state, clients, events) in enumerate(play(ranks, feedback, rounds, **told), 1):
        replied = torch.tensor([(f"c{k:03d}", number) not in gone for k in range(n)])
        trained = replay(before_held(sent, ranks), number, replied)
        change = [t - h for t, h in zip(dense(trained), before, strict=True)]
        part = [(shares or (lambda c, r: 1.0))(f"c{k:03d}", number) for k in range(n)]
        part = torch.tensor(part, dtype=torch.float64)[:, None, None]
        twin.round(settled(n, number, replied, absent_rule), change, part)
        assert not state.failures or absent
        sent["held"] = state.cohorts["law"]
        before = dense(state.cohorts["law"])
        yield state, clients, events, twin


def before_held(sent, ranks):
    return sent.get("held") or make_cohort(ranks)


def replay(held, number, replied):
    """What clients train to from what the server says they hold."""
    clients = Clients(held)
    for k, here in enumerate(replied.tolist()):
        if here:
            clients.fit(f"c{k:03d}", decode(encode({}, {"round": number})))
    return clients.held


def gap(found, wanted):
    size = max(float(one.abs().max()) for one in wanted)
    return max(float((f - w).abs().max()) for f, w in zip(found, wanted, strict=True)) / size


def even(n, number):
    return np.full((n, n), 1 / n)


def put_dense(tensors, cohort, module, row, change):
    """Factors of a dense change in a client's slots."""
    rank = cohort.members[row].ranks[module]
    a, b = cohort.layout.parts(module)
    u, s, vh = torch.linalg.svd(change)
    tensors[a], tensors[b] = tensors[a].clone(), tensors[b].clone()
    tensors[a][row], tensors[b][row] = 0.0, 0.0
    tensors[a][row, :rank] = vh[:rank]
    tensors[b][row, :, :rank] = u[:, :rank] * s[:rank] / cohort.scales(module)[row]
