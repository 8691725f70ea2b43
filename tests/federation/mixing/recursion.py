"""Rounds of clients that move at random, and their twin: the recursion in dense matrices."""

import numpy as np
import torch
from scipy.sparse import csr_array

from atlas.config.plan import MixingSettings, RelationSettings, RouteSettings
from atlas.federation.adapters.adapter import Adapter, Layout, Member, adapter_sha256
from atlas.federation.adapters.cohort import InMemory, initial_cohort
from atlas.federation.batching.backbone import HeadLayer
from atlas.federation.exchange.message import decode, encode
from atlas.federation.exchange.transport import Failure
from atlas.federation.mixing.apply import ALPHAS
from atlas.federation.mixing.cutting import blend
from atlas.federation.mixing.deliver import shut_names, unpack_mixtures
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
    """Clients that train by moving at random, and take of their mixtures what they are told to.

    Attributes:
        held: What they hold.
        sent: What each sent in the round under way.
        lost: Whose answer to a delivery does not arrive, by client and round.
    """

    def __init__(  # noqa: PLR0913
        self,
        cohort,
        step=0.3,
        shares=None,
        absent=(),
        refused=(),
        hold=None,
        picks=None,
        lost=(),
    ):
        self.held, self.step = cohort, step
        self.shares = shares or (lambda client, number: 1.0)
        self.picks = picks or (lambda client, number: 0)
        self.absent, self.refused, self.lost = set(absent), set(refused), set(lost)
        self.hold = hold or (lambda client, number, adapter: adapter)
        self.number = 0
        self.sent = {}

    def ask(self, task, payloads):
        return {c: getattr(self, task)(c, decode(data)) for c, data in sorted(payloads.items())}

    def fit(self, client, message):
        if message.facts["round"] != self.number:
            self.number, self.sent = message.facts["round"], {}
        own, here = self.held.take(client), message.facts.get("open")
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
        if here is not None:
            facts["salience"] = [1.0 for _ in MODULES]
            shut = shut_names(self.held.layout, [i in here for i in MODULES])
            moved = moved.only(lambda name: name not in shut)
        self.sent[client] = Adapter({k: v.to(own[k].dtype) for k, v in moved.items()})
        return encode(self.sent[client], facts)

    def deliver(self, client, message):
        offers = unpack_mixtures(message)
        share, pick, names = 0.0, 0, set()
        if offers:
            share, pick = self.shares(client, self.number), self.picks(client, self.number)
            own, names = self.held.select([client]), set(offers[0])
            offer = offers[pick % len(offers)]
            taken = blend(own, own.put({client: offer}), share).take(client)
            self.held = self.held.put({client: self.hold(client, self.number, taken)})
        if (client, self.number) in self.lost:
            return Failure("no answer")
        here = self.held.take(client).only(names.__contains__)
        return encode({}, {"accept": share, "pick": pick, "sha256": adapter_sha256(here)})


def play(ranks, feedback, rounds=4, place=None, relation=mixing_of, state=None, **told):
    """Run rounds; yields the state before and after each, the clients and the events.

    Clients that pick are offered a mixture of `tilted` weights for each of `ALPHAS`.
    """
    names = ("absent_rule", "server_rank", "cut", "budget")
    more = {key: told.pop(key) for key in names if key in told}
    dtype = told.pop("dtype", torch.float64)
    n = len(ranks)

    def relate(view):
        weights = relation(n, view.round)
        if told.get("picks"):
            weights = tilted(weights, view.settings.alpha)
        if n > LARGEST_DENSE:
            return share_rows(csr_array(weights))
        return torch.from_numpy(weights)

    rank = more.get("server_rank", FULL) if feedback else None
    settings = MixingSettings(cut=more.get("cut", "leading"), feedback=feedback, server_rank=rank)
    plan = RunPlan(
        strategy=Strategy(name="law", relation=relate),
        tasks={f"c{k:03d}": "t" for k in range(n)},
        rounds=rounds,
        seed=0,
        absent=more.get("absent_rule", "restrict"),
        validate_every=0,
        mixing=settings,
        relation=RelationSettings(alpha="auto" if told.get("picks") else 1.0),
        route=RouteSettings(budget=more.get("budget")),
    )
    cohort = make_cohort(ranks, place, dtype=dtype)
    state = state or ServerState({"law": cohort})
    clients = Clients(told.pop("begin", None) or make_cohort(ranks, dtype=dtype), **told)
    for _ in range(rounds):
        events = []
        run_round(plan, state, clients, lambda e, f, all=events: all.append((e, dict(f))))
        yield state, clients, events


class Twin:
    """The recursion in dense matrices: trained plus f e, mixed, cut, and what is left of it.

    Attributes:
        held: What clients hold, by module [n, d_out, d_in].
        left: What the server remembers of the rest.
        uncut: What they would hold if nothing were ever cut and all of it counted.
        energy: Of the last round, by client: uncut, of that not held, of that not remembered.
    """

    def __init__(self, ranks, feedback, server_rank=FULL):
        start = make_cohort(ranks)
        self.ranks = [[m.ranks[i] for m in start.members] for i in MODULES]
        self.held, self.feedback, self.rank = dense(start), feedback, server_rank
        self.left = [torch.zeros_like(one) for one in self.held]
        self.uncut = [one.clone() for one in self.held]

    def round(self, weights, change, shares):
        """`change` is what training did to each client [modules][n, ...]; W is by module."""
        self.energy = torch.zeros(len(shares), 3, dtype=torch.float64)
        for i in MODULES:
            trained = self.held[i] + change[i]
            sent = trained + self.feedback * self.left[i]
            mixture = torch.einsum("kl,lij->kij", weights[i], sent)
            free = self.uncut[i] + change[i]
            self.uncut[i] = (1 - shares) * free + shares * torch.einsum(
                "kl,lij->kij", weights[i], free
            )
            whole = (1 - shares) * sent + shares * mixture
            for k, rank in enumerate(self.ranks[i]):
                moves = bool(shares[k]) and weights[i][k, k] != 1
                if moves:
                    share, cut = shares[k, 0, 0], best(mixture[k], rank)
                    self.held[i][k] = best((1 - share) * trained[k] + share * cut, rank)
                else:
                    self.held[i][k] = trained[k]
                rest = whole[k] - self.held[i][k]
                self.left[i][k] = best(rest, self.rank)
                if moves:
                    three = torch.stack([whole[k], rest, rest - self.left[i][k]])
                    self.energy[k] += three.square().sum((1, 2))


def tilted(weights, alpha):
    """The same with stronger likes and dislikes."""
    found = weights**alpha
    return found / found.sum(1, keepdims=True)


def restricted(weights, usable):
    """W of those of whom anything is known; rows of nobody are one's own."""
    kept = weights * usable
    total = kept.sum(1, keepdim=True)
    return torch.where(total > 0, kept / total.clamp_min(1e-300), torch.eye(len(kept)))


def some_shares(client, number):
    return (1.0, 0.5, 0.0, 0.25, 1.0)[(int(client[1:]) + number) % 5]


def follow(ranks, feedback, rounds=4, **told):
    """Rounds beside their twin; yields both after each."""
    names = [f"c{k:03d}" for k in range(len(ranks))]
    twin = Twin(ranks, feedback, told.get("server_rank", FULL))
    shares, picks = told.get("shares") or (lambda c, r: 1.0), told.get("picks")
    gone = {*told.get("absent", ()), *told.get("refused", ())}
    held, known = make_cohort(ranks), torch.zeros(len(ranks), len(MODULES), dtype=torch.bool)
    for number, (state, clients, events) in enumerate(play(ranks, feedback, rounds, **told), 1):
        sent = {c: own for c, own in clients.sent.items() if (c, number) not in gone}
        before, trained = dense(held), dense(held.put(sent))
        change = [t - h for t, h in zip(trained, before, strict=True)]
        weights = torch.from_numpy(mixing_of(len(ranks), number))
        if picks:
            offers = [tilted(weights, alpha) for alpha in ALPHAS]
            weights = torch.stack([offers[picks(c, number)][k] for k, c in enumerate(names)])
        if told.get("absent_rule") != "last":
            weights = restricted(weights, torch.tensor([c in sent for c in names]))
        here = next((fields["open"] for event, fields in events if event == "routed"), None)
        opened = torch.tensor([here[c] if here else [True for _ in MODULES] for c in names])
        known |= opened & torch.tensor([c in sent for c in names])[:, None]
        both = [weights for _ in MODULES]
        if here:
            own = torch.eye(len(names), dtype=weights.dtype)
            both = [
                torch.where(opened[:, i, None], restricted(weights, known[:, i]), own)
                for i in MODULES
            ]
        part = torch.tensor([shares(c, number) for c in names], dtype=torch.float64)
        twin.round(both, change, part[:, None, None])
        assert not state.failures or told.get("absent")
        held = state.cohorts["law"]
        yield state, clients, events, twin


def sizes(state, row):
    """How much is remembered of a client, by module."""
    return [float(one[row].abs().max()) for one in dense(state.residuals["law"])]


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
