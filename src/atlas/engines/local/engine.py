"""All clients in this process, clients of one backbone stacked into one forward pass."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from atlas.config.plan import FingerprintSettings, RelevanceSettings
from atlas.config.training import TrainSettings
from atlas.engines.local.capacity import take_ranks, take_split, tell_capacity, trial_bytes
from atlas.engines.local.deliver import (
    arm_in_use,
    choose_best,
    final_cohort,
    mark_delivered,
    merge_held,
    own_adapter,
    place_beside,
    replace_held,
    validate,
    whole_adapter,
    whole_cores,
)
from atlas.engines.local.fingerprint import print_group
from atlas.engines.local.fit import fit_group
from atlas.engines.local.groups import ClientGroup, load_clients, save_client, score_on_test
from atlas.engines.local.signature import sign_group
from atlas.errors import InputError
from atlas.federation.adapters.adapter import Adapter, adapter_sha256
from atlas.federation.exchange.compression import Compression, Sent
from atlas.federation.exchange.contents import tell_number
from atlas.federation.exchange.message import Message, MessageError, encode
from atlas.federation.exchange.transport import Failure, Reply, TaskName, read_request
from atlas.federation.mixing.deliver import check_offers, shut_names, unpack_mixtures
from atlas.federation.training.evaluate import Scores
from atlas.federation.training.loop import Clock
from atlas.runs.events import Progress

EXPECTED_FAILURES = (RuntimeError, ValueError, OSError, MessageError)
"""What a client's own work may raise; anything else is a fault of ours and ends the run."""
ASKED_ALIKE = ("fingerprint", "fit", "signature", "evaluate", "adapter")
"""Tasks that are done with all clients of a group at once, by one reading of the facts."""
ONES_OWN = ("open", "compress")
"""Facts in which clients that work together may differ."""


def _shut(group: ClientGroup, opened: Sequence[int] | None) -> set[str]:
    """The tensors that a client is not to send.

    Raises:
        ValueError: If a module is opened that there is not.
    """
    layout = group.model.layout
    modules = range(len(layout.modules))
    if opened is None:
        return set()
    if not set(opened) <= set(modules):
        raise ValueError(f"modules {opened} are to be sent, but there are {len(modules)}")
    return shut_names(layout, [module in opened for module in modules])


def _told(members: Mapping[str, Scores]) -> dict[str, dict[str, float | None]]:
    """Scores by member as a reply has them."""
    return {
        member: {name: tell_number(value) for name, value in scores.items()}
        for member, scores in members.items()
    }


class LocalEngine:
    """A `Transport` that answers from this process.

    Args:
        groups: Clients by what they can share a forward pass with.
        settings: Local training.
        clock: Run seed and length of the run; the round comes with each task.
        travels: Whether the tensor of a name may leave a client.
        progress: Called with (what, done, total) during long work.
    """

    def __init__(
        self,
        groups: Sequence[ClientGroup],
        settings: TrainSettings,
        *,
        clock: Clock,
        travels: Callable[[str], bool],
        progress: Progress | None = None,
    ) -> None:
        self.groups = list(groups)
        self.settings = settings
        self.clock = clock
        self.travels = travels
        self.progress = progress
        self._group_of = {c: group for group in groups for c in group.holders}
        for group in groups:
            group.progress = None if progress is None else partial(progress, "lower blocks")

    def ask(self, task: TaskName, payloads: Mapping[str, bytes]) -> dict[str, Reply]:
        """Run a task at clients of this process; see `Transport`."""
        handlers = {
            "fingerprint": self._fingerprint,
            "capacity": self._capacity,
            "assign": self._assign,
            "fit": self._fit,
            "signature": self._signature,
            "deliver": self._deliver,
            "evaluate": self._evaluate,
            "adapter": self._adapter,
            "save": self._save,
            "load": self._load,
        }
        replies: dict[str, Reply] = {}
        for group in self.groups:
            asked: dict[str, Message] = {}
            for client in sorted(set(payloads) & set(group.holders)):
                try:
                    asked[client] = read_request(task, payloads[client])
                except MessageError as error:
                    replies[client] = Failure(str(error))
            for part in self._parts(task, asked):
                replies |= self._isolated(handlers[task], group, part)
        for client in set(payloads) - set(self._group_of):
            replies[client] = Failure("unknown client")
        return replies

    def _parts(self, task: TaskName, asked: Mapping[str, Message]) -> list[Mapping[str, Message]]:
        """Which clients work together: all of a group, or one at a time for the slow twin.

        What is done with a whole group at once is done with those who were asked the same.
        """
        if task == "fit" and not self.settings.stacked:
            return [{client: message} for client, message in asked.items()]
        if task not in ASKED_ALIKE:
            return [asked] if asked else []
        alike: dict[str, dict[str, Message]] = {}
        for client, message in asked.items():
            told = {name: fact for name, fact in message.facts.items() if name not in ONES_OWN}
            alike.setdefault(json.dumps(told, sort_keys=True), {})[client] = message
        return list(alike.values())

    def _isolated(
        self,
        handler: Callable[[ClientGroup, Mapping[str, Message]], dict[str, Reply]],
        group: ClientGroup,
        asked: Mapping[str, Message],
    ) -> dict[str, Reply]:
        """Run a handler for all clients at once; if that fails, one by one to find who failed."""
        try:
            return handler(group, asked)
        except InputError:
            raise  # the user's settings are wrong for everybody
        except EXPECTED_FAILURES as error:
            if len(asked) == 1:
                return dict.fromkeys(asked, Failure(f"{type(error).__name__}: {error}"))
        replies: dict[str, Reply] = {}
        for client, message in asked.items():
            replies |= self._isolated(handler, group, {client: message})
        return replies

    def _fit(self, group: ClientGroup, asked: Mapping[str, Message]) -> dict[str, Reply]:
        number = int(next(iter(asked.values())).facts["round"])
        clock = Clock(self.clock.seed, number, self.clock.rounds)
        report = self.progress
        steps = None if report is None else partial(report, "training")
        measure = next(iter(asked.values())).facts.get("measure")
        shut = {c: _shut(group, message.facts.get("open")) for c, message in asked.items()}
        first = {c: Sent(self._outgoing(group, c)) for c in asked if c not in group.sent}
        facts = fit_group(group, sorted(asked), self.settings, clock, steps, measure)
        replies: dict[str, Reply] = dict.fromkeys(asked, Failure("training gave NaN or Inf"))
        for client, found in facts.items():
            count = len(group.holders[client].data.train)
            sent = self._outgoing(group, client)
            opened = {name: value for name, value in sent.items() if name not in shut[client]}
            told = {**found, "examples": count}
            if how := asked[client].facts.get("compress"):
                known = group.sent.get(client) or first[client]
                opened, form, known = Compression(**how).apply(Adapter(opened), known)
                group.sent[client] = known
                told |= {"form": form} if form else {}
            replies[client] = encode(opened, told)
        return replies

    def _signature(self, group: ClientGroup, asked: Mapping[str, Message]) -> dict[str, Reply]:
        facts = next(iter(asked.values())).facts
        settings = RelevanceSettings.model_validate(facts["settings"])
        clock = Clock(self.clock.seed, int(facts["round"]), self.clock.rounds)
        found = sign_group(group, sorted(asked), facts["kind"], settings, clock)
        return {
            client: encode({"signature": one.values}, one.facts()) for client, one in found.items()
        }

    def _outgoing(self, group: ClientGroup, client: str) -> Adapter:
        held = group.arms["held"]
        sent = whole_cores(held, client) if group.sends == "whole" else held.take(client)
        return sent.only(self.travels)

    def _deliver(self, group: ClientGroup, asked: Mapping[str, Message]) -> dict[str, Reply]:
        offers = {client: unpack_mixtures(message) for client, message in asked.items()}
        check_offers(group.arms["held"], offers, group.deliver, self.travels)
        one = group.shares == (1.0,) and all(len(found) <= 1 for found in offers.values())
        if group.deliver == "merge":
            taken = merge_held(group, offers, self.clock.seed)
        elif group.deliver == "global":
            taken = place_beside(group, offers)
        else:
            taken = (replace_held if one else choose_best)(group, offers)
        group.accepts.update({client: found.accept for client, found in taken.items()})
        mark_delivered(group, offers, taken)
        replies: dict[str, Reply] = {}
        for client, found in taken.items():
            sha256 = adapter_sha256(self._kept(group, client, offers[client]))
            facts = {"accept": found.accept, "pick": found.pick, "sha256": sha256}
            replies[client] = encode({}, facts)
        return replies

    def _kept(self, group: ClientGroup, client: str, offers: Sequence[Adapter]) -> Adapter:
        """What a client has of a mixture after it was delivered."""
        slot = group.arms["held"].slot
        if slot is not None:
            names = set(offers[0]) if offers else set()
            return slot.cohort.take(client).only(names.__contains__)
        if group.deliver == "merge" and offers:
            return offers[0]  # no longer in the adapter; the client names what it added
        held = self._outgoing(group, client)
        return held.only(set(offers[0]).__contains__) if offers else held

    def _fingerprint(self, group: ClientGroup, asked: Mapping[str, Message]) -> dict[str, Reply]:
        settings = FingerprintSettings.model_validate(next(iter(asked.values())).facts["settings"])
        report = self.progress
        steps = None if report is None else partial(report, "fingerprints")
        found = print_group(group, sorted(asked), settings, self.settings, self.clock, steps)
        return {
            client: encode(one.sketches, {"examples": one.examples, "norms": one.norms})
            for client, one in found.items()
        }

    def _capacity(self, group: ClientGroup, asked: Mapping[str, Message]) -> dict[str, Reply]:
        return {
            client: encode({}, tell_capacity(group, client, self.settings.batch))
            for client in asked
        }

    def _assign(self, group: ClientGroup, asked: Mapping[str, Message]) -> dict[str, Reply]:
        ranks = {client: message.facts["ranks"] for client, message in asked.items()}
        replies: dict[str, Reply] = {}
        with group.all_or_nothing():
            take_ranks(group, ranks, self.clock.seed)
            for client, message in asked.items():
                take_split(group, client, message.facts["point"])
            for number, (client, message) in enumerate(asked.items(), start=1):
                took = None
                if message.facts["trial"]:
                    took = trial_bytes(group, client, self.settings, self.clock.seed)
                replies[client] = encode({}, {"bytes": took})
                if self.progress:
                    self.progress("ranks", number, len(asked))
        return replies

    def _evaluate(self, group: ClientGroup, asked: Mapping[str, Message]) -> dict[str, Reply]:
        facts = next(iter(asked.values())).facts
        clients = sorted(asked)
        found: dict[str, dict[str, dict[str, Scores]]] = {}
        if facts["split"] == "validation":
            arms = {"members": group.arms[arm_in_use(group)]}
            if facts.get("beside"):
                arms["alone"] = final_cohort(group, facts["beside"], clients)
            scored = validate(group, list(arms.values()), clients)
            for fact, scores in zip(arms, scored, strict=True):
                found[fact] = {client: {client: scores[client]} for client in clients}
        else:
            cohort = final_cohort(group, facts["arm"], clients)
            written = None if self.progress is None else partial(self.progress, "answers")
            found["members"] = score_on_test(group, cohort, clients, written)
        return {
            client: encode({}, {fact: _told(own[client]) for fact, own in found.items()})
            for client in clients
        }

    def _adapter(self, group: ClientGroup, asked: Mapping[str, Message]) -> dict[str, Reply]:
        facts = next(iter(asked.values())).facts
        cohort = final_cohort(group, facts["arm"], sorted(asked))
        if facts.get("form") == "own":
            return {client: encode(own_adapter(cohort, client), {}) for client in asked}
        return {client: encode(whole_adapter(group.model, cohort, client), {}) for client in asked}

    def _save(self, group: ClientGroup, asked: Mapping[str, Message]) -> dict[str, Reply]:
        return {client: save_client(group, client) for client in asked}

    def _load(self, group: ClientGroup, asked: Mapping[str, Message]) -> dict[str, Reply]:
        load_clients(group, asked)
        return {client: encode({}, {}) for client in asked}
