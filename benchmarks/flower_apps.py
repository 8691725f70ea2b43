"""Server apps that Flower starts for `flower_overhead.py`.

One notes every exchange of a run's server with its nodes, the other one sends as many bytes again
in the same order.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atlas.engines.flower.post import Post
from atlas.engines.flower.records import Parcel
from atlas.engines.flower.server_app import server_app
from atlas.federation.exchange.transport import Failure
from atlas.jobs.deploy.serve import HOME, make_run

ROUND = ("fit", "deliver")
"""What clients are asked in every round: two messages each."""


def notes_of(run: str) -> str:
    """The file of a run's exchanges."""
    return f"{run}-exchanges.jsonl"


class NotingPost(Post):
    """Notes how long exchanges took, and how many bytes went to and came from which node."""

    def exchange(
        self, parcels: Mapping[str, tuple[int, Parcel]], about: str
    ) -> dict[str, Parcel | Failure]:
        """As `Post.exchange`."""
        began = time.perf_counter()
        answers = super().exchange(parcels, about)
        seconds = time.perf_counter() - began
        sizes = {
            name: [node, size_of(parcel), size_of(answers[name])]
            for name, (node, parcel) in parcels.items()
        }
        note({"about": about, "seconds": seconds, "sizes": sizes})
        return answers


def size_of(parcel: Parcel | Failure) -> int:
    """Bytes of payloads and of what goes with them."""
    if isinstance(parcel, Failure):
        raise RuntimeError(f"nothing to compare with: {parcel.reason}")
    return sum(map(len, parcel.payloads)) + len(json.dumps(dict(parcel.facts)))


_RUN = {"name": ""}


def note(entry: Mapping[str, Any]) -> None:
    """Add an exchange to the file of the run under way."""
    with (Path(os.environ[HOME]) / notes_of(_RUN["name"])).open("a") as file:
        file.write(json.dumps(entry) + "\n")


def make_noted_run(post: Post, config: Mapping[str, object]) -> None:
    """A run as ever, its exchanges noted."""
    _RUN["name"] = str(config["run"])
    make_run(NotingPost(post.grid, post.run, post.task), config)


def send_again(post: Post, config: Mapping[str, object]) -> None:
    """What was sent in the rounds of a noted run, to the same nodes in the same order."""
    lines = (Path(os.environ[HOME]) / notes_of(str(config["run"]))).read_text().splitlines()
    _RUN["name"] = "bare"
    again = NotingPost(post.grid, post.run, post.task, deadline=120.0)
    for entry in map(json.loads, lines):
        if entry["about"] in ROUND:
            parcels = {
                name: (node, Parcel({"back": back}, [os.urandom(there)]))
                for name, (node, there, back) in entry["sizes"].items()
            }
            again.exchange(parcels, entry["about"])


noting_server = server_app(make_noted_run)
bare_server = server_app(send_again)
