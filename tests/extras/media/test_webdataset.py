"""Are the samples of a tar those that tarfile and webdataset's rule give, and is every damage named?"""

import io
import json
import os
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.cache import Cache
from penstock.errors import BadRecord, SourceChanged, SourceError
from penstock.sources import BadRows, open_source
from penstock.testing import check_source
from penstock.types import BadRow

NewFolder = Callable[[], Path]
Files = list[tuple[str, bytes]]
FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
SPARSE = b"25 GNU.sparse.realsize=1\n"
JPG = b"\xff\xd8 not a picture, but nobody looks \xff\xd9"
SAMPLES: Files = [
    ("a/1.jpg", JPG),
    ("a/1.json", b'{"messages": [{"role": "user", "content": "<image>?"}]}'),
    ("a/2.jpg", JPG + JPG),
    ("a/2.json", b'{"messages": []}'),
    ("a/3.txt", "grün".encode()),
    ("a/3.cls", b" 7\n"),
]


def write(path: Path, files: Files, *, format: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as tar:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def truth(path: Path) -> list[dict[str, Any]]:
    """Samples as webdataset makes them of what tarfile finds: raw bytes, and where they are."""
    samples: list[dict[str, Any]] = []
    with tarfile.open(path) as tar:
        for member in tar:
            found = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", member.name)
            if not member.isreg() or found is None or re.match(r"__[^/]*__($|/)", member.name):
                continue
            if not samples or samples[-1]["__key__"] != found[1]:
                samples.append({"__key__": found[1]})
            file = tar.extractfile(member)
            assert file is not None
            samples[-1][found[2].lower()] = (file.read(), member.offset_data)
    return samples


def as_record(path: Path, sample: dict[str, Any]) -> dict[str, Any]:
    """A sample of the truth as a record; its members are pictures, text, numbers and JSON."""
    record: dict[str, Any] = {"__key__": sample["__key__"]}
    for field, (data, offset) in list(sample.items())[1:]:
        match field.rpartition(".")[2]:
            case "json":
                record |= json.loads(data) if field == "json" else {field: json.loads(data)}
            case "txt":
                record[field] = data.decode()
            case "cls":
                record[field] = int(data)
            case _:
                record[field] = {
                    "bytes": None,
                    "path": str(path),
                    "start": offset,
                    "num_bytes": len(data),
                }
    if images := [record[field] for field in sample if field.endswith(("jpg", "png"))]:
        record["images"] = images
    return record


def rows_of(path: Path, cache: Cache) -> list[Any]:
    source = open_source(path, cache=cache, bad=BadRows(on_bad="skip"))
    return [
        row.reason if isinstance(row, BadRow) else row for row in source.records(0, len(source))
    ]


PARTS = st.text("ab.-é漢", min_size=1, max_size=6).filter(lambda part: part not in (".", ".."))
STEMS = st.lists(PARTS, min_size=1, max_size=3).map("/".join) | st.integers(90, 300).map(
    lambda n: "x" * n
)
FIELDS = st.dictionaries(
    st.sampled_from(["jpg", "0.png", "1.PNG", "txt", "json", "meta.json", "cls", "bin", ""]),
    st.integers(0, 1200),
    min_size=1,
    max_size=4,
)


def data_of(field: str, size: int) -> bytes:
    made = {"txt": b"t" * size, "json": json.dumps({"n": size}).encode(), "cls": b"%d" % size}
    return made.get(field.rpartition(".")[2], os.urandom(size))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    samples=st.dictionaries(STEMS, FIELDS, max_size=8),
    format=st.sampled_from(FORMATS),
    others=st.lists(
        st.sampled_from(["README", "._a.jpg", "__info__/a.jpg", ".hidden"]), max_size=2
    ),
)
def test_samples_are_those_of_tarfile_and_webdataset(
    new_folder: NewFolder, samples: dict[str, dict[str, int]], format: int, others: list[str]
) -> None:
    folder = new_folder()
    files = [
        (f"{stem}.{field}", data_of(field, n))
        for stem, fields in samples.items()
        for field, n in fields.items()
    ]
    try:
        path = write(folder / "a.tar", [*files, *((name, b"x") for name in others)], format=format)
    except ValueError:  # a name is too long for ustar
        return
    expected = truth(path)
    source = open_source(path, cache=Cache(folder / "cache"), bad=BadRows(on_bad="skip"))
    keys = [sample["__key__"] for sample in expected]
    rows = [
        None if keys.count(sample["__key__"]) > 1 else as_record(path, sample)
        for sample in expected
    ]
    check_source(source, expected=rows)
    assert [list(row) for row in source] == [
        list(row) for row in rows if row is not None
    ]  # fields in their order
    for sample, row in zip(expected, source.records(0, len(source)), strict=True):
        for field, value in row.items() if isinstance(row, dict) else ():
            if isinstance(value, dict) and "start" in value:
                whole = path.read_bytes()[value["start"] : value["start"] + value["num_bytes"]]
                assert whole == sample[field][0]


def test_a_large_tar_is_found_by_its_headers_and_the_cache_keeps_where_its_samples_are(
    tmp_path: Path,
) -> None:
    path, cache = tmp_path / "a.tar", Cache(tmp_path / "cache")
    with path.open("wb") as out:
        for number in range(4):
            member = tarfile.TarInfo(f"{number}.mp4")
            member.size = 32 << 20
            out.write(member.tobuf(tarfile.PAX_FORMAT))
            out.seek(member.size, os.SEEK_CUR)  # a hole: the file takes no space
        out.write(bytes(1024))
    before = _num_read()
    source = open_source(path, cache=cache)
    assert [row["mp4"]["num_bytes"] for row in source] == [32 << 20] * 4
    assert _num_read() - before < 2 << 20
    kept = [entry.name for entry in cache.entries("memo")]
    assert len(kept) == 1
    assert list(open_source(path, cache=cache)) == list(source)
    assert [entry.name for entry in cache.entries("memo")] == kept
    write(path, [("b.txt", b"another")])
    assert list(open_source(path, cache=cache)) == [{"__key__": "b", "txt": "another"}]


def _num_read() -> int:
    return int(re.findall(r"rchar: (\d+)", Path("/proc/self/io").read_text())[0])


def test_every_change_of_a_header_is_damage_behind_which_nothing_is_read(
    tmp_path: Path, cache: Cache
) -> None:
    path = write(tmp_path / "a.tar", SAMPLES, format=tarfile.GNU_FORMAT)
    whole, rows = path.read_bytes(), rows_of(path, cache)
    with tarfile.open(path) as tar:
        headers = [member.offset for member in tar]
    for number, header in enumerate(headers):
        for byte in {*range(0, 512, 31), 100, 124, 135, 149, 153, 156} - {
            148,
            155,
        }:  # spaces next to the checksum
            changed = bytearray(whole)
            changed[header + byte] ^= 1 << (byte % 8)
            path.write_bytes(changed)
            if not header:
                with pytest.raises(
                    SourceError, match=rf"{path}: cannot be read as a tar: .*; make it again"
                ):
                    rows_of(path, cache)
            else:  # samples have two members each; the unfinished one is not known to be whole
                good = max(0, (number + 1) // 2 - 1)
                assert rows_of(path, cache) == [*rows[:good], "bad_tar"], byte


def test_a_tar_cut_anywhere_gives_whole_samples_and_one_bad_row(
    tmp_path: Path, cache: Cache
) -> None:
    path = write(tmp_path / "a.tar", SAMPLES, format=tarfile.GNU_FORMAT)
    whole, rows = path.read_bytes(), rows_of(path, cache)
    with tarfile.open(path) as tar:
        begins = [member.offset for member in tar][::2]
        end = max(member.offset_data + 512 for member in tar)
    for size in range(513, end + 512, 97):
        path.write_bytes(whole[:size])
        if size < begins[0] + 512 + len(JPG):
            with pytest.raises(
                SourceError,
                match=r"cannot be read as a tar: 'a/1\.jpg' has 37 bytes, but the file ends",
            ):
                rows_of(path, cache)
            continue
        good = sum(
            size >= begin + 512 for begin in begins[1:]
        )  # the header of the next sample ends a sample
        assert rows_of(path, cache) == [*rows[:good], "bad_tar"]


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_beyond_eight_gibibytes_are_found(
    tmp_path: Path, cache: Cache, format: int
) -> None:
    path, size = tmp_path / "a.tar", (9 << 30) + 1
    with path.open("wb") as out:
        member = tarfile.TarInfo("a.mp4")
        member.size = size
        out.write(member.tobuf(format))
        begin = out.tell()
        out.seek(-(-size // 512) * 512, os.SEEK_CUR)  # a hole: the file takes no space
        after = tarfile.TarInfo("b.txt")
        after.size = 3
        out.write(after.tobuf(format) + b"end".ljust(512, b"\0") + bytes(1024))
    first, second = open_source(path, cache=cache)
    assert first["mp4"] == {"bytes": None, "path": str(path), "start": begin, "num_bytes": size}
    assert second["txt"] == "end"


def test_a_checksum_of_signed_bytes_is_right_too(tmp_path: Path, cache: Cache) -> None:
    path = write(tmp_path / "a.tar", [("é.txt", b"x")], format=tarfile.GNU_FORMAT)
    raw = bytearray(path.read_bytes())
    unsigned, signed = tarfile.calc_chksums(bytes(raw[:512]))  # type: ignore[attr-defined]  # not in its stubs
    assert unsigned != signed
    raw[148:155] = b"%06o\0" % signed
    path.write_bytes(raw)
    assert list(open_source(path, cache=cache)) == [{"__key__": "é", "txt": "x"}]


def header(name: str = "x.jpg", **changed: bytes) -> bytes:
    """A header with other bytes in some fields, and a checksum that is right again."""
    places = {"size": 124, "type": 156, "checksum": 148, "magic": 257}
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT))
    for field, value in changed.items():
        block[places[field] : places[field] + len(value)] = value
    if "checksum" not in changed:
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def after_a_sample(tmp_path: Path, tail: bytes) -> Path:
    path = tmp_path / "a.tar"
    whole = write(
        path, [("a.txt", b"good"), ("b.txt", b"unfinished")], format=tarfile.USTAR_FORMAT
    ).read_bytes()
    path.write_bytes(whole[:2048] + tail)
    return path


@pytest.mark.parametrize(
    ("tail", "why"),
    [
        (
            header("b.jpg", size=b"\x80" + (1 << 63).to_bytes(11, "big")),
            "'b.jpg' has 9,223,372,036,854,775,808 bytes, but",
        ),
        (header(size=b"\xff" * 12), "as a size, expected octal digits"),
        (header(size=b"0000000000g\0"), "as a size, expected octal digits"),
        (header(size=b"-0000000001\0"), "as a size, expected octal digits"),
        (header(checksum=b"0000000\0"), "but says 0"),
        (
            header(type=b"L", size=b"77777777777\0"),
            "a long name or PAX fields of 8,589,934,591 bytes",
        ),
        (
            header(type=b"L", size=b"00000000003\0") + b"abc".ljust(512, b"\0") + bytes(1024),
            "followed by no member",
        ),
        (
            header(type=b"x", size=b"00000000010\0") + b"9 path=a".ljust(512, b"\0"),
            "PAX fields are damaged",
        ),
        (
            header(type=b"x", size=b"00000000012\0") + b"11 size=-1".ljust(512, b"\0"),
            "PAX fields are damaged",
        ),
        (
            header(type=b"x", size=b"00000000013\0") + b"11 size=-1\n".ljust(512, b"\0"),
            "give the size b'-1'",
        ),
        (
            header(type=b"g", size=b"00000000013\0") + b"11 path=ab\n".ljust(512, b"\0"),
            "give a path or a size",
        ),
        (b"", "ends at byte 2048 without an end mark"),
        (bytes(100), "without an end mark"),
        (bytes(1024) + header() + bytes(1024), "data behind the end mark"),
    ],
)
def test_a_hostile_header_is_one_bad_row_that_says_what_is_wrong(
    tmp_path: Path, cache: Cache, tail: bytes, why: str
) -> None:
    path = after_a_sample(tmp_path, tail)
    assert rows_of(path, cache) == [{"__key__": "a", "txt": "good"}, "bad_tar"]
    message = rf"^{path}:2: the tar is damaged at byte \d+: .*{re.escape(why)}.*make it again.*byte 1024\); fix or"
    with pytest.raises(BadRecord, match=message):
        list(open_source(path, cache=cache))


@pytest.mark.parametrize(
    ("tail", "problem"),
    [
        (header(type=b"1"), "is a hard link"),
        (header(type=b"2"), "is a symbolic link"),
        (header(type=b"3"), "is a device"),
        (header(type=b"6"), "is a pipe"),
        (header(type=b"S", magic=b"ustar  \0"), "is a sparse file"),
        (header(type=b"Q"), "has the unknown type b'Q'"),
        (
            header(type=b"x", size=b"00000000031\0") + SPARSE.ljust(512, b"\0") + header(),
            "is a sparse file",
        ),
    ],
)
def test_what_is_not_a_plain_file_makes_its_sample_a_bad_row(
    tmp_path: Path, cache: Cache, tail: bytes, problem: str
) -> None:
    path = after_a_sample(tmp_path, tail + bytes(1024))
    unfinished = {"__key__": "b", "txt": "unfinished"}
    assert rows_of(path, cache) == [{"__key__": "a", "txt": "good"}, unfinished, "bad_member"]
    with pytest.raises(
        BadRecord,
        match=rf"{path}:3: 'x.jpg' \(byte \d+\) {re.escape(problem)}, expected a plain file",
    ):
        list(open_source(path, cache=cache))


def test_names_that_lead_out_of_a_folder_are_keys_and_open_nothing(
    tmp_path: Path, cache: Cache
) -> None:
    path = write(tmp_path / "a.tar", [("../../etc/passwd.txt", b"x"), ("/etc/shadow.jpg", JPG)])
    first, second = open_source(path, cache=cache)
    assert first == {"__key__": "../../etc/passwd", "txt": "x"}
    assert (second["__key__"], second["jpg"]["path"]) == ("/etc/shadow", str(path))


@pytest.mark.parametrize(
    ("files", "rows", "message"),
    [
        (
            [("a.txt", b"1"), ("b.txt", b"2"), ("a.jpg", JPG)],
            ["split_sample", {"b": 2}, "split_sample"],
            "'a' is also",
        ),
        (
            [("a.txt", b"1"), ("a.TXT", b"2")],
            ["duplicate_key"],
            "the sample has the field 'txt' twice",
        ),
        ([("a.json", b"{")], ["bad_json"], "'a.json': not JSON"),
        ([("a.txt", b"\xff")], ["bad_utf8"], "'a.txt': "),
        ([("a.cls", b"seven")], ["bad_value"], "'a.cls': b'seven' is not an integer"),
        (
            [("a.json", b'{"jpg": 1}'), ("a.jpg", JPG)],
            ["duplicate_key"],
            "rename it, or pass merge_json=False",
        ),
    ],
)
def test_a_sample_that_cannot_be_read_is_a_bad_row(
    tmp_path: Path, cache: Cache, files: Files, rows: list[Any], message: str
) -> None:
    path = write(tmp_path / "a.tar", files)
    assert [row if isinstance(row, str) else {"b": 2} for row in rows_of(path, cache)] == rows
    with pytest.raises(BadRecord, match=re.escape(message)):
        list(open_source(path, cache=cache))


def test_json_is_merged_unless_it_is_no_object_or_shall_not_be(
    tmp_path: Path, cache: Cache
) -> None:
    path = write(
        tmp_path / "a.tar", [("a.json", b'{"jpg": 1, "n": 2}'), ("a.jpg", JPG), ("b.json", b"[1]")]
    )
    first, second = open_source(path, cache=cache, merge_json=False)
    assert (first["json"], second) == ({"jpg": 1, "n": 2}, {"__key__": "b", "json": [1]})
    assert open_source(path, cache=cache)[1] == second
    with pytest.raises(SourceError, match="merge_json is 'no', expected true or false"):
        open_source(path, cache=cache, merge_json="no")
    small = open_source(
        path, cache=cache, merge_json=False, max_row_bytes=5, bad=BadRows(on_bad="skip")
    )
    assert list(small) == [second]
    assert small.bad_counts == {"too_long": 1}


def test_the_digest_covers_every_byte_and_where_media_are(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "a.tar"

    def digests(files: Files, **options: Any) -> list[str]:
        source = open_source(write(path, files), cache=cache, **options)
        assert len(source) == 3
        return [source.digest(row, row + 1) for row in range(3)]

    once = digests(SAMPLES)
    assert digests(SAMPLES) == once
    changed = digests([(name, data.replace(b"nobody", b"noone!")) for name, data in SAMPLES])
    assert [one == other for one, other in zip(once, changed, strict=True)] == [False, False, True]
    moved = digests(
        [("README", b""), *SAMPLES]
    )  # a store keeps where the images are; of text it does not matter
    assert [one == other for one, other in zip(once, moved, strict=True)] == [False, False, True]
    assert set(once).isdisjoint(digests(SAMPLES, merge_json=False))


def test_a_key_of_the_json_object_is_not_replaced_by_the_list_of_images(
    tmp_path: Path, cache: Cache
) -> None:
    path = write(
        tmp_path / "a.tar",
        [("a.0.jpg", JPG), ("a.json", b'{"images": ["x"]}'), ("b.1.png", JPG), ("b.wav", b"")],
    )
    first, second = open_source(path, cache=cache)
    assert first["images"] == ["x"]
    write(path, [("a.jpg", JPG), ("a.json", b'{"images": null, "videos": []}')])
    (empty,) = open_source(path, cache=cache)
    assert (empty["images"], empty["videos"]) == ([empty["jpg"]], [])
    assert (second["images"], second["audios"]) == ([second["1.png"]], [second["wav"]])


def test_tars_are_named_by_braces_globs_and_folders(tmp_path: Path, cache: Cache) -> None:
    for number in range(70):  # so many that the cache keeps their counts together
        write(tmp_path / f"data-{number:03}.tar", [(f"{number}.txt", b"x")])
    for place in ("data-{000..069}.tar", "data-*.tar", "", "data-0{0?,1?,2?,3?,4?,5?,6?}.tar"):
        for _ in range(2):
            source = ps.open(tmp_path / place, cache_dir=cache.root)
            assert [row["__key__"] for row in source] == [str(number) for number in range(70)]
    assert len(ps.open(f"{tmp_path}/data-{{000..009}}.tar@[2:4]", cache_dir=cache.root)) == 2
    with pytest.raises(SourceError, match=r"data-070.tar: nothing found, expected a file"):
        ps.open(tmp_path / "data-{000..070}.tar", cache_dir=cache.root)


def test_a_compressed_tar_and_a_file_that_is_no_tar_are_refused(
    tmp_path: Path, cache: Cache
) -> None:
    for name in ("a.tar.gz", "a.tgz", "a.tar.zst"):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(
            SourceError,
            match=rf"{tmp_path / name}: a compressed tar has no random access.*unpack it",
        ):
            open_source(tmp_path / name, cache=cache)
    for content in (b"", b"<html>" * 200):
        (tmp_path / "a.tar").write_bytes(content)
        with pytest.raises(SourceError, match=rf"{tmp_path / 'a.tar'}: cannot be read as a tar: "):
            open_source(tmp_path / "a.tar", cache=cache)


def test_a_tar_that_changes_while_open_is_noticed(tmp_path: Path, cache: Cache) -> None:
    path = write(tmp_path / "a.tar", SAMPLES)
    source = open_source(path, cache=cache)
    write(path, [("b.jpg", JPG), *SAMPLES])
    for read in (lambda: source[0], lambda: list(source), lambda: source.digest(0, 1)):
        with pytest.raises(SourceChanged, match="open the source again"):
            read()
