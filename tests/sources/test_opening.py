"""Is what a user names opened as what it is, and does an error say what to do?"""

import dataclasses
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.cache import Cache
from penstock.errors import BadRecord, SourceError
from penstock.options import DEFAULTS, OpenOptions
from penstock.sources import ListSource, formats, open_source

ROW = '{"row": 1}\n'


def fill(folder: Path, *names: str, text: str = ROW) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def names_of(source: Any) -> list[str]:
    return [Path(file).name for file in source.files]


def test_a_folder_is_its_files_in_natural_order(tmp_path: Path, cache: Cache) -> None:
    fill(tmp_path / "d", "p-10.jsonl", "p-9.jsonl", ".hidden.jsonl", "below/x.jsonl")
    assert names_of(open_source(tmp_path / "d", cache=cache)) == ["p-9.jsonl", "p-10.jsonl"]
    assert names_of(open_source(f"{tmp_path}/d/**", cache=cache)) == [
        "x.jsonl",
        "p-9.jsonl",
        "p-10.jsonl",
    ]
    assert names_of(open_source(f"{tmp_path}/d/**/*.jsonl", cache=cache)) == [
        "x.jsonl",
        "p-9.jsonl",
        "p-10.jsonl",
    ]
    assert open_source(tmp_path / "d", cache=cache).name == "d"


def test_suffixes_of_one_shape_may_mix_and_shout(tmp_path: Path, cache: Cache) -> None:
    fill(tmp_path / "d", "a.jsonl", "b.ndjson", "c.JSONL")
    assert len(open_source(tmp_path / "d", cache=cache)) == 3
    assert open_source(tmp_path / "d" / "c.JSONL", cache=cache).name == "c"


def test_what_lies_beside_data_is_left_out_and_said(
    tmp_path: Path, cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    fill(
        tmp_path / "d",
        "a.jsonl",
        "README.md",
        "LICENSE",
        "dataset_infos.json",
        "config.yaml",
        "a.bin",
    )
    with caplog.at_level(logging.INFO, "penstock"):
        assert names_of(open_source(tmp_path / "d", cache=cache)) == ["a.jsonl"]
    assert (
        "not data, left out: LICENSE, README.md, a.bin, config.yaml, dataset_infos.json"
        in caplog.text
    )
    alone = fill(tmp_path / "e", "README.md", text="to read\n")
    assert list(open_source(alone, cache=cache)) == [{"text": "to read"}]


def test_several_shapes_are_counted(tmp_path: Path, cache: Cache) -> None:
    fill(tmp_path / "d", "a.jsonl", "b.jsonl", "c.csv")
    message = r"d: files of several formats \(1 csv, 2 jsonl\); name those of one format, such as '.*/d/\*\.jsonl'; in a recipe"
    with pytest.raises(SourceError, match=message):
        open_source(tmp_path / "d", cache=cache)
    assert names_of(open_source(tmp_path / "d", cache=cache, format="jsonl")) == [
        "a.jsonl",
        "b.jsonl",
    ]
    with pytest.raises(SourceError, match="several formats"):
        open_source([tmp_path / "d" / "a.jsonl", tmp_path / "d" / "c.csv"], cache=cache)


def test_nothing_to_open_is_an_error(tmp_path: Path, cache: Cache) -> None:
    with pytest.raises(SourceError, match="nothing found, expected a file in this folder"):
        open_source(fill(tmp_path / "d", ".hidden.jsonl"), cache=cache)
    with pytest.raises(
        SourceError,
        match=r"a\.xyz: unknown format '\.xyz', expected one of .*\.jsonl.*; or say .* format=",
    ):
        open_source(fill(tmp_path / "e", "a.xyz", "b.xyz"), cache=cache)
    with pytest.raises(SourceError, match="unknown format ''"):
        open_source(fill(tmp_path / "f", "noname") / "noname", cache=cache)
    with pytest.raises(SourceError, match=r"gone: nothing found"):
        open_source(tmp_path / "gone", cache=cache, format="jsonl")


def test_the_shape_can_be_said(tmp_path: Path, cache: Cache) -> None:
    fill(tmp_path / "d", "a.log", "b.log")
    assert len(open_source(tmp_path / "d" / "a.log", cache=cache, format="jsonl")) == 1
    assert len(open_source(tmp_path / "d", cache=cache, format="jsonl")) == 2
    assert list(open_source(tmp_path / "d" / "a.log", cache=cache, format="text")) == [
        {"text": ROW.strip()}
    ]
    with pytest.raises(
        SourceError, match=r"format is 'jsnl', expected one of jsonl, .*; did you mean 'jsonl'\?"
    ):
        open_source(tmp_path / "d", cache=cache, format="jsnl")


def test_an_option_nobody_knows_is_an_error(tmp_path: Path, cache: Cache) -> None:
    path = fill(tmp_path, "a.csv", text="a,b\n1,2\n") / "a.csv"
    with pytest.raises(
        SourceError,
        match=r"unknown option 'delimeter'; did you mean 'delimiter'\?; csv takes .*names",
    ):
        open_source(path, cache=cache, delimeter=";")
    with pytest.raises(
        SourceError, match=r"unknown option 'max_badd'; did you mean 'max_bad'\?; csv takes"
    ):
        ps.open(path, cache_dir=cache.root, max_badd=3)
    for place, what in (
        ([{"a": 1}], "a list of records"),
        (ListSource([{}]), "a source that is open already"),
    ):
        with pytest.raises(SourceError, match=f"unknown option 'columns'; {what} takes none"):
            open_source(place, cache=cache, columns=["a"])


@pytest.mark.parametrize("shape", sorted(formats()))
def test_every_format_declares_its_options(shape: str, cache: Cache, tmp_path: Path) -> None:
    suffixes = formats()[shape].suffixes
    name = f"a{suffixes[0]}" if suffixes else "a.jsonl"
    folder = fill(tmp_path, name)
    place = folder / name if suffixes else folder
    with pytest.raises(SourceError, match="unknown option 'no_such_option'"):
        open_source(place, cache=cache, format=shape, no_such_option=1)


def test_every_option_of_a_format_is_declared_once_and_is_a_keyword_of_open() -> None:
    keywords = OpenOptions.__annotations__
    for name, file_format in formats().items():
        for option in dataclasses.fields(file_format.load().options):
            assert option.metadata.get("doc"), f"{name}: {option.name} is not documented"
            assert option.name in keywords, f"{name}: {option.name}"
    assert DEFAULTS["OpenOptions"]["record"] == "line"  # of one format: its own default
    assert DEFAULTS["OpenOptions"]["max_expansion"] is ...  # formats differ


def test_a_shape_may_have_the_name_that_another_tool_gives_it(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"n": 1}\n')
    assert list(open_source(tmp_path / "a", cache=cache, format="ndjson")) == [{"n": 1}]
    names = [*formats(), *(alias for each in formats().values() for alias in each.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("place", [3, None, b"bytes", {"a": 1}, 1.5])
def test_what_cannot_be_opened_is_named(place: Any, cache: Cache) -> None:
    with pytest.raises(
        SourceError,
        match=f"cannot open a {type(place).__name__} as a source; expected a path, a glob",
    ):
        open_source(place, cache=cache)


def test_what_is_no_file_has_neither_shape_nor_split(cache: Cache) -> None:
    with pytest.raises(SourceError, match="format='jsonl' is for files, but a list was given"):
        open_source([{}], cache=cache, format="jsonl")
    with pytest.raises(SourceError, match="split='train', but a list has no splits"):
        open_source([{}], cache=cache, split="train")


def test_a_users_own_source_gets_views(cache: Cache) -> None:
    class Countdown:
        name = "countdown"

        def __init__(self) -> None:
            inner = ListSource([{"n": 3}, {"n": 2}, {"n": 1}], name="countdown")
            self.records, self.where, self.digest, self.cuts = (
                inner.records,
                inner.where,
                inner.digest,
                inner.cuts,
            )
            self.__dict__["inner"] = inner

        def __len__(self) -> int:
            return 3

        def __getitem__(self, row: int) -> Any:
            return self.__dict__["inner"][row]

    opened = open_source(Countdown(), cache=cache)
    assert list(opened.map(lambda record: {"n": record["n"] * 2})[::-1]) == [
        {"n": 2},
        {"n": 4},
        {"n": 6},
    ]
    assert opened.name == "countdown" and opened.digest(0, 3) == ListSource(
        [{"n": 3}, {"n": 2}, {"n": 1}]
    ).digest(0, 3)


def test_an_open_source_may_get_another_name(cache: Cache) -> None:
    source = ListSource([{"n": 1}], name="one")
    assert (
        open_source(source, cache=cache) is source is open_source(source, cache=cache, name="one")
    )
    renamed = open_source(source, cache=cache, name="two")
    assert (
        renamed.name == "two"
        and list(renamed) == [{"n": 1}]
        and renamed.digest(0, 1) == source.digest(0, 1)
    )


def test_bad_rows_of_all_files_opened_together_are_counted_together(
    tmp_path: Path, cache: Cache
) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text('{"a": 1}\nbad\n{"a": 2}\n')
    places = [f"{tmp_path}/a.jsonl@[:3]", f"{tmp_path}/b.jsonl"]
    source = ps.open(places, cache_dir=cache.root, on_bad="skip")
    assert len(list(source)) == 4 and source.bad_counts == {
        "bad_json": 2
    }  # one row number, two rows
    with pytest.raises(BadRecord, match="this is bad record number 2 and max_bad is 1"):
        list(ps.open(places, cache_dir=cache.root, on_bad="skip", max_bad=1))
    list(
        ps.open(places, cache_dir=cache.root, on_bad="quarantine", quarantine=tmp_path / "bad.txt")
    )
    lines = [json.loads(line) for line in (tmp_path / "bad.txt").read_text().splitlines()]
    assert [Path(line["file"]).name for line in lines] == ["a.jsonl", "b.jsonl"]


def test_a_description_tells_what_is_there(tmp_path: Path, cache: Cache) -> None:
    rows: list[dict[str, Any]] = [
        {"text": "x", "n": row if row % 2 else float(row)} for row in range(300)
    ]
    for row in range(0, 300, 3):
        rows[row]["tools"] = []
    rows[7]["rare"] = None
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = open_source(tmp_path / "chat.jsonl", cache=cache)
    assert str(source.describe(look=300)).splitlines() == [
        f"chat: jsonl, 300 records, 1 file, {(tmp_path / 'chat.jsonl').stat().st_size / 1000:.1f} kB",
        "  text: str (always)",
        "  n: float | int",
        "  tools: list | missing 67 %",
        "  rare: None | missing 100 %",
        "  (seen in all records)",
    ]
    seen = source[10:110].describe(look=50)
    assert (seen.num_rows, seen.looked, seen.num_bytes, seen.num_files, seen.format) == (
        100,
        50,
        None,
        1,
        "jsonl",
    )
    assert "seen in 50 records spread over the source" in str(seen)
    assert str(ListSource([]).describe()) == "list: list, 0 records\n  (seen in all records)"


def test_a_description_counts_what_cannot_be_read(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\nbad\n')
    source = open_source(tmp_path / "a.jsonl", cache=cache)
    assert source.describe().bad == 1 and "of which 1 cannot be read" in str(source.describe())
    assert source.bad_counts == {}  # a look is no read


def test_reprs_say_what_how_much_and_from_where(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "a.jsonl").write_text(ROW * 1500)
    source = open_source(tmp_path / "a.jsonl", cache=cache)
    base = "Files('a', jsonl, 1,500 records, 1 file, 16.5 kB)"
    assert (
        repr(source) == base
        and repr(source[5:9]) == f"{base}[5:9]"
        and repr(source[::-2]) == f"{base}[1499::-2]"
    )
    assert repr(source.select([1, 1])) == f"{base}.select(2 records)"
    assert (
        repr(source.map(dict)) == f"{base}.map(dict)"
        and repr(source.filter(bool)) == f"{base}.filter(bool)"
    )
    assert repr(ps.concat([source, source[:2]])) == "Concat('a', 1,502 records, 2 sources)"
    assert repr(open_source([{}], cache=cache)) == "ListSource('list', 1 record)"


def test_opening_json_lines_loads_no_template_engine_no_tokenizer_and_no_pyarrow(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    script = (
        "import sys, penstock as ps\n"
        f"source = ps.open({str(tmp_path / 'a.jsonl')!r}, cache_dir={str(tmp_path / 'cache')!r})\n"
        "assert ps.concat([source, source])[1] == {'text': 'a'}\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}), *sorted(sys.modules))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    heavy = {
        "pyarrow",
        "tokenizers",
        "fastokens",
        "jinja2",
        "torch",
        "transformers",
        "yaml",
        "datasets",
    }
    rooms = {
        "penstock.templates",
        "penstock.loader",
        "penstock.store",
        "penstock.recipe",
        "penstock.plan",
    }
    assert not (heavy | rooms) & set(result.stdout.split())


def test_a_folder_says_which_folders_in_it_hold_data_that_is_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Data files in folders below were left out without a word when the folder itself had some, too."""
    line = '{"text": "a"}\n'
    for name in ("a.jsonl", "more/b.jsonl", ".hidden/c.jsonl", "images/d.png", "test/e.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(line)
    assert len(ps.open(tmp_path)) == 1
    (said,) = [record.getMessage() for record in caplog.records]
    assert "are not read: more, test;" in said
    assert f"{tmp_path}/**" in said
    assert len(ps.open(f"{tmp_path}/**")) == 2
