"""Apps that Flower starts for `flower_overhead.py`: bare ones, and one that loads its model."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from atlas.engines.flower.client_app import FOLDER
from atlas.engines.flower.post import Post
from atlas.engines.flower.records import Parcel, pack, unpack
from atlas.engines.flower.server_app import server_app

BYTES = "ATLAS_BENCH_BYTES"
ROUNDS = 3


def echo(message: Message, context: Context) -> Message:
    """Send back what came: Flower's own latency for so many bytes."""
    return Message(pack(unpack(message.content)), reply_to=message)


def load_and_answer(message: Message, context: Context) -> Message:
    """Do what a trainer does, in the process that Flower has started for this message."""
    from atlas.jobs.deploy.trainer import NodeTrainer

    trainer = NodeTrainer(Path(str(context.node_config[FOLDER])))
    return Message(pack(trainer.answer(unpack(message.content))), reply_to=message)


def send_bytes(post: Post, config: Mapping[str, object]) -> None:
    """Two messages to every node in each round, and how long the rounds took."""
    size, home = int(os.environ[BYTES]), Path(os.environ["ATLAS_DEPLOY"])
    took = []
    nodes = sorted(post.grid.get_node_ids())
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for payload in (os.urandom(size), os.urandom(size)):
            parcels = {str(node): (node, Parcel({}, [payload])) for node in nodes}
            replace(post, deadline=120.0).exchange(parcels, "bare")
        took.append(time.perf_counter() - began)
    (home / "bare.json").write_text(json.dumps(took))


bare_client = ClientApp()
bare_client.query()(echo)
loading_client = ClientApp()
loading_client.query()(load_and_answer)
bare_server = server_app(send_bytes)
