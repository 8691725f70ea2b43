"""Client apps that Flower starts for `flower_overhead.py`, a process for every message.

The bare one must import nothing that Flower does not need: a file of its own, without torch.
"""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from atlas.engines.flower.records import Parcel, pack, unpack


def send_back(message: Message, context: Context) -> Message:
    """As many bytes as are asked for: Flower's own latency."""
    parcel = unpack(message.content)
    return Message(pack(Parcel({}, [os.urandom(parcel.number("back"))])), reply_to=message)


def load_and_answer(message: Message, context: Context) -> Message:
    """Do what a trainer does, in the process that Flower has started for this message."""
    from atlas.engines.flower.client_app import FOLDER
    from atlas.jobs.deploy.trainer import NodeTrainer

    trainer = NodeTrainer(Path(str(context.node_config[FOLDER])))
    return Message(pack(trainer.answer(unpack(message.content))), reply_to=message)


bare_client = ClientApp()
bare_client.query()(send_back)
loading_client = ClientApp()
loading_client.query()(load_and_answer)
