"""Files of one's own: what became of every row, and where a bad one is."""

import csv
import io
import random

import pytest

from atlas.config.federation import FederationConfig, ShareSettings
from atlas.config.load import dump_config, load_resolved
from atlas.data.clients import load_clients
from atlas.data.files import read_records
from atlas.data.own import split_sizes
from atlas.data.own_file import read_own
from atlas.data.tasks import TASKS
from atlas.errors import InputError
from tests.data.helpers import config, sentences, write_jsonl

THREE = {"mood": {"text": ["text"], "labels": ["bad", "fair", "good"]}}


def own(*paths, task="sst2", tasks=None, **data):
    listed = [{"id": p.stem, "task": task, "data": str(p)} for p in paths]
    return config(clients=listed, tasks=tasks or {}, data=data)


def add_up(client):
    counts = client.counts
    used = len(client.train) + len(client.validation) + len(client.test)
    return used + counts.dropped + counts.duplicates + counts.conflicts == counts.rows


def test_all_of_a_file_is_used_by_default(tmp_path):
    (client,) = load_clients(own(write_jsonl(tmp_path / "a.jsonl", sentences(1000))))
    assert [len(s) for s in (client.train, client.validation, client.test)] == [500, 200, 300]
    assert client.counts.rows == 1000 and client.counts.dropped == 0


def test_a_saved_config_of_own_clients_gives_the_same_clients(tmp_path):
    given = own(write_jsonl(tmp_path / "a.jsonl", sentences(300)))
    (tmp_path / "config.yaml").write_text(dump_config(given))
    again = load_resolved(tmp_path / "config.yaml")
    assert again == given and load_clients(again) == load_clients(given)
    assert FederationConfig().data.train == 48


def test_bounds_that_are_set_are_kept_and_told(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", sentences(1000))
    (client,) = load_clients(own(path, train=48, validation=32, test=200))
    assert [len(s) for s in (client.train, client.validation, client.test)] == [48, 32, 200]
    assert client.counts.beyond == client.counts.dropped == 720 and add_up(client)


def test_shares_are_settings(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", sentences(100))
    (client,) = load_clients(own(path, shares={"train": 0.3, "validation": 0.2}))
    assert [len(s) for s in (client.train, client.validation, client.test)] == [30, 20, 50]


@pytest.mark.parametrize("train", [0.01, 0.3, 0.9, 0.98])
@pytest.mark.parametrize("count", [8, 9, 50, 333])
def test_every_share_leaves_something_for_each_split(train, count):
    sizes = split_sizes(count, shares=ShareSettings(train=train, validation=0.01))
    assert min(sizes) >= 1 and sum(sizes) == count


@pytest.mark.parametrize("key", ["validation", "test"])
def test_dealt_data_needs_sizes(key):
    with pytest.raises(InputError, match=f"data.{key}: null given, but only the files of"):
        load_clients(config(data={key: None}))


def test_duplicates_conflicts_and_missing_labels_are_counted(tmp_path):
    rows = [
        *sentences(40),
        {"sentence": "Sentence  NUMBER 3 of many", "label": 1},
        {"sentence": "sentence number 4 of many", "label": 1},
        {"sentence": "sentence number 4 of many", "label": 0},
        {"sentence": "unknown", "label": None},
        {"sentence": "unknown too", "label": " "},
    ]
    found = read_own(write_jsonl(tmp_path / "a.jsonl", rows), TASKS["sst2"])
    counts = found.counts
    assert (counts.rows, counts.unlabelled, counts.duplicates, counts.conflicts) == (45, 2, 1, 3)
    assert len(found.examples) == 39
    assert not any("number 4 " in e.texts[0] for e in found.examples)
    missing, conflict = counts.notes
    assert "2 rows without label, the first" in missing and "a.jsonl:44" in missing
    assert "a.jsonl:5 says 'negative'" in conflict and "a.jsonl:42 says 'positive'" in conflict


def test_a_question_may_have_two_answers(tmp_path):
    rows = [{"question": "why?", "answer": a} for a in ("so", "thus")]
    found = read_own(write_jsonl(tmp_path / "a.jsonl", rows), TASKS["gsm8k"])
    assert (found.counts.conflicts, found.counts.duplicates) == (0, 1)


def test_texts_that_others_are_judged_by_are_counted(tmp_path):
    one = write_jsonl(tmp_path / "one.jsonl", sentences(80))
    two = write_jsonl(tmp_path / "two.jsonl", sentences(80, start=20))
    test = write_jsonl(tmp_path / "test.jsonl", sentences(30) + sentences(5))
    entry = {"id": "c", "task": "sst2", "data": str(one), "test_data": str(test)}
    listed = [*own(one, two).clients, FederationConfig(clients=[entry]).clients[0]]
    clients = load_clients(config(clients=[c.model_dump(mode="json") for c in listed]))
    assert all(add_up(client) for client in clients)
    assert all(client.counts.judged for client in clients)
    assert clients[0].id == "c" and clients[0].counts.duplicates == 5


def test_semicolons_and_tabs_are_read_and_told(tmp_path):
    for sign, name in ((";", "semicolons"), ("\t", "tabs")):
        path = tmp_path / f"{name}.csv"
        rows = [f'"one, {i}"{sign}{i % 2}' for i in range(9)]
        path.write_text("\n".join([f'"sentence"{sign}"label"', *rows]))
        found = read_own(path, TASKS["sst2"])
        assert found.examples[3].texts == ("one, 3",) and len(found.examples) == 9
        assert found.counts.notes == (f"{path}: read with {name}, not commas, between cells",)


def test_a_row_with_another_delimiter_is_hinted_at(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("sentence,label\nfine,1\nnot fine;0\n")
    with pytest.raises(InputError, match=r"a.csv:3: 1 cell between commas \(there are semicolons"):
        read_records(path)


def test_a_record_is_where_it_begins(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('sentence,label\n"one\ntwo\nthree",1\nfour,7\n')
    with pytest.raises(InputError, match="a.csv:5: label"):
        read_own(path, TASKS["sst2"])
    path.write_text('sentence,label\none,1\n"two\nthree,1\nfour,0\n')
    with pytest.raises(InputError, match="a.csv:3: malformed CSV"):
        read_records(path)


def test_three_messy_files_are_told_or_refused_by_line(tmp_path):
    lines = [f'"Zimmer {i}\nwar ""schön"" 🙂, wirklich";{i % 3}' for i in range(30)]
    quoted = tmp_path / "quoted.csv"
    quoted.write_bytes(("\ufefftext;label\r\n" + "\r\n".join(lines) + "\r\n\r\n").encode())
    missing = tmp_path / "missing.csv"
    names = ["bad", "fair", "good", ""]
    texts = [f"día {i // 2}, ñandú,{names[i % 4]}" for i in range(40)]
    missing.write_text("text,label\n" + "\n".join(texts).replace(", ", " ") + "\n", "utf-8")
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("text,label\nfine,good\n\nodd,great\n")
    clients = load_clients(own(quoted, missing, task="mood", tasks=THREE))
    assert all(add_up(client) for client in clients)
    assert (clients[0].id, clients[0].counts.unlabelled) == ("missing", 10)
    # Of each pair of rows the texts are alike: half of them have two labels, half only one.
    assert clients[0].counts.conflicts == 20
    assert "\n" in clients[1].train[0].texts[0] and len(clients[1].train) == 15
    with pytest.raises(InputError, match="wrong.csv:4: label .great. is no label"):
        load_clients(own(wrong, task="mood", tasks=THREE))


def messy_file(seed):
    """Bytes of a CSV file as people make them, and whether a broken row was put in."""
    draw = random.Random(seed)
    sign = draw.choice(",;\t")
    words = [
        "naïve",
        "日本",
        "ß",
        "a,b",
        "c;d",
        'say "no"',
        "two\nlines",
        "\u2028",
        "tab\there",
        "x",
    ]
    out = io.StringIO()
    quoting = draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    table = csv.writer(
        out, delimiter=sign, quoting=quoting, lineterminator=draw.choice(["\n", "\r\n"])
    )
    table.writerow(["text", "label"] if draw.random() < 0.9 else ["text", " label "])
    for number in range(draw.choice([0, 5, 20, 60])):
        text = f"{draw.choice(words)} {draw.randrange(50)} {draw.choice(words)}"
        label = draw.choice(["bad", "fair", "good", "0", "1", "2", " good "])
        chance = draw.random()
        if chance < 0.1:
            label = ""
        elif chance < 0.13 and seed % 3 == 0:
            label = "great"
        elif chance < 0.15 and seed % 4 == 0:
            text = "  "
        table.writerow([text, label])
        if draw.random() < 0.1:
            out.write(draw.choice(["\n", "\r\n", sign + "\n", "  \n"]))
        if number == 3 and seed % 7 == 0:
            out.write(draw.choice(["lonely\n", f"a{sign}b{sign}c\n", '"open', '"a"b\n', "\0\n"]))
    data = out.getvalue().encode()
    data = b"\xef\xbb\xbf" + data if draw.random() < 0.3 else data
    return data[:40] + b"\xff" + data[40:] if seed % 23 == 0 else data


def test_two_hundred_messy_files_load_with_counts_or_name_file_and_line(tmp_path):
    loaded = refused = 0
    for seed in range(200):
        path = tmp_path / f"file{seed}.csv"
        path.write_bytes(messy_file(seed))
        try:
            (client,) = load_clients(own(path, task="mood", tasks=THREE))
        except InputError as error:
            whole = ("no records in it", "different examples", "that no client of task")
            assert f"{path}:" in str(error) or any(words in str(error) for words in whole)
            assert str(path) in str(error)
            refused += 1
            continue
        assert add_up(client), seed
        assert len(client.counts.notes) >= (client.counts.conflicts > 0)
        loaded += 1
    assert loaded > 50 and refused > 50
