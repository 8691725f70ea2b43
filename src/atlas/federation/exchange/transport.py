"""The one seam between the round loop and wherever clients run: the contract of every engine.

`Transport` says what holds for every task, `CONTRACTS` what each asks, does and answers, `contents`
what is in its messages. An engine is written from these. `tests/engines/test_contract.py` holds
every engine to them, and what the server really sends.

From one ask to the next a client keeps to itself: the adapter it `held`; a `shadow` of it that is
trained on the same batches and given no mixture, where the run compares with training alone; a
`personal` adapter, where the strategy trains one beside the held one; dense changes, where mixtures
are merged; what was delivered to stand beside the held adapter, and for which modules; optimiser
moments, where settings keep them; its ranks; where its blocks are split; and what the server has of
its adapter, where replies are compressed. All of its adapters start as
`adapters.adapter.initial_adapter`.

Where a `fit` request says `compress`, an engine hands the tensors it would send and what the client
remembers (`compression.Sent`; at first what it would have sent before the fit) to
`compression.Compression.apply`, sends what that returns with `form` among the facts, and keeps the
rest; after `deliver` it remembers what `Sent.delivered` makes of the offer and the share taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from atlas.federation.exchange.contents import (
    AdapterRequest,
    AssignReply,
    AssignRequest,
    CapacityReply,
    Content,
    DeliverReply,
    DeliverRequest,
    EvaluateReply,
    EvaluateRequest,
    FingerprintReply,
    FingerprintRequest,
    FitReply,
    FitRequest,
    SavedState,
    SignatureReply,
    SignatureRequest,
)
from atlas.federation.exchange.message import Message, MessageError, decode, printable
from atlas.federation.exchange.tensor_names import (
    FITTED,
    HANDED_OVER,
    OFFERS,
    SIGNED,
    SKETCHES,
    STATE,
)

Direction = Literal["up", "down"]
TaskName = Literal[
    "fingerprint",
    "capacity",
    "assign",
    "fit",
    "signature",
    "deliver",
    "evaluate",
    "adapter",
    "save",
    "load",
]


@dataclass(frozen=True)
class Failure:
    """A client that could not do what it was asked; a value, never an exception.

    The reason is made short and printable, whoever gave it.
    """

    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", printable(str(self.reason)))


Reply = bytes | Failure


class Transport(Protocol):
    """Asks clients to do a named task.

    - Everybody who is asked is answered for and nobody else, in any order; a client that is left
      out counts as failed. `ask` returns when all have answered or failed. What comes later is
      dropped, and never taken for the answer to another ask.
    - Each client acts on its own payload and its own state. Who else is asked, and in which order,
      changes neither; where clients share a forward pass, it may change the last digits.
    - Nothing but state, request, settings and run seed decides what is answered.
    - A client that fails stops nobody, and its state is what it was before (`fit` has an
      exception). It fails if it or the task is unknown, if the request is not as `CONTRACTS` has
      it or does not fit the client's sizes, and for what its task says. Nothing is raised but what
      is wrong for everybody: settings (`InputError`), or a bug.
    - Adapters have the names, shapes and dtype they have in `adapters.adapter`.
      In `fit` and `deliver` there is no tensor that `Strategy.travels` keeps at the client.
    - Whoever asks counts the bytes of payloads and replies. A client counts only what its split
      steps send: as if each were one message of `training.split` up, and one down.
    """

    def ask(self, task: TaskName, payloads: Mapping[str, bytes]) -> dict[str, Reply]:
        """Run `task` at every client named, with its own payload."""
        ...


@dataclass(frozen=True)
class TaskContract:
    """What a client is asked, what it does, and what it answers.

    Attributes:
        request: What the server sends.
        reply: What the client sends back.
        does: What the client does.
        changes: What of its state is other than before; empty for nothing.
        fails: Why it may fail, beside what may befall every task.
        again: What the same request does a second time: the `same` as once, to state and answer,
            or it `goes on` from where the first left the client. Then no engine may ever repeat
            it by itself, not even if the answer was lost.
    """

    request: Content
    reply: Content
    does: str
    changes: str = ""
    fails: str = ""
    again: Literal["same", "goes on"] = "same"


CONTRACTS: Mapping[TaskName, TaskContract] = {
    "fingerprint": TaskContract(
        Content(FingerprintRequest),
        Content(FingerprintReply, SKETCHES),
        does="Tells what its training data is like by gradients at the held adapter; asked before "
        "round 1, of all clients. A warm-up of the settings is trained aside and thrown away.",
        fails="The backbone has fewer blocks than the settings look at.",
    ),
    "capacity": TaskContract(
        Content(),
        Content(CapacityReply),
        does="Tells what one training batch can hold at most; asked before ranks are granted.",
    ),
    "assign": TaskContract(
        Content(AssignRequest),
        Content(AssignReply),
        does="Starts again with these ranks and this split point; asked before round 1, and "
        "without a trial when a run is resumed, before `load`. A trial step is thrown away.",
        changes="Every adapter is the initial one of the new ranks; no dense changes or moments.",
        fails="There is not a rank from 1 to the smaller width for each module; the point leaves "
        "the server no block; the trial step cannot be made.",
    ),
    "fit": TaskContract(
        Content(FitRequest),
        Content(FitReply, FITTED),
        does="Trains the held adapter, and its shadow and personal twin on the same batches. "
        "Answers with all of the held adapter that travels, compressed if asked to.",
        changes="Held, shadow and personal adapter; moments, where they are kept; what it sent, "
        "where it is compressed.",
        fails="Training cannot be done, or gave the held adapter NaN or Inf. In the latter case it "
        "and its moments stay what they were, but a twin that trained well has moved on.",
        again="goes on",
    ),
    "signature": TaskContract(
        Content(SignatureRequest),
        Content(SignatureReply, SIGNED),
        does="Tells what it is like, as one vector that can be compared with everybody's; asked "
        "after `fit`, in every round, of those who fitted, where the strategy says so. By "
        "`gradient`: the mean gradient of its answers' loss with respect to the last "
        "down-projection of the probe, over examples drawn for this round and client, sketched, "
        "clipped, noised. By `representation`: the centred Gram matrix of its held adapter's "
        "features of the anchor texts, its upper triangle, entries off the diagonal times "
        "sqrt(2), of length one.",
        fails="There is neither a probe nor anchor texts.",
    ),
    "deliver": TaskContract(
        Content(DeliverRequest, OFFERS),
        Content(DeliverReply),
        does="Takes one of its mixtures, also if it did not fit in this round. Each offer has all "
        "that travels, in the client's own shapes; a mixture to merge has any rank, A and B of a "
        "module the same. One offer to replace or to merge is taken whole (accept 1). If there are "
        "several, the loss on validation data picks the best, ties to the first. Under `keep_best` "
        "that one is taken whole unless the held adapter is better by `keep_margin` standard "
        "errors; then, or if relation.eta is `auto`, the best of all `SHARES` of all offers is "
        "taken, ties to share 0, then to 1, then to the smaller. Of no offers nothing is taken "
        "(accept 0). Where mixtures stand beside adapters the one offer is taken whole.",
        changes="What travels of the held adapter is that share of the mixture. Merging adds all "
        "of it to the dense changes and starts the factors again; only the head is replaced. What "
        "stands beside the held adapter is replaced, and the adapter stays.",
        fails="There is more than one mixture to merge or to stand beside the adapter.",
        again="goes on",
    ),
    "evaluate": TaskContract(
        Content(EvaluateRequest),
        Content(EvaluateReply),
        does="Scores an adapter: what it would answer with now (`held`: its personal adapter if "
        "there is one) on validation data; what it ends with (`final`) or would have without the "
        "others (`alone`: the shadow) on test data, which nothing else ever reads. Under "
        "`keep_best` it ends with the shadow if that is clearly better on validation data. Asked "
        "for it, it scores the shadow on validation data beside what it holds.",
        fails="`alone` is asked of a client without a shadow, by itself or beside another.",
    ),
    "adapter": TaskContract(
        Content(AdapterRequest),
        Content(tensors=HANDED_OVER),
        does="Hands over what it ends with, parts that never travel included. As A and B dense "
        "changes are factored with it, and what stands beside it is put next to it, so its ranks "
        "may be others than the client's.",
        fails="A and B are asked for, but a gate looks at the token: no A and B come to the same.",
    ),
    "save": TaskContract(
        Content(),
        Content(SavedState, STATE),
        does="Hands over its private state, for a checkpoint; nobody but its engine reads it. "
        "Ranks and split point are not in it: settings and `assign` tell them.",
    ),
    "load": TaskContract(
        Content(SavedState, STATE),
        Content(),
        does="Takes back what it once saved, byte for byte, in this process or another.",
        changes="Everything that `save` saves is as it was then, also what was not there yet.",
        fails="The state is of other ranks, labels or adapters than the client's.",
    ),
}


def read_request(task: TaskName, payload: bytes) -> Message:
    """A payload as the client that is asked must take it.

    Raises:
        MessageError: If it is no request of that task.
    """
    if task not in CONTRACTS:
        raise MessageError(f"unknown task {task!r}")
    message = decode(payload)
    CONTRACTS[task].request.check(message)
    return message
