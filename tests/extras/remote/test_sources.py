"""Are records in a bucket or on a web server those of the same files on a disk, in every format and from worker processes?"""

import csv
import functools
import gzip
import http.server
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.errors import SourceChanged, SourceError
from penstock.extras.remote.requests import shorten
from tests.extras.remote.conftest import Put
from tests.extras.remote.fault_proxy import FaultProxy

ROWS = [
    {"text": f"row {number} the quick brown fox " * (1 + number % 3), "n": number}
    for number in range(2000)
]


def _files() -> dict[str, bytes]:
    table = pa.Table.from_pylist(ROWS)
    parquet, arrow, text = pa.BufferOutputStream(), pa.BufferOutputStream(), io.StringIO()
    pq.write_table(table, parquet, row_group_size=300)
    with pa.ipc.new_file(arrow, table.schema) as writer:
        writer.write_table(table, max_chunksize=300)
    sheet = csv.DictWriter(text, ["text", "n"])
    sheet.writeheader()
    sheet.writerows(ROWS)
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    return {
        "a.jsonl": lines,
        "a.json": json.dumps(ROWS).encode(),
        "a.jsonl.gz": gzip.compress(lines),
        "a.txt": "".join(row["text"] + "\n" for row in ROWS).encode(),  # type: ignore[operator]
        "a.csv": text.getvalue().encode(),
        "a.parquet": parquet.getvalue().to_pybytes(),
        "a.arrow": arrow.getvalue().to_pybytes(),
    }


FILES = _files()
LARGE = FILES["a.jsonl"] * 50  # more than is read ahead


@pytest.mark.parametrize("name", FILES)
def test_records_of_a_bucket_are_those_of_a_local_file(put: Put, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    here = ps.open(tmp_path / name, cache_dir=tmp_path / "cache")
    there = ps.open(put(f"data/{name}", FILES[name]), cache_dir=tmp_path / "cache")
    assert len(here) == len(there) == len(ROWS)
    assert list(here) == list(there)
    assert [here[row] for row in (1999, 3, 1000)] == [there[row] for row in (1999, 3, 1000)]
    assert here.digest(0, len(here)) == there.digest(0, len(there))
    assert there.locate(7).file == f"s3://bkt/data/{name}"


def test_globs_folders_slices_and_splits_are_written_as_for_local_files(
    put: Put, tmp_path: Path
) -> None:
    for number in (1, 2, 10):
        put(f"data/train-{number}.jsonl", json.dumps({"n": number}).encode() + b"\n")
    put("data/test-1.jsonl", b'{"n": -1}\n')
    put("data/README.md", b"# words\n")

    def numbers(place: str, split: str | None = None) -> list[int]:
        return [record["n"] for record in ps.open(place, split=split, cache_dir=tmp_path)]

    assert numbers("s3://bkt/data/train-*.jsonl") == [1, 2, 10]
    assert numbers("s3://bkt/data/train-*.jsonl@[1:]") == [2, 10]
    assert numbers("s3://bkt/data", split="train") == [1, 2, 10]
    assert numbers("s3://bkt/data", split="test") == [-1]
    with pytest.raises(SourceError, match=r"s3://bkt/data: no file name contains the split 'dev'"):
        numbers("s3://bkt/data", split="dev")


def test_a_folder_that_datasets_saved_is_refused_by_name(put: Put, tmp_path: Path) -> None:
    put("saved/state.json", b"{}")
    put("saved/data-0.arrow", FILES["a.arrow"])
    with pytest.raises(
        SourceError, match=r"s3://bkt/saved: has state\.json: .* local disk only; download it"
    ):
        ps.open("s3://bkt/saved", cache_dir=tmp_path)
    assert len(ps.open("s3://bkt/saved/*.arrow", cache_dir=tmp_path)) == len(ROWS)


def test_an_object_that_was_read_is_not_read_again_and_a_new_one_is(
    put: Put, proxy: FaultProxy, tmp_path: Path
) -> None:
    lines = FILES["a.jsonl"]
    url = put("a.jsonl", lines)
    assert len(ps.open(url, cache_dir=tmp_path)) == 2000
    proxy.log.clear()
    assert len(ps.open(url, cache_dir=tmp_path)) == 2000
    asked = [range_ for method, _, range_, _ in proxy.log if method == "GET" and range_]
    assert len(asked) <= 4  # one look at what the file is, three small probes
    put(
        "a.jsonl", lines.replace(b"row 7 ", b"row\n7 ", 1).replace(b"row\n7 ", b"r0w 7 ", 1)
    )  # equal length, perhaps in the same second
    assert ps.open(url, cache_dir=tmp_path)[7]["text"].startswith("r0w 7")


def test_a_source_whose_object_is_replaced_says_so(put: Put, tmp_path: Path) -> None:
    url = put("a.jsonl", LARGE)
    source = ps.open(url, cache_dir=tmp_path)
    put("a.jsonl", LARGE[::-1])
    with pytest.raises(SourceChanged, match=r"s3://bkt/a\.jsonl: changed while open"):
        list(source)


@pytest.mark.parametrize("num_proc", [1, 2])
def test_a_store_of_a_bucket_is_that_of_local_files_with_any_number_of_processes(
    put: Put, tmp_path: Path, tokenizer_path: Path, num_proc: int
) -> None:
    (tmp_path / "a.jsonl").write_bytes(FILES["a.jsonl"])
    options = {"tokenizer": tokenizer_path, "template": "text", "progress": "none"}
    here = ps.prepare(tmp_path / "a.jsonl", cache_dir=tmp_path / "one", **options)
    there = ps.prepare(
        put("a.jsonl", FILES["a.jsonl"]), cache_dir=tmp_path / "two", num_proc=num_proc, **options
    )
    assert len(here) == len(there) == len(ROWS)
    assert all(
        (here[row].input_ids == there[row].input_ids).all() for row in range(0, len(ROWS), 50)
    )
    shards = [
        sorted(path.name for path in (tmp_path / cache / "shards").rglob("*.arrow"))
        for cache in ("one", "two")
    ]
    assert shards[0] == shards[1] != []


def test_a_script_that_has_read_a_bucket_prepares_with_processes_and_trains_with_workers(
    put: Put, tmp_path: Path, tokenizer_path: Path
) -> None:
    urls = [put(f"part-{number}.jsonl", FILES["a.jsonl"]) for number in range(3)]
    script = tmp_path / "train.py"
    script.write_text(  # no __main__ guard, as users write it
        "import penstock as ps\nfrom penstock.engines import LocalEngine\n"
        f"print(ps.open({urls[0]!r}, cache_dir={str(tmp_path / 'cache')!r})[5]['n'])\n"
        f"store = ps.prepare('s3://bkt/part-*.jsonl', tokenizer={str(tokenizer_path)!r}, template='text',\n"
        f"    cache_dir={str(tmp_path / 'cache')!r}, engine=LocalEngine(2, inline=False), progress='none')\n"
        "loader = ps.Loader(store, batch_size=64, max_length=256)\n"
        "print(sum(1 for batch in loader) == len(loader), len(store))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["5", "True", "6000"]


class _Ranges(http.server.SimpleHTTPRequestHandler):
    """Files of a folder with ranges and ETags, as web servers have them."""

    protocol_version = "HTTP/1.1"
    etag = dated = ranges = True
    encoding = ""

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            return self.send_error(404)
        data, status = path.read_bytes(), 200
        size = len(data)
        if (asked := self.headers.get("Range")) and self.ranges:
            start, stop = (int(edge) for edge in asked.removeprefix("bytes=").split("-"))
            data, status = data[start : stop + 1], 206
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{start + len(data) - 1}/{size}")
        if self.etag:
            self.send_header("ETag", f'"{path.stat().st_mtime_ns:x}"')
        if self.dated:
            self.send_header("Last-Modified", self.date_time_string(int(path.stat().st_mtime)))
        if self.encoding:
            self.send_header("Content-Encoding", self.encoding)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)
        return None

    do_HEAD = do_GET


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    folder = tmp_path / "www"
    folder.mkdir()
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Ranges, directory=str(folder))
    )
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.arrow"])
def test_records_of_a_web_server_are_those_of_a_local_file(
    web: tuple[str, Path], tmp_path: Path, name: str
) -> None:
    url, folder = web
    (folder / "with space").mkdir()
    (folder / "with space" / name).write_bytes(FILES[name])
    source = ps.open(f"{url}/with%20space/{name}", cache_dir=tmp_path / "cache")
    assert [record["n"] for record in source] == list(range(2000))


def test_a_web_server_lists_nothing_and_says_so(web: tuple[str, Path], tmp_path: Path) -> None:
    url, _ = web
    with pytest.raises(SourceError, match="a web server does not list its files; name each file"):
        ps.open(f"{url}/*.jsonl", cache_dir=tmp_path)
    with pytest.raises(
        SourceError, match=r"no\.jsonl: nothing found \(404\); check the name; check the address"
    ):
        ps.open(f"{url}/no.jsonl", cache_dir=tmp_path)


def test_a_web_server_without_etags_is_read_and_never_copied(
    web: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Ranges, "etag", False)
    url, folder = web
    (folder / "a.jsonl").write_bytes(LARGE)
    (folder / "a.arrow").write_bytes(FILES["a.arrow"])
    source = ps.open(f"{url}/a.jsonl", cache_dir=tmp_path / "cache")
    assert source[1999]["n"] == 1999 and source.stamp() is None
    with pytest.raises(SourceError, match=r"a\.arrow: the server gives no strong ETag"):
        ps.open(f"{url}/a.arrow", cache_dir=tmp_path / "cache")
    os.truncate(folder / "a.jsonl", 5_000_000)
    with pytest.raises(SourceChanged):
        list(source)


def test_a_web_server_that_shows_no_change_or_gives_no_ranges_is_refused(
    web: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, folder = web
    (folder / "a.jsonl").write_bytes(FILES["a.jsonl"])
    monkeypatch.setattr(_Ranges, "ranges", False)  # answers 200 with the whole file instead of 206
    with pytest.raises(
        SourceError, match=r"a\.jsonl: not possible here: .*Range.*; download the file"
    ):
        len(ps.open(f"{url}/a.jsonl", cache_dir=tmp_path / "cache"))
    monkeypatch.setattr(_Ranges, "etag", False)
    monkeypatch.setattr(_Ranges, "dated", False)
    with pytest.raises(
        SourceError, match=r"a\.jsonl: the server gives neither an ETag nor Last-Modified"
    ):
        ps.open(f"{url}/a.jsonl", cache_dir=tmp_path / "cache")


def test_compressed_bytes_under_a_plain_name_are_refused_and_not_read_as_bad_rows(
    web: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, folder = web
    for name in ("a.jsonl", "a.jsonl.gz"):
        (folder / name).write_bytes(gzip.compress(FILES["a.jsonl"]))
    monkeypatch.setattr(_Ranges, "encoding", "gzip")
    with pytest.raises(
        SourceError, match=r"a\.jsonl: comes with Content-Encoding gzip, and its name does not say"
    ):
        len(ps.open(f"{url}/a.jsonl", cache_dir=tmp_path / "cache", on_bad="skip"))
    assert len(ps.open(f"{url}/a.jsonl.gz", cache_dir=tmp_path / "cache")) == 2000


@pytest.mark.parametrize(
    "url",
    [
        "https://me:hunter2@127.0.0.1/a.jsonl",
        "http://127.0.0.1/a.jsonl?sig=hunter2",
        "s3://me:hunter2@b/a",
    ],
)
def test_a_url_with_credentials_is_refused_and_not_printed(url: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="a URL with a") as error:
        ps.open(url, cache_dir=tmp_path)
    assert "hunter2" not in str(error.value)


def test_a_signature_in_the_answer_of_a_server_is_not_printed() -> None:
    assert shorten("GET https://a.b/c?sv=1&sig=hunter2: 400") == "GET https://a.b/c?… 400"
