"""The client app of a deployment: thin, for Flower starts a process for every message.

It hands the message to the node's resident trainer and sends back what that answers.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from atlas.engines.flower.link import ask_trainer
from atlas.engines.flower.records import Parcel, pack, unpack

FOLDER = "folder"
"""The entry of a node's config that names its folder; see `config.node`."""


def asked(message: Message, context: Context) -> Message:
    """Answer one message."""
    parcel = unpack(message.content)
    try:
        answer = ask_trainer(Path(str(context.node_config[FOLDER])), parcel)
    except RuntimeError as error:
        count = len(parcel.payloads)
        answer = Parcel({"failed": [str(error)] * count}, [b""] * count)
    return Message(pack(answer), reply_to=message)


app = ClientApp()
app.query()(asked)
