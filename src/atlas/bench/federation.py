"""Atlas, PEFT clients one by one and Flower's simulation at the same federation.

Every contender is a process of its own, one after another, free to use all cores. All start from
the same tensors, take the same batches and average adapters in the same way; if their losses
differ, there is no result.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from atlas.bench.federation_cases import Case, find_cases
from atlas.bench.federation_clients import CASE, memory_ratio, run_clients
from atlas.bench.federation_clients import HOW as HOW_CLIENTS
from atlas.bench.federation_work import write_work
from atlas.bench.peers.rounds import Round, read_rounds
from atlas.bench.processes import QUIET, busy_note, need_psutil, run_watched
from atlas.bench.result import Bench, Progress, Row, Size
from atlas.data.clients import load_clients
from atlas.report.bench_plots import draw_federation

PROGRAMS = {"atlas": "atlas_run", "peft": "peft_loop", "flower": "flower_simulation"}
TOLERANCE = 1e-3
"""How far losses of one client and round may lie apart."""
RATIOS = {
    "flower_round": ("encoder", "flower", "seconds_round"),
    "flower_first_round": ("encoder", "flower", "seconds_first_round"),
    "flower_memory": ("encoder", "flower", "peak_mb"),
    "peft_round": ("encoder", "peft", "seconds_round"),
    "smollm_peft_epoch": ("smollm", "peft", "seconds_round"),
}
"""Name to case, peer and column; the peer's figure divided by ours, so that more is better."""
HOW = (
    "Seconds a round: median from the second round on. First round: from the start of the clock, "
    "after imports, to its end; reading, tokenising and loading the model are in it, and so is "
    "what Flower's worker processes need to start. Memory: private pages of the process tree and "
    "the largest set of shared ones."
)


def run(size: Size, progress: Progress) -> Bench:
    """Measure all contenders of all cases that can be run here."""
    need_psutil()
    busy = busy_note()
    cases, notes = find_cases(size)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="atlas-bench-") as folder:
        for case in cases:
            found, apart = run_case(case, Path(folder) / case.name, progress)
            rows += found
            notes.append(f"{case.about}. Losses lie at most {apart:.1e} apart.")
        more = run_clients(size, Path(folder) / CASE, progress)
    notes += [HOW_CLIENTS, HOW, *busy]
    ratios = find_ratios(rows) | memory_ratio(more)
    return Bench("federation", rows + more, ratios, notes, partial(draw_federation, rows))


def run_case(case: Case, folder: Path, progress: Progress) -> tuple[list[Row], float]:
    """One row per contender, and the largest difference of their losses."""
    write_work(folder, case.config, load_clients(case.config))
    rounds: dict[str, list[Round]] = {}
    rows: list[Row] = []
    for name in case.contenders:
        log = folder / f"{name}.jsonl"

        def look(name: str = name, log: Path = log) -> None:
            progress(f"{case.name}: {name}", len(read_rounds(log)), case.config.rounds)

        peak = run_watched(
            ["-m", f"atlas.bench.peers.{PROGRAMS[name]}", str(folder), str(log)],
            folder / f"{name}.log",
            {**QUIET, "FLWR_HOME": str(folder / "flwr")},
            look,
        )
        rounds[name] = read_rounds(log)
        rows.append({"case": case.name, "name": name, **describe(rounds[name], peak)})
    return rows, check_losses(case, rounds)


def describe(rounds: Sequence[Round], peak: int) -> dict[str, object]:
    """The figures of one contender."""
    ends = [one.seconds for one in rounds]
    later = [end - before for before, end in zip(ends, ends[1:], strict=False)]
    return {
        "seconds_round": round(statistics.median(later), 3),
        "seconds_first_round": round(ends[0], 3),
        "peak_mb": round(peak / 2**20),
        "losses": [round(statistics.fmean(one.losses.values()), 4) for one in rounds],
    }


def check_losses(case: Case, rounds: Mapping[str, Sequence[Round]]) -> float:
    """The largest difference to our losses, over clients, rounds and contenders.

    Raises:
        RuntimeError: If a contender did other work than ours.
    """
    ours, *others = case.contenders
    largest = 0.0
    for name in others:
        if len(rounds[name]) != len(rounds[ours]):
            raise RuntimeError(
                f"{case.name}: {name} made {len(rounds[name])} rounds, {ours} {len(rounds[ours])}"
            )
        for mine, theirs in zip(rounds[ours], rounds[name], strict=True):
            if mine.losses.keys() != theirs.losses.keys():
                raise RuntimeError(f"{case.name}: {name} trained other clients than {ours}")
            for client, loss in mine.losses.items():
                apart = abs(loss - theirs.losses[client])
                if not apart <= TOLERANCE:  # also where one of them is not a number
                    raise RuntimeError(
                        f"{case.name}: {name} did not do the same work: in round {mine.round} the "
                        f"loss of {client} is {theirs.losses[client]:.5f}, with {ours} {loss:.5f}; "
                        f"allowed difference: {TOLERANCE}"
                    )
                largest = max(largest, apart)
    return largest


def find_ratios(rows: Sequence[Row]) -> dict[str, float]:
    """The peers' figures divided by ours, for those that took part."""
    by_name = {(row["case"], row["name"]): row for row in rows}
    return {
        ratio: round(by_name[case, peer][column] / by_name[case, "atlas"][column], 2)
        for ratio, (case, peer, column) in RATIOS.items()
        if (case, peer) in by_name
    }
