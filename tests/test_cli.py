"""The verbs as a user types them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from atlas import cli

TINY = [
    "demo", "backbone.name=tiny", "rounds=1", "data.train=16", "data.validation=8",
    "data.test=12", "data.clients_per_task=1", "threads=1",
]  # fmt: skip


@pytest.fixture
def atlas(monkeypatch, capsys, tmp_path):
    """Runs the command line in an empty folder; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["atlas", *arguments])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        found = capsys.readouterr()
        return code, found.out, found.err

    return call


HEAVY = ["torch", "transformers", "peft", "matplotlib", "sklearn", "numpy", "pydantic"]


def answer_alone(option):
    """What `atlas` answers in a process of its own, and which heavy libraries that imports."""
    code = (
        f"import sys; sys.argv = ['atlas', {option!r}]\n"
        "from atlas import cli\n"
        "try:\n    cli.main()\nexcept SystemExit as end:\n    print('code:', end.code or 0)\n"
        f"print('heavy:', [m for m in {HEAVY} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_help_imports_nothing_heavy():
    out = answer_alone("--help")
    assert "heavy: []" in out
    for verb in ("run", "resume", "show", "export", "predict", "eval", "doctor"):
        assert verb in out
    assert "--version" in out


def test_version_imports_nothing_heavy():
    assert answer_alone("--version") == "atlas 0.1.0\ncode: 0\nheavy: []\n"


def test_no_verb_shows_the_help(atlas):
    code, out, err = atlas()
    assert code == 2
    assert "Usage" in out + err


def test_a_run_and_all_that_can_be_done_with_it(atlas, tmp_path):
    code, out, err = atlas("run", *TINY, "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert summary["strategy"] == "atlas"
    assert "round 1/1" in err

    code, out, _ = atlas("show", "demo", "--json")
    assert json.loads(out) == summary
    code, out, _ = atlas("show", "demo")
    assert "federated" in out
    assert "paraphrase-1" in out
    code, out, _ = atlas("show", "--json")
    assert [row["run"] for row in json.loads(out)] == ["demo"]

    code, out, _ = atlas("predict", "demo", "--client", "sentiment-1", "A fine day.", "--json")
    answer = json.loads(out)
    assert answer["answer"] in {"negative", "positive"}
    assert sum(answer["probabilities"].values()) == pytest.approx(1.0, abs=1e-6)

    lines = [{"sentence": f"The day was {w}.", "label": i % 2} for i, w in enumerate("abcd")]
    (tmp_path / "days.jsonl").write_text("\n".join(map(json.dumps, lines)))
    code, out, _ = atlas("eval", "demo", "days.jsonl", "--client", "sentiment-1", "--json")
    found = json.loads(out)
    assert found["examples"] == 4 and found["accuracy"] <= 1
    code, out, _ = atlas("eval", "demo", "days.jsonl", "--client", "sentiment-1")
    told = dict(line.split() for line in out.splitlines())
    assert told["accuracy"] == f"{100 * found['accuracy']:.1f}"
    assert told["loss"] == f"{found['loss']:.3f}"

    code, out, _ = atlas("export", "demo", "--client", "order-1", "--to", "mine")
    assert code == 0
    assert (tmp_path / "mine" / "adapter_config.json").exists()
    code, _, err = atlas("export", "demo", "--client", "order-1", "--to", "mine")
    assert code == 2
    assert "exists already" in err
    code, _, _ = atlas("export", "demo", "--client", "order-1", "--to", "merged", "--merged")
    assert (tmp_path / "merged" / "model.safetensors").exists()

    code, out, _ = atlas("resume", "demo", "--json")
    assert json.loads(out)["adapters_sha256"] == summary["adapters_sha256"]


def test_plain_run_ends_with_the_table_and_where_things_are(atlas):
    code, out, _ = atlas("run", *TINY)
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    header = next(row for row in rows if row[:1] == ["client"])
    assert header[:2] == ["client", "task"]
    assert header[2:] == ["ranks", "majority", "alone", "federated", "gain", "up", "down"]
    assert "atlas, 1 round, " in out
    end = {line.partition(":")[0]: line.partition(":")[2].strip() for line in out.splitlines()[-5:]}
    assert end["run folder"] == "runs/demo"
    assert end["report"].startswith("runs/demo/report.html ")
    assert Path("runs/demo/report.html").stat().st_size > 50_000
    assert end["plots"].startswith("runs/demo/plots (") and "clients.png" in end["plots"]
    assert end["adapters"].startswith("runs/demo/adapters ")
    assert end["next"].startswith("atlas export runs/demo --client ")
    said = " ".join(out.split())
    assert "With 12 test examples a client, one score is known to about ±" in said
    assert "gain: federated minus alone" in said
    shown = atlas("show", "demo")[1]
    assert shown.splitlines()[-5:] == out.splitlines()[-5:]
    Path("runs/demo/report.html").unlink()
    assert "report:" not in atlas("show", "demo")[1]
    code, out, _ = atlas("report", "demo", "--json")
    assert code == 0 and json.loads(out)["missing"] == []
    assert atlas("report", "nobody")[0] == 2
    assert atlas("run", *TINY, "report=false", "name=quiet")[0] == 0
    assert not Path("runs/quiet/report.html").exists()


def test_doctor(atlas):
    code, out, _ = atlas("doctor", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["core"]["torch"].startswith("2.13")
    assert found["embedded_backbone"] is True
    assert found["extras"]["hub"]["unlocks"]
    code, out, _ = atlas("doctor")
    assert code == 0
    assert "for what is to come" in out


GOOD = '{"text": "a good thing", "label": 1}\n{"text": "a bad thing", "label": 0}\n' * 10
OWN = """
backbone: {{name: tiny}}
tasks: {{mood: {{text: [text], labels: [bad, good]}}}}
clients:
  - {{id: ann, task: {task}, data: {file}}}
"""

CHAT = """
tasks: {chat: {kind: causal, text: [question], label: answer, metric: exact_match}}
clients: [{id: ann, task: chat, data: chat.jsonl}]
backbone: {max_new_tokens: 4}
name: chat
rounds: 1
threads: 1
"""
ASKED = "".join(f'{{"question": "who is {i}?", "answer": "number {i}"}}\n' for i in range(20))

BAD_RUNS = {
    "unknown preset": (["nowhere"], None, ["nowhere", "presets: demo"]),
    "unknown key": (["demo", "train.learning_rate=1"], None, ["train.learning_rate", "train.lr"]),
    "wrong type": (["demo", "rounds=many"], None, ["rounds", "many"]),
    "out of range": (["demo", "sample=1.5"], None, ["sample", "1.5"]),
    "negative": (["demo", "seed=-1"], None, ["seed", "-1"]),
    "bad choice": (["demo", "device=tpu"], None, ["device", "tpu", "cpu", "cuda"]),
    "no equals sign": (["demo", "rounds"], None, ["rounds", "key=value"]),
    "unknown kind": (["demo", "kind=poem"], None, ["kind", "poem", "federation"]),
    "memory kind": (["demo", "kind=memory"], None, ["strategy: unknown key", "allowed: kind"]),
    "unknown size": (["demo", "size=huge"], None, ["size", "huge", "quick", "full"]),
    "unknown strategy": (["demo", "strategy=fedvag"], None, ["fedvag", "fedavg"]),
    "no such backbone": (["demo", "backbone.name=foo"], None, ["error: backbone.name: ", "'foo'"]),
    "no such dealt backbone": (
        ["demo", "backbone.deal=[tiny,foo]"], None, ["error: backbone.deal: ", "'foo'"]),
    "no such device": (
        [*TINY, "ranks.devices=[foo]", "ranks.method=uniform"], None,
        ["error: ranks.devices: unknown device 'foo'"]),
    "two lengths": (["demo", "train.steps=3"], None, ["train", "epochs", "steps"]),
    "unknown task": (["demo", "data.tasks=[sentimant]"], None, ["sentimant", "sentiment"]),
    "unknown backbone": (["demo", "backbone.name=no/such"], None, ["no/such", "allow_hub"]),
    "too many blocks": (["demo", "backbone.name=tiny", "adapter.blocks=99"], None, ["99", "tiny"]),
    "text too long": (
        ["demo", "backbone.name=tiny", "backbone.max_length=4096"], None,
        ["backbone.max_length", "4096"]),
    "answers too long": (
        ["own.yaml", "backbone.name=tiny-causal", "backbone.max_new_tokens=4096"],
        {"own.yaml": CHAT, "chat.jsonl": ASKED},
        ["backbone.max_new_tokens", "4096"]),
    "unknown module": (
        ["demo", "backbone.name=tiny", "adapter.modules=[qurey]"], None, ["qurey", "query"]),
    "rank of nobody": (
        ["demo", "backbone.name=tiny", "adapter.ranks.eve=4"], None, ["adapter.ranks.eve"]),
    "rank too large": (
        ["demo", "backbone.name=tiny", "adapter.rank=500"], None, ["adapter.rank", "500"]),
    "shadow needed": (["demo", "keep_best=true", "alone=false"], None, ["alone", "keep_best"]),
    "broken yaml": (["own.yaml"], {"own.yaml": "rounds: [1"}, ["own.yaml"]),
    "not a mapping": (["own.yaml"], {"own.yaml": "- 1\n"}, ["own.yaml"]),
    "no data file": (
        ["own.yaml"], {"own.yaml": OWN.format(task="mood", file="gone.jsonl")}, ["gone.jsonl"]),
    "broken json line": (
        ["own.yaml"],
        {"own.yaml": OWN.format(task="mood", file="d.jsonl"), "d.jsonl": GOOD + "{oops\n"},
        ["d.jsonl:21"]),
    "missing field": (
        ["own.yaml"],
        {"own.yaml": OWN.format(task="mood", file="d.jsonl"), "d.jsonl": GOOD + '{"label": 1}\n'},
        ["d.jsonl:21", "text"]),
    "strange label": (
        ["own.yaml"],
        {"own.yaml": OWN.format(task="mood", file="d.jsonl"),
         "d.jsonl": GOOD + '{"text": "x y", "label": 7}\n'},
        ["d.jsonl:21", "7", "bad", "good"]),
    "too few examples": (
        ["own.yaml"],
        {"own.yaml": OWN.format(task="mood", file="d.jsonl"),
         "d.jsonl": '{"text": "x y", "label": 1}\n'},
        ["ann", "1"]),
    "unknown client task": (
        ["own.yaml"],
        {"own.yaml": OWN.format(task="mod", file="d.jsonl"), "d.jsonl": GOOD},
        ["mod", "mood"]),
    "no data folder": (
        ["demo", "data.source=files", "data.path=nowhere", "data.tasks=[sst2]"], None, ["nowhere"]),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(BAD_RUNS))
def test_bad_input_exits_with_2_and_says_what_is_wrong(atlas, tmp_path, case):
    arguments, files, words = BAD_RUNS[case]
    for name, text in (files or {}).items():
        (tmp_path / name).write_text(text)
    code, out, err = atlas("run", *arguments)
    assert code == 2, err
    assert err.startswith("error: ")
    for word in words:
        assert word in err, (word, err)
    assert not (tmp_path / "runs").exists(), "bad input leaves no run behind"


def test_files_are_found_from_the_config_and_later_from_anywhere(atlas, tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "own.yaml").write_text(CHAT)
    (tmp_path / "sub" / "chat.jsonl").write_text(ASKED)
    code, _, err = atlas("run", "sub/own.yaml", "backbone.name=tiny-causal")
    assert code == 0, err
    (tmp_path / "runs" / "chat" / "summary.json").unlink()
    monkeypatch.chdir(tmp_path / "sub")
    code, out, err = atlas("resume", "../runs/chat", "--json")
    assert code == 0, err
    code, out, _ = atlas("predict", "../runs/chat", "--client", "ann", "who is 3?", "--json")
    assert code == 0
    assert isinstance(json.loads(out)["answer"], str)


def test_predict_prompts_as_training_did(atlas, tmp_path, monkeypatch):
    (tmp_path / "own.yaml").write_text(CHAT)
    (tmp_path / "chat.jsonl").write_text(ASKED)
    assert atlas("run", "own.yaml", "backbone.name=tiny-causal")[0] == 0
    seen = []
    monkeypatch.setattr(
        "atlas.jobs.federation.client_models.generate_rows",
        lambda m, s, prompts, n: seen.extend(prompts[0]) or [[""]],
    )
    atlas("predict", "chat", "--client", "ann", "who is 3?")
    assert seen == ["who is 3?\n"]


def test_one_unreadable_run_does_not_hide_the_others(atlas, tmp_path):
    assert atlas("run", *TINY)[0] == 0
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / "config.yaml").write_text("roundz: 3\n")
    code, out, _ = atlas("show", "--json")
    assert code == 0
    assert [(r["run"], r["state"]) for r in json.loads(out)] == [
        ("bad", "unreadable"),
        ("demo", "finished"),
    ]
    told = " ".join(atlas("show")[1].split())
    assert "unreadable: runs/bad/config.yaml: roundz: unknown key; did you mean rounds?" in told
    for verb in (["show", "bad"], ["resume", "bad"], ["predict", "bad", "--client", "a", "hi"]):
        code, _, err = atlas(*verb)
        assert code == 2 and err.startswith("error: runs/bad/config.yaml: roundz: unknown key"), err


def test_a_plan_gives_its_warnings_once_and_a_run_on_the_way(atlas):
    warned = "clusters hold several tasks"
    code, out, err = atlas("plan", *TINY, "clusters.method=one")
    assert code == 0 and warned in out
    assert "plan  3 fingerprints" in err and warned not in err
    assert warned in atlas("run", *TINY, "clusters.method=one")[1]


def test_targets_that_cannot_be_written_are_refused(atlas, tmp_path):
    assert atlas("run", *TINY)[0] == 0
    (tmp_path / "file").write_text("x")
    code, _, err = atlas("export", "demo", "--client", "order-1", "--to", "file/inside")
    assert code == 2
    assert "cannot be written" in err
    (tmp_path / "asked.txt").write_text("is it?\n")
    ask = ["predict", "demo", "--client", "order-1", "--file", "asked.txt", "--to"]
    deploy = ["deploy", "init", "file/x", "demo", "backbone.name=tiny"]
    bench = ["bench", "startup", "--size", "quick", "--out", "file"]
    for arguments in ([*ask, "file/x.csv"], [*ask, "no/x.csv"], deploy, bench):
        code, _, err = atlas(*arguments)
        assert code == 2 and "cannot be written" in err, (arguments, err)
    assert atlas("show", "x" * 300)[0] == 2
    assert atlas("run", "data.tasks=[" + "sentiment," * 40 + "]")[0] == 2


def test_other_verbs_refuse_what_is_not_there(atlas):
    for arguments in (["show", "nothing"], ["resume", "nothing"], ["show"]):
        code, _, err = atlas(*arguments)
        assert code == 2
        assert err.startswith("error: ")
