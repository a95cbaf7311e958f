"""Is a list of datasets opened as written, and is whatever is wrong in it named by its line?"""

import json
import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.extras.formats.yaml_list import DatasetEntry, read_list
from penstock.sources import BadRows, open_source
from penstock.testing import check_source
from tests.docs.pages import blocks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("chat", "math"):
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(json.dumps({name: row}) + "\n" for row in range(5))
        )
    (tmp_path / "table.csv").write_text("a;b\n1;2\n")
    return tmp_path


def write(folder: Path, text: str) -> str:
    (folder / "list.yaml").write_text(text)
    return str(folder / "list.yaml")


def test_a_list_is_one_source(folder: Path, cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    path = write(
        folder,
        """
datasets:
  - path: chat.jsonl@[:2]
    weight: 0.7
  - math.jsonl
  - {path: table.csv, format: csv, options: {delimiter: ";"}, name: numbers}
  - {path: chat.jsonl, split: "train[-1:]"}
""",
    )
    with caplog.at_level(logging.WARNING, "penstock"):
        source = open_source(path, cache=cache)
    assert "weights are ignored" in caplog.text
    expected = [
        {"chat": 0},
        {"chat": 1},
        *({"math": row} for row in range(5)),
        {"a": "1", "b": "2"},
        {"chat": 4},
    ]
    check_source(source, expected=expected, max_pickle=10_000)
    assert source.name == "list" and [Path(file).name for file in source.files] == [
        "chat.jsonl",
        "math.jsonl",
        "table.csv",
    ]
    assert source.locate(7).file == str(folder / "table.csv")
    assert list(open_source(f"{path}@[1:3]", cache=cache)) == expected[1:3]


def test_entries_are_values(folder: Path) -> None:
    path = write(
        folder,
        """
defaults: &d
datasets:
""",
    )
    with pytest.raises(
        SourceError, match=r"list\.yaml:2: unknown key 'defaults', expected datasets"
    ):
        read_list(path)
    path = write(
        folder,
        """
- &first
  path: chat.jsonl
  weight: 1e-3
  data_type: json
- <<: *first
  json_path: /abs/x.json
  data_folder: media
  split:
""",
    )
    with pytest.raises(SourceError, match=r"list\.yaml:7: path is given twice \(in line 3 too\)"):
        read_list(path)
    path = write(folder, (folder / "list.yaml").read_text().replace("json_path", "path"))
    assert read_list(path) == [
        DatasetEntry(path=str(folder / "chat.jsonl"), weight=0.001, format="json", line=2),
        DatasetEntry(
            path="/abs/x.json",
            weight=0.001,
            format="json",
            data_folder=str(folder / "media"),
            line=6,
        ),
    ]


def test_the_kind_of_lmms_engine(
    folder: Path, cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(
        folder,
        """
datasets:
- path: chat.jsonl
  data_folder: pictures
  data_type: jsonl
- json_path: math.jsonl
  data_folder: ""
  data_type: jsonl
""",
    )
    with caplog.at_level(logging.WARNING, "penstock"):
        assert len(open_source(path, cache=cache)) == 10
    assert "data_folder is ignored" in caplog.text
    assert [entry.data_folder for entry in read_list(path)] == [
        str(folder / "pictures"),
        str(folder),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"list\.yaml: not a list of datasets, expected 'datasets:'"),
        ("datasets:", "not a list of datasets"),
        ("datasets: []", "not a list of datasets"),
        ("just text", "not a list of datasets"),
        (
            "dataset: [a]",
            r"list\.yaml:1: unknown key 'dataset', expected datasets; did you mean 'datasets'\?",
        ),
        (
            "datasets:\n- path: a\n  wieght: 2",
            r"list\.yaml:3: unknown key 'wieght', .*; did you mean 'weight'\?",
        ),
        ("datasets:\n- name: a", r"list\.yaml:2: a dataset without path"),
        (
            "datasets:\n- path: a\n  shape: jsnl",
            r":3: format is 'jsnl', expected one of .*; did you mean 'jsonl'\?",
        ),
        ("datasets:\n- path: a\n  weight: 0", r":3: weight is 0, expected a number above 0"),
        (
            "datasets:\n- path: a\n  weight: yes",
            ":3: 'yes' is ambiguous in YAML: true for some readers",
        ),
        ("datasets:\n- path: a\n  weight: .inf", ":3: .inf is not a finite number"),
        ("datasets:\n- path: a\n  weight: lots", ":3: weight is 'lots'"),
        ("datasets:\n- path: [a]", r":2: path is .*list\), expected text"),
        (
            "datasets:\n- path: a\n  name: no",
            ":3: 'no' is ambiguous in YAML: false for some readers",
        ),
        ("datasets:\n- path: a\n  options: [1]", ":3: options is a list, expected a mapping"),
        ("datasets:\n- 3", ":2: expected a dataset such as"),
        (
            "datasets:\n- path: a\n  format: csv\n  format: csv",
            r":4: format is given twice: as shape, and in line 3|shape.* twice|format is given twice",
        ),
        ("datasets: [", r"list\.yaml:1: not YAML: "),
        ("a: b\n\tc: d", r"list\.yaml:2: not YAML: "),
        (
            "datasets:\n- path: !!python/object/apply:os.system [ls]",
            ":2: the tag tag:yaml.org,2002:python/object/apply:os.system is not known",
        ),
        ("\x00", "not YAML"),
    ],
)
def test_what_is_wrong_is_named_by_its_line(folder: Path, text: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        read_list(write(folder, text))


def test_aliases_cannot_blow_it_up(folder: Path) -> None:
    laughs = "".join(
        f"- &{name} {{path: a, options: {{o: [{f'{part}, ' * 99}]}}}}\n"
        for name, part in zip("abc", ("x", "*a", "*b"), strict=True)
    )
    with pytest.raises(
        SourceError,
        match=r"list\.yaml:3: more than 100,000 values; write out what the aliases repeat",
    ):
        read_list(write(folder, laughs))
    many = "datasets:\n- &a {path: chat.jsonl}\n" + "- *a\n" * 257
    assert len(read_list(write(folder, many))) == 258
    with pytest.raises(SourceError, match=r"list\.yaml: nested more than 20 deep"):
        read_list(write(folder, "[" * 5000))
    with pytest.raises(SourceError, match=r"list\.yaml:2: nested more than 20 deep"):
        read_list(write(folder, "\n" + "[" * 30 + "]" * 30))
    with pytest.raises(SourceError, match="1,048,577 bytes, expected at most 1,048,576"):
        read_list(write(folder, "#" * (1 << 20) + "\n"))


def test_values_are_read_as_in_a_recipe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "chat.jsonl")
    (entry,) = read_list(
        write(folder, "- path: ${PLACE}\n  weight: 1e-3\n  options: {d: 2024-13-45}\n")
    )
    assert (
        entry.path == str(folder / "chat.jsonl")
        and entry.weight == 0.001
        and entry.options == {"d": "2024-13-45"}
    )


def test_a_list_may_list_lists_but_not_itself(folder: Path, cache: Cache) -> None:
    (folder / "inner.yml").write_text("- chat.jsonl\n- math.jsonl\n")
    assert len(open_source(write(folder, "- inner.yml\n- chat.jsonl\n"), cache=cache)) == 15
    with pytest.raises(
        SourceError,
        match=r"list\.yaml: lists itself, by way of .*list\.yaml → .*other\.yaml; take one",
    ):
        (folder / "other.yaml").write_text("- list.yaml\n")
        open_source(write(folder, "- chat.jsonl\n- other.yaml\n"), cache=cache)
    assert len(open_source(write(folder, "- inner.yml\n- inner.yml\n"), cache=cache)) == 20


def test_bad_rows_of_a_list_have_one_policy(folder: Path, cache: Cache) -> None:
    for name in ("chat", "math"):
        (folder / f"{name}.jsonl").write_text("bad\n{}\n")
    bad = BadRows("skip")
    source = open_source(write(folder, "- chat.jsonl\n- math.jsonl\n"), cache=cache, bad=bad)
    assert list(source) == [{}, {}] and bad.counts == {"bad_json": 2} == source.bad_counts


def test_a_list_of_data_sets_leaves_test_files_of_its_folders_out(
    tmp_path: Path, cache: Cache
) -> None:
    (tmp_path / "data").mkdir()
    for name, rows in (("train", 4), ("test", 3)):
        (tmp_path / "data" / f"{name}.jsonl").write_text('{"text": "a"}\n' * rows)
    (tmp_path / "sets.yaml").write_text("datasets:\n  - path: data\n")
    assert len(open_source(tmp_path / "sets.yaml", cache=cache)) == 4


def test_the_list_on_the_page_about_sources_opens(tmp_path: Path, cache: Cache) -> None:
    page = Path(__file__).parents[3] / "docs" / "concepts" / "sources.md"
    (shown,) = [block.text for block in blocks(page) if block.language == "yaml"]
    (tmp_path / "list.yaml").write_text(shown)
    (tmp_path / "chat").mkdir()
    (tmp_path / "chat" / "a.jsonl").write_text('{"text": "a"}\n')
    pq.write_table(pa.table({"text": ["b"] * 20, "other": [1] * 20}), tmp_path / "math.parquet")
    found = list(open_source(tmp_path / "list.yaml", cache=cache))
    assert found == [{"text": "a"}, {"text": "b"}, {"text": "b"}]


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("datasets:\n- ? [a, b]\n  : c\n", 2, "a list or mapping as a key"),
        ("? [a]\n: 1\n", 1, "a list or mapping as a key"),
        ("- path: a.jsonl\n  options: {1: 2}\n", 1, "unknown option '1'"),
        ("- path: a.jsonl\n  options: {name: x}\n", 2, "'name' is not an option"),
        (
            "- path: a.jsonl\n  options: {max_row_bytes: '10'}\n",
            1,
            "max_row_bytes is '10', expected a number",
        ),
        (
            "- path: a.jsonl\n- path: a.jsonl\n  options: {uniqe_keys: true}\n",
            2,
            "unknown option 'uniqe_keys'; did you",
        ),
        ("- path: a.jsonl\n- b.jsonl\n", 2, ".*b.jsonl: nothing found"),
        ("- path: ''\n", 1, "path is ''"),
        ("- path: ftp://host/a.jsonl\n", 1, "ftp://host/a.jsonl: unknown kind of place"),
    ],
)
def test_a_fault_in_a_list_has_its_line(
    tmp_path: Path, cache: Cache, text: str, line: int, reason: str
) -> None:
    (tmp_path / "a.jsonl").write_text('{"row": 0}\n')
    (tmp_path / "list.yaml").write_text(text)
    with pytest.raises(SourceError, match=rf"list\.yaml:{line}: {reason}"):
        open_source(tmp_path / "list.yaml", cache=cache)


def test_brackets_in_the_name_of_a_lists_folder_are_no_pattern(
    tmp_path: Path, cache: Cache
) -> None:
    folder = tmp_path / "[set1]"
    (folder / "chat").mkdir(parents=True)
    (folder / "chat" / "a.jsonl").write_text('{"row": 0}\n{"row": 1}\n')
    text = "datasets:\n- path: chat/*.jsonl\n- path: chat/*.jsonl@[:1]\n"
    assert len(open_source(write(folder, text), cache=cache)) == 3
