"""What a node keeps of its clients from one process to the next, by run, client and round."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas.errors import InputError
from atlas.federation.exchange.message import MessageError, decode
from atlas.runs.files import safe_child, sync_folder, write_synced

FINISHED = 2
"""Rounds kept behind the one under way: a server goes on from one of its own last two."""
_ROUND = re.compile(r"[0-9]{4,9}")
_GRANT, _IDENTITY, _LIFE = "granted.json", "identity.txt", "life.json"


@dataclass(frozen=True)
class ClientDisk:
    """One client's states in one run.

    Attributes:
        folder: Where they lie, readable for the owner alone.
    """

    folder: Path

    @classmethod
    def open(cls, states: Path, run: str, client: str) -> ClientDisk:
        """The place of a client in a run; made when missing.

        Raises:
            InputError: The run's name is not one.
        """
        place = safe_child(safe_child(states, run), client)
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls(place)

    def save(self, number: int, state: bytes) -> None:
        """Keep the state of a round, under way or done, and of the two before it."""
        self._write(f"{number:04d}", state)
        for other in self._saved()[: -(FINISHED + 1)]:
            (self.folder / f"{other:04d}").unlink()

    def go_on(self, session: str, after: int) -> None:
        """Follow a life of the server; what is beyond the round it goes on from is given up.

        In the life that wrote it everything stays: a new trainer goes on where another died.
        """
        life = json.dumps([session, after]).encode()
        if self._read(_LIFE) == life:
            return
        for number in self._saved():
            if number > after:
                (self.folder / f"{number:04d}").unlink()
        self._write(_LIFE, life)

    def newest(self) -> bytes | None:
        """The newest readable state; None if there is none."""
        for number in reversed(self._saved()):
            state = (self.folder / f"{number:04d}").read_bytes()
            try:
                decode(state)
            except MessageError:
                continue
            return state
        return None

    def grant(self, request: bytes) -> None:
        """Keep what the client was granted before the first round."""
        facts = {**decode(request).facts, "trial": False}
        self._write(_GRANT, json.dumps(facts).encode())

    @property
    def granted(self) -> dict[str, Any] | None:
        """What it was granted; None where ranks are fixed."""
        found = self._read(_GRANT)
        return None if found is None else json.loads(found)

    def check_identity(self, identity: str) -> None:
        """Remember what a run was begun with, and refuse to go on with anything else.

        Raises:
            InputError: It is something else.
        """
        known = self._read(_IDENTITY)
        if known is None:
            self._write(_IDENTITY, identity.encode())
        elif known.decode() != identity:
            raise InputError(
                "its data or weights are others than this run was begun with; a run goes on only "
                "with those"
            )

    def _saved(self) -> list[int]:
        names = (path.name for path in self.folder.iterdir())
        return sorted(int(name) for name in names if _ROUND.fullmatch(name))

    def _write(self, name: str, data: bytes) -> None:
        draft = self.folder / f".tmp-{name}-{os.getpid()}"
        draft.unlink(missing_ok=True)
        write_synced(draft, data)
        draft.replace(self.folder / name)
        sync_folder(self.folder)

    def _read(self, name: str) -> bytes | None:
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None
