"""Does a JSON document read lazily give what the standard library gives, wherever its strings, escapes and blocks end?"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import penstock.sources.index as index
from penstock.cache import Cache
from penstock.errors import BadRecord, SourceError
from penstock.sources import BadRows, open_source
from penstock.types import BadRow

NewFolder = Callable[[], Path]

TEXT = st.text(st.sampled_from('\\"[]{},:\n é\u2028\x7fx'), max_size=8)
VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
RECORDS = st.lists(st.dictionaries(TEXT, VALUE, max_size=3), max_size=6)
INDENT = st.sampled_from([None, 0, 2, "\t"])


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=250
)
@example(
    records=[{"a": "\\"}, {'\\"': "\\\\"}],
    indent=None,
    ascii_only=False,
    block=1,
    wrap="array",
    bom=False,
)
@given(
    records=RECORDS,
    indent=INDENT,
    ascii_only=st.booleans(),
    block=st.integers(1, 9) | st.just(1 << 20),
    wrap=st.sampled_from(["array", "object", "field", "lines"]),
    bom=st.booleans(),
)
def test_lazy_equals_eager(
    new_folder: NewFolder,
    monkeypatch: pytest.MonkeyPatch,
    records: list[Any],
    indent: Any,
    ascii_only: bool,
    block: int,
    wrap: str,
    bom: bool,
) -> None:
    monkeypatch.setattr(index, "_READ", block)
    options: dict[str, Any] = {}
    document: Any = records
    if wrap == "object":
        document = {
            "about": {"n": [{"deep": 1}], "[": "]"},
            "names": ["a", {"b": 1}],
            "no": [],
            "rows": records or [{}],
        }
        records = document["rows"]
    elif wrap == "field":
        document, options = {"x": [{}], 'the "rows"': records, "y": [{}]}, {"field": 'the "rows"'}
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
    if wrap == "lines":
        records = [*records, {}, {"x": 1}]
        text = "".join(json.dumps(record, ensure_ascii=ascii_only) + "\n" for record in records)
    path = new_folder() / "a.json"
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + text.encode("utf-8"))
    for source in [
        open_source([str(path)], cache=Cache(path.parent / "cache"), **options)
        for _ in ("scan", "sidecar")
    ]:
        assert json.dumps(list(source)) == json.dumps(records)  # types and order of keys, too
        assert [source[row] for row in range(len(source))] == records
        for row in range(len(source)):
            where = source.locate(row)
            before = path.read_bytes()[: where.byte]
            assert path.read_bytes()[where.byte : where.byte + 1] == b"{"
            assert where.line == before.count(b"\n") + 1


def write(tmp_path: Path, content: str, name: str = "a.json") -> Path:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8", newline="")
    return path


def test_several_files_are_one_source_and_slices_are_views(tmp_path: Path, cache: Cache) -> None:
    write(tmp_path, '[{"a": 1},\n {"a": 2}]', "1.json")
    write(tmp_path, "[ ]\n", "2.json")
    write(tmp_path, '{"a": 3}\n{"a": 4}\n', "3.json")
    source = open_source(tmp_path, cache=cache)
    assert list(source) == [{"a": 1}, {"a": 2}, {"a": 3}, {"a": 4}]
    assert list(source[3:0:-2]) == [{"a": 4}, {"a": 2}]
    assert (source.locate(1).line, source.locate(1).byte) == (2, 12)


def test_long_integers_and_missing_keys_stay(tmp_path: Path, cache: Cache) -> None:
    path = write(tmp_path, '[{"b": 123456789012345678901234567890, "a": null}, {}, {"a": -0.0}]')
    source = open_source(path, cache=cache)
    assert (
        json.dumps(list(source))
        == '[{"b": 123456789012345678901234567890, "a": null}, {}, {"a": -0.0}]'
    )


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        ("1", "not_an_object"),
        ('"{}"', "not_an_object"),
        ("null", "not_an_object"),
        ("[1, [2], {}]", "not_an_object"),
        ("", "bad_json"),
        ("{} {}", "bad_json"),
        ('{"a" 1}', "bad_json"),
        ('{"a": [}]', "bad_json"),
        ('{"a": NaN}', "bad_json"),
        ('{"a": "\\ud800"}', "bad_json"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "bad_json"),
    ],
)
def test_a_bad_element_is_one_bad_row(
    tmp_path: Path, cache: Cache, element: str, reason: str
) -> None:
    path = write(tmp_path, '[{"n": 0},\n\n ' + element + ' ,\n{"n": 2}]')
    source = open_source(path, cache=cache, bad=BadRows(on_bad="skip"))
    first, bad, last = source.records(0, 3)
    assert (first, last) == ({"n": 0}, {"n": 2})
    assert isinstance(bad, BadRow) and bad.reason == reason
    if element:
        assert bad.message.startswith(f"{path}:3: ")
        assert (
            "NaN" not in element or "at character 6 (NaN and Infinity are not JSON" in bad.message
        )


def test_a_comma_behind_the_last_element_is_a_bad_row(tmp_path: Path, cache: Cache) -> None:
    source = open_source(write(tmp_path, '[{"n": 0},\n]'), cache=cache)
    assert len(source) == 2 and source[0] == {"n": 0}
    with pytest.raises(BadRecord, match=r"a\.json:2: not JSON: "):
        source[1]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, r"a\.json:1: the file holds only whitespace, expected an array of objects"),
        (" \n 3", {}, r"a\.json:2: the document begins with b'3', expected an array"),
        (
            '[{"a": 1}',
            {},
            r"a\.json:1: the file ends inside the value that begins here: it is cut off",
        ),
        ('[{"a": 1}, {"a', {}, "the file ends inside the value that begins here"),
        ('[{"a": 1}]\n]', {}, r"a\.json:2: more text follows the end of the document"),
        ('[{"a": 1}] [2]', {}, "more text follows the end of the document"),
        ('[{"a": 1}}', {}, r"a\.json:1: } closes what \[ opened in line 1"),
        ('{"a": [{}], "b": 1]', {}, r"a\.json:1: \] closes what { opened in line 1"),
        (
            '{"a": [{}], "b": [{}, 1]}',
            {},
            r"the object holds 2 arrays \('a', 'b'\); choose one with field=",
        ),
        (
            '{"a": 1, "b": {"c": [{}]}}',
            {},
            "the document is one object, expected an array of objects in it",
        ),
        ('{"a": ["x"]}', {}, "the document is one object"),
        ('{"a": [{}]}', {"field": "b"}, "no array has the key 'b'; choose another field"),
        ('[{"a": 1}]', {"field": "b"}, "the document is an array, so field='b' cannot be used"),
        ('{"a": [{}]', {}, "the file ends inside the value that begins here"),
        ('{"a": [{}]} x', {}, "more text follows the end of the document"),
        ("{[{}]}", {}, "the array has no key before it; the document is damaged"),
        (
            '{\n"a": 1\n}\n{\n"a": 2\n}\n',
            {},
            "more text follows the end of the document.*pass format='jsonl'",
        ),
    ],
)
def test_documents_that_cannot_be_opened_say_why(
    tmp_path: Path, cache: Cache, content: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        open_source(write(tmp_path, content), cache=cache, **options)
    assert not [
        path for path in cache.root.rglob("*") if path.is_file()
    ]  # nothing half made stays behind


@pytest.mark.parametrize("block", [5, 1 << 20])
def test_a_document_cut_anywhere_is_refused(
    new_folder: NewFolder, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(index, "_READ", block)
    for text in (
        '[{"a": "x]"},\n {"b": [1, {"c": "\\""}]} ]',
        '{"n": 1, "rows": [{"a": "x}"}, {"b": {}}]}',
    ):
        folder = new_folder()
        for cut in range(len(text)):
            path = write(folder, text[:cut])
            with pytest.raises(SourceError):
                open_source(path, cache=Cache(folder / "cache"))
        assert len(open_source(write(folder, text), cache=Cache(folder / "cache"))) == 2


def test_the_digest_is_of_records_and_not_of_layout(tmp_path: Path, cache: Cache) -> None:
    one = open_source(write(tmp_path, '[{"a": 1},{"a": 2},{"a": 3}]', "1.json"), cache=cache)
    two = open_source(
        write(tmp_path, '{"x": [ {"a": 1} ,\n {"a": 2},\n {"a": 3}\n]}', "2.json"), cache=cache
    )
    for start, stop in ((0, 3), (1, 3), (2, 2)):
        assert one.digest(start, stop) == two.digest(start, stop)
    assert len({one.digest(row, row + 1) for row in range(3)}) == 3
    limited = open_source(tmp_path / "1.json", cache=cache, max_row_bytes=8)
    assert limited.digest(0, 3) != one.digest(0, 3)


def test_a_key_given_twice_can_be_refused(tmp_path: Path, cache: Cache) -> None:
    path = write(tmp_path, '[{"a": 1, "b": {"c": 1, "c": 2}}, {"a": [{"c": 1}, {"c": 2}]}]')
    assert open_source(path, cache=cache)[0] == {"a": 1, "b": {"c": 2}}
    strict = open_source(path, cache=cache, unique_keys=True)
    with pytest.raises(BadRecord, match="the key 'c' is given twice"):
        strict[0]
    assert strict[1] == {"a": [{"c": 1}, {"c": 2}]}
    assert strict.digest(1, 2) == strict.digest(1, 2) != strict.digest(0, 1)


def test_records_of_a_document_in_one_line_are_told_apart(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"n": 1}, {"n": 2}]')
    source = open_source(path, cache=cache)
    assert [str(source.locate(row)) for row in range(2)] == [
        f"{path}:1 (byte 1)",
        f"{path}:1 (byte 11)",
    ]
    path = tmp_path / "b.json"
    path.write_text('[\n {"n": 1},\n {"n": 2}\n]')
    source = open_source(path, cache=cache)
    assert [str(source.locate(row)) for row in range(2)] == [f"{path}:2", f"{path}:3"]
