"""`atlas predict --file`: rows in one pass, each by its client; bad ones named, others answered."""

import csv
import json

import pytest
from typer.testing import CliRunner

import atlas
from atlas.cli import app
from atlas.data.questions import read_rows, to_text
from atlas.errors import InputError
from atlas.federation.batching import forward
from tests.test_doctests import TINY


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    settings = {**TINY, "rounds": 1}
    return atlas.run("demo", "train.lr=0.05", out=tmp_path_factory.mktemp("runs"), **settings)


def predict(run, *words, given=None):
    result = CliRunner().invoke(app, ["predict", str(run.path), *words], input=given)
    if isinstance(result.exception, InputError):
        raise result.exception
    return result


def test_lines_of_a_file_are_answered_in_order(run, tmp_path):
    texts = [f"a day that is {word}" for word in ("warm", "cold", "far", "near", "old")]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n\n")
    words = ["--client", "order-1", "--file", str(tmp_path / "texts.txt")]
    told = [json.loads(line) for line in predict(run, *words).stdout.splitlines()]
    singles = [run.client("order-1").predict(text)[0] for text in texts]
    assert [row["text"] for row in told] == texts
    for row, single in zip(told, singles, strict=True):
        assert row["client"] == "order-1" and row["answer"] == single["answer"]
        assert row["probabilities"] == pytest.approx(single["probabilities"], abs=1e-6)


def test_each_row_is_answered_by_its_client(run, tmp_path):
    rows = [
        {"sentence": "fine", "client": "sentiment-1", "id": 1},
        {"sentence1": "a b", "sentence2": "b a", "client": "paraphrase-2", "id": 2},
        {"sentence": "fine", "client": "", "id": 3},
        {"sentence": "fine", "client": "sentiment-2", "id": 4},
    ]
    source, to = tmp_path / "rows.jsonl", tmp_path / "answers.csv"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = predict(run, "--client", "order-1", "--file", str(source), "--to", str(to))
    assert done.exit_code == 0 and "4 of 4 rows answered" in done.stdout
    with to.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["client"] for row in found] == [
        "sentiment-1",
        "paraphrase-2",
        "order-1",
        "sentiment-2",
    ]
    assert [row["id"] for row in found] == ["1", "2", "3", "4"]
    for row, texts in zip(found, [["fine"], ["a b", "b a"], ["fine"], ["fine"]], strict=True):
        (single,) = run.client(row["client"]).predict([texts])
        assert row["answer"] == single["answer"]
        share = single["probabilities"][single["answer"]]
        assert float(row["probability"]) == pytest.approx(share, abs=2e-6)


def test_clients_share_a_pass(run, tmp_path, monkeypatch):
    passes = []
    whole = forward.run

    def counted(model, stack, batch, *more):
        passes.append(len(stack.labels))
        return whole(model, stack, batch, *more)

    monkeypatch.setattr("atlas.federation.training.evaluate.run", counted)
    source = tmp_path / "rows.csv"
    names = [f"{task}-{n}" for task in ("sentiment", "order") for n in (1, 2, 3)]
    source.write_text("sentence,client\n" + "".join(f"good,{name}\n" for name in names))
    assert predict(run, "--file", str(source)).exit_code == 0
    assert passes == [6], "six clients, one pass through the backbone"


def test_bad_rows_are_named_and_the_others_answered(run, tmp_path):
    source, to = tmp_path / "rows.jsonl", tmp_path / "answers.jsonl"
    lines = [
        '{"sentence": "fine"}',
        "{broken",
        '{"words": "fine"}',
        '{"sentence": 3}',
        '{"sentence": "fine", "client": "nobody"}',
        '{"sentence": "  "}',
        '{"sentence": "also fine", "error": "old", "answer": "old"}',
    ]
    source.write_text("\n".join(lines))
    done = predict(run, "--client", "order-1", "--file", str(source), "--to", str(to))
    assert done.exit_code == 2 and "2 of 7 rows answered" in done.stdout
    for number, why in ((2, "not JSON"), (3, "no field"), (4, "must be text"), (5, "nobody")):
        assert f"rows.jsonl:{number}: " in done.stderr and why in done.stderr
    found = [json.loads(line) for line in to.read_text().splitlines()]
    assert ["answer" in row for row in found] == [True, False, False, False, False, False, True]
    assert "error" not in found[6] and found[6]["answer"] in ("natural", "scrambled")
    assert "rows.jsonl:6" in found[5]["error"]


def test_standard_input_is_lines_or_json(run):
    told = predict(run, "--client", "order-1", "--file", "-", given="one text\nanother\n")
    assert [json.loads(line)["text"] for line in told.stdout.splitlines()] == [
        "one text",
        "another",
    ]
    given = '{"sentence": "one text"}\n'
    told = predict(run, "--client", "order-1", "--file", "-", given=given)
    assert json.loads(told.stdout)["sentence"] == "one text"
    given = "sentence;client\na text, with a comma;order-2\n"
    told = predict(run, "--file", "-", "--format", "csv", given=given)
    assert json.loads(told.stdout)["client"] == "order-2"


@pytest.mark.parametrize(
    ("words", "given", "message"),
    [
        (["--file", "-"], "a text\n", "--client: missing, and no row has a column 'client'"),
        (["--file", "-", "--client", "nobody"], "a\n", "--client nobody: no such client"),
        (["--file", "-", "--client", "order-1"], "\n", "standard input: no rows"),
        (["--file", "x.xlsx", "--client", "order-1"], None, "x.xlsx: 'xlsx' is no form"),
        (["--file", "gone.csv", "--client", "order-1"], None, "gone.csv: No such file"),
        (["--file", "-", "--to", "a.txt"], "a\n", "--to: 'txt'"),
        (["--file", "-", "a text"], "a\n", "texts are given, too"),
        ([], None, "no text given"),
        (["--file", "-", "--client", "order-1"], '{"a": 1}', "no row can be answered; the first"),
    ],
)
def test_what_cannot_be_done_is_told(run, words, given, message):
    with pytest.raises(InputError, match=message):
        predict(run, *words, given=given)


def test_rows_of_a_broken_table_end_where_nothing_is_known(tmp_path):
    source = tmp_path / "rows.csv"
    source.write_text('text,client\nfine,a\ntoo,many,cells\n"open,b\n')
    first, second, third = read_rows(str(source))
    assert first["text"] == "fine"
    assert "3 cells" in str(second) and "malformed CSV" in str(third)


def test_csv_keeps_lists_and_every_column():
    rows = [{"a": [1], "answer": "x", "probabilities": {"x": 0.25}}, {"b": 2, "error": "no"}]
    assert to_text(rows, "csv") == "a,b,answer,probability,error\n[1],,x,0.250000,\n,2,,,no\n"
