"""Atlas, PEFT clients one by one and Flower's simulation at the same federation.

Every contender is a process of its own, one after another, free to use all cores. All start from
the same tensors, take the same batches and average adapters in the same way; if their losses
differ, there is no result. They take turns: a machine's speed may change within minutes, and only
what ran close together is compared.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from atlas.bench.federation_cases import CASE, FederationCase, find_cases, memory_ratio, run_clients
from atlas.bench.federation_cases import HOW as HOW_CLIENTS
from atlas.bench.federation_work import write_work
from atlas.bench.peers.rounds import Round, read_rounds
from atlas.bench.processes import QUIET, Bench, Row, Size, busy_note, need_psutil, run_watched
from atlas.data.clients import load_clients
from atlas.report.bench import draw_federation
from atlas.runs.events import Progress

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
FIGURES = ("seconds_round", "seconds_first_round", "peak_mb")
HOW = (
    "Seconds a round: median from the second round on. First round: from the start of the clock, "
    "after imports, to its end; reading, tokenising and loading the model are in it, and so is "
    "what Flower's worker processes need to start. Memory: private pages of the process tree and "
    "the largest set of shared ones. Rows hold medians over turns, ratios the median of each "
    "turn's own."
)


def run(size: Size, progress: Progress) -> Bench:
    """Measure all contenders of all cases that can be run here."""
    need_psutil()
    busy = busy_note()
    cases, notes = find_cases(size)
    turns: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="atlas-bench-") as folder:
        for case in cases:
            found, apart = run_case(case, Path(folder) / case.name, progress)
            turns += found
            notes.append(f"{case.about}. Losses lie at most {apart:.1e} apart.")
        more = run_clients(size, Path(folder) / CASE, progress)
    rows, by_turn = middle_rows(turns), find_ratios(turns)
    notes += [HOW_CLIENTS, HOW, f"By turn: {in_words(by_turn)}.", *busy]
    ratios = {name: round(statistics.median(found), 2) for name, found in by_turn.items()}
    return Bench(
        "federation",
        rows + more,
        ratios | memory_ratio(more),
        notes,
        partial(draw_federation, rows),
    )


def run_case(case: FederationCase, folder: Path, progress: Progress) -> tuple[list[Row], float]:
    """One row per contender and turn, and the largest difference of their losses."""
    work = folder / "work"
    write_work(work, case.config, load_clients(case.config))
    rows: list[Row] = []
    apart = 0.0
    for turn in range(1, case.turns + 1):
        rounds: dict[str, list[Round]] = {}
        for name in case.contenders:
            rounds[name], peak = run_contender(case, name, work, folder / str(turn), progress)
            place = {"case": case.name, "name": name, "turn": turn}
            rows.append({**place, **describe(rounds[name], peak)})
        apart = max(apart, check_losses(case, rounds))
    return rows, apart


def run_contender(
    case: FederationCase, name: str, work: Path, folder: Path, progress: Progress
) -> tuple[list[Round], int]:
    """The rounds and the peak memory of one contender's turn, whose logs go to `folder`."""
    folder.mkdir(exist_ok=True)
    log = folder / f"{name}.jsonl"
    peak = run_watched(
        ["-m", f"atlas.bench.peers.{PROGRAMS[name]}", str(work), str(log)],
        folder / f"{name}.log",
        {**QUIET, "FLWR_HOME": str(folder / "flwr")},
        lambda: progress(
            f"{case.name} {folder.name}/{case.turns}: {name}",
            len(read_rounds(log)),
            case.config.rounds,
        ),
    )
    return read_rounds(log), peak


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


def check_losses(case: FederationCase, rounds: Mapping[str, Sequence[Round]]) -> float:
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


def middle_rows(rows: Sequence[Row]) -> list[Row]:
    """One row per contender: its medians over turns."""
    own: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        own.setdefault((row["case"], row["name"]), []).append(row)
    return [
        {
            "case": case,
            "name": name,
            **{f: round(statistics.median(row[f] for row in turns), 3) for f in FIGURES},
            "turns": len(turns),
            "losses": turns[0]["losses"],
        }
        for (case, name), turns in own.items()
    ]


def find_ratios(rows: Sequence[Row]) -> dict[str, list[float]]:
    """The peers' figures divided by ours, turn by turn, for those that took part."""
    by_place = {(row["case"], row["name"], row["turn"]): row for row in rows}
    ratios: dict[str, list[float]] = {}
    for ratio, (case, peer, column) in RATIOS.items():
        for (where, name, turn), row in by_place.items():
            if (where, name) == (case, peer):
                ours = by_place[case, "atlas", turn]
                ratios.setdefault(ratio, []).append(row[column] / ours[column])
    return ratios


def in_words(by_turn: Mapping[str, Sequence[float]]) -> str:
    """Every ratio with its turns: `flower_round 4.10, 4.52; peft_round 4.31, 4.40`."""
    return "; ".join(
        f"{name} {', '.join(f'{one:.2f}' for one in found)}" for name, found in by_turn.items()
    )
