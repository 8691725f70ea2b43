"""One worker of a study: finishes the runs it reads from standard input, one after another.

It says on standard output, a JSON object a line, which run it begins, ends or was stopped in, and
each round. A parent that is gone breaks that pipe, and so ends the worker at its next round.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from atlas.config.federation import FederationConfig
from atlas.errors import InputError
from atlas.jobs.study.compare import finish_run


def main() -> None:
    """Do what standard input says; the exit code is 2 where a run cannot be done."""
    for job in json.loads(sys.stdin.read()):
        say = partial(_say, job["number"])
        say("began")
        config = FederationConfig.model_validate_json(json.dumps(job["config"]))
        try:
            finished = finish_run(config, Path(job["place"]), partial(_watch, say), None)
        except InputError as error:
            say(f"failed: {error}")
            sys.exit(2)
        if finished.summary is None:
            say("stopped")
            return
        say("ended")


def _watch(say: partial[None], event: str, fields: Mapping[str, object]) -> None:
    if event == "round_finished":
        say(f"round {fields['round']}")


def _say(number: int, what: str) -> None:
    sys.stdout.write(json.dumps({"number": number, "said": what}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
