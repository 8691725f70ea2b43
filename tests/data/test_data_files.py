import pytest

from atlas.data.files import FileSource, data_folder, read_records
from atlas.data.tasks import TASKS
from atlas.errors import InputError
from tests.data.helpers import sentences, write_jsonl


def test_jsonl_records_know_their_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"x": "caf\xc3\xa9"}\r\n\n{"x": "a\\u2028b"}\n')
    records = read_records(path)
    assert [dict(r) for r in records] == [{"x": "café"}, {"x": "a\u2028b"}]
    assert [r.where for r in records] == [f"{path}:1", f"{path}:3"]


def test_csv_records_know_their_line(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbfsentence, label\r\n"one, two",1\r\n\r\nthree,0\r\n')
    records = read_records(path)
    assert [dict(r) for r in records] == [
        {"sentence": "one, two", "label": "1"},
        {"sentence": "three", "label": "0"},
    ]
    assert [r.where for r in records] == [f"{path}:2", f"{path}:4"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"x": 1}\n{"x": \n', r"a.jsonl:2: not JSON"),
        ("a.jsonl", b"[1]\n", r"a.jsonl:1: a list; expected an object"),
        ("a.jsonl", b"", "a.jsonl: no records"),
        ("a.jsonl", b"\xef\xbb\xbf\n \n", "a.jsonl: no records"),
        ("a.jsonl", '{"x": "é"}'.encode("latin-1"), "a.jsonl:1: not UTF-8 .byte 7 is 0xe9"),
        ("a.jsonl", '{"x": 1}'.encode("utf-16"), "a.jsonl:1: not UTF-8"),
        ("a.csv", b"x,label\na\n", r"a.csv:2: 1 cell; the header names 2"),
        ("a.csv", b"x,x\na,b\n", r"a.csv:1: the header must name every column once"),
        ("a.csv", b'x,label\n"a,1\n', "a.csv:2: malformed CSV"),
        ("a.csv", b"x,label\n", "a.csv: no records"),
        ("a.txt", b"x", "a.txt: unknown suffix '.txt'; allowed: .jsonl, .csv"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_records(tmp_path / name)


def test_missing_files_and_folders_are_named(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="gone.jsonl: No such file"):
        read_records(tmp_path / "gone.jsonl")
    with pytest.raises(InputError, match="sst2: no such folder; .*train.jsonl and test.jsonl"):
        FileSource(tmp_path).records(TASKS["sst2"], "train")
    with pytest.raises(InputError, match="data.path: .*nowhere' is no folder"):
        data_folder(tmp_path / "nowhere")
    monkeypatch.delenv("ATLAS_DATA", raising=False)
    with pytest.raises(InputError, match="data.path: not set, and neither is ATLAS_DATA"):
        data_folder(None)
    monkeypatch.setenv("ATLAS_DATA", str(tmp_path / "away"))
    with pytest.raises(InputError, match="ATLAS_DATA: .*away' is no folder"):
        data_folder(None)


def test_a_source_reads_splits_by_task(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "sst2" / "train.jsonl", sentences(3))
    write_jsonl(tmp_path / "sst2" / "test.jsonl", sentences(2, start=9))
    write_jsonl(tmp_path / "far" / "test.jsonl", sentences(1))
    monkeypatch.setenv("ATLAS_DATA", str(tmp_path))
    source = FileSource(None, {"cola": tmp_path / "far"})
    assert [len(source.records(TASKS["sst2"], s)) for s in ("train", "test")] == [3, 2]
    assert len(source.records(TASKS["cola"], "test")) == 1
