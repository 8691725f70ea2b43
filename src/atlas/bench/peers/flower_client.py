"""The client of the Flower contender: PEFT training behind Flower's messages.

A module of its own, so that the processes of the simulation import it instead of being sent its
code, and keep the model from one message to the next.
"""

from __future__ import annotations

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from atlas.bench.peers.training import trainer_of
from atlas.federation.adapters.adapter import body_of, heads_of


def train(message: Message, context: Context) -> Message:
    """One client's round; its head stays with it."""
    torch.set_num_threads(1)  # as many clients at a time as there are cores
    config = message.content["config"]
    trainer = trainer_of(Path(str(config["folder"])))
    place = int(context.node_config["partition-id"])
    client = list(trainer.work.clients)[place]
    start = {**trainer.start, **message.content["arrays"].to_torch_state_dict()}
    if "head" in context.state:
        start |= context.state["head"].to_torch_state_dict()
    loss = trainer.fit(client, int(config["server-round"]), start)
    context.state["head"] = ArrayRecord(heads_of(trainer.trained()))
    examples = len(trainer.work.clients[client].examples)
    told = MetricRecord({"num-examples": examples, "loss": loss, "place": place})
    content = RecordDict({"arrays": ArrayRecord(body_of(trainer.trained())), "metrics": told})
    return Message(content=content, reply_to=message)


app = ClientApp()
app.train()(train)
