"""Does an object store keep the contract of a place, and is what goes wrong there repeated or said?"""

import glob
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import SourceChanged, SourceError
from penstock.places import exists, find, identify, is_folder, open_file, open_place, read
from penstock.sources.splits import choose_files
from penstock.testing import check_place
from tests.extras.remote.conftest import Put, ask
from tests.extras.remote.fault_proxy import FaultProxy

DATA = bytes(range(256)) * 400


def test_a_bucket_keeps_the_contract_of_a_place(proxy: FaultProxy) -> None:
    check_place(open_place("s3://bkt/check")[0], "s3://bkt/check")


def test_globs_find_in_a_bucket_what_the_glob_module_finds_in_a_folder(
    put: Put, tmp_path: Path
) -> None:
    names = [
        "a/b/c.jsonl",
        "a/c.jsonl",
        "a/.h/c.jsonl",
        "x.jsonl",
        "a/b/d.txt",
        ".top.jsonl",
        "ü b/c.jsonl",
        "a/x[1].jsonl",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
        put(f"data/{name}", b"x")
    for pattern in (
        *(
            "**",
            "**/*.jsonl",
            "*/*.jsonl",
            "*",
            "a/**",
            "a/**/c.jsonl",
            "?.jsonl",
            "*/b/*",
            ".*",
            "**/b/**",
            "[ax]*/c.jsonl",
        ),
    ):
        listed = glob.glob(str(tmp_path / pattern), recursive=True)  # noqa: PTH207
        expected = sorted(
            os.path.relpath(path, tmp_path) for path in listed if not Path(path).is_dir()
        )
        assert (
            sorted(path.removeprefix("s3://bkt/data/") for path in find(f"s3://bkt/data/{pattern}"))
            == expected
        )
    assert find("s3://bkt/data/a/x[1].jsonl") == ["s3://bkt/data/a/x[1].jsonl"]


def test_an_empty_object_that_marks_a_folder_is_not_a_file(put: Put) -> None:
    for name in ("data/", "data/sub/", "data/none/"):
        put(name, b"")
    put("data/part-10.jsonl", b"{}\n")
    put("data/part-9.jsonl", b"{}\n")
    put("data/sub/empty.jsonl", b"")
    assert find("s3://bkt/data") == ["s3://bkt/data/part-9.jsonl", "s3://bkt/data/part-10.jsonl"]
    assert find("s3://bkt/data/**")[2:] == ["s3://bkt/data/sub/empty.jsonl"]
    assert (
        is_folder("s3://bkt/data")
        and is_folder("s3://bkt/data/sub/")
        and not exists("s3://bkt/dat")
    )


def test_a_glob_without_two_stars_lists_only_the_folders_that_it_names(
    put: Put, proxy: FaultProxy
) -> None:
    put("data/a.jsonl", b"{}")
    for number in range(5):
        put(f"data/deep/{number}/x.jsonl", b"{}")
    assert find("s3://bkt/data/*.jsonl") == ["s3://bkt/data/a.jsonl"]
    listings = [
        path for method, path, _, _ in proxy.log if "list-type" in path and "delimiter" in path
    ]
    assert len(listings) == 1


@pytest.mark.parametrize("do", [503, 500, 429, 409, "reset", "cut", "long-length", "short-length"])
def test_a_failed_read_is_repeated_until_it_is_whole(
    put: Put, proxy: FaultProxy, do: int | str
) -> None:
    file = open_file(identify(put("a.bin", DATA)))
    proxy.fault(do, "a.bin", method="GET", times=3)
    assert file.read(1000, 90_000) == DATA[1000:90_000]
    assert [fault for *_, fault in proxy.log if fault] == [do] * 3


def test_a_request_without_an_answer_is_repeated(
    put: Put, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_REMOTE_TIMEOUT", "1")
    url = put("a.bin", DATA)
    proxy.fault("stall", "a.bin", method="GET")
    assert read(url) == DATA


@pytest.mark.parametrize(
    ("status", "words"),
    [(403, "access denied.*AWS_ACCESS_KEY_ID"), (404, "nothing found.*check the name.*AWS_REGION")],
)
def test_what_cannot_pass_is_asked_for_once_and_says_what_to_do(
    put: Put, proxy: FaultProxy, status: int, words: str
) -> None:
    url = put("a.bin", DATA)
    proxy.fault(status, "a.bin", times=9)
    with pytest.raises(SourceError, match=f"s3://bkt/a.bin: .*{words}"):
        identify(url)
    assert len(proxy.log) == 1


def test_a_store_that_stays_down_is_an_error_with_the_number_of_tries(
    put: Put, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_REMOTE_TRIES", "3")
    url = put("a.bin", DATA)
    proxy.fault(503, "a.bin", times=99)
    with pytest.raises(
        SourceError,
        match=r"s3://bkt/a.bin: the server answers 503 \(tried 3 times\); run again later",
    ):
        read(url)


def test_names_that_cannot_be_are_errors_with_the_name(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url, words in {
        "s3://bkt/no.jsonl": r"no\.jsonl: nothing found",
        "s3://bkt/*.jsonl": r"nothing found, expected at least one file to match \(in s3://bkt\)",
        "s3://nobody/*.jsonl": "the bucket does not exist",
        "s3://": "no bucket, expected s3://bucket/name",
        "s3://bkt/a//b": "empty path segment",
        "ftp://host/a": r"unknown kind of place ftp://, expected a local path or one of s3://, gs://, az://, http://",
        "http://127.0.0.1:1/a.jsonl?x=1": "a URL with a query",
        "az://container/a.jsonl": "Account must be specified; .*AZURE_STORAGE_ACCOUNT_NAME",
    }.items():
        with pytest.raises(SourceError, match=words):
            find(url)
    monkeypatch.setenv("PENSTOCK_REMOTE_TRIES", "many")
    with pytest.raises(
        SourceError, match="PENSTOCK_REMOTE_TRIES is 'many', expected a number above 0"
    ):
        find("s3://bkt/a")


def test_an_object_that_is_replaced_while_it_is_read_is_an_error(put: Put) -> None:
    file = open_file(identify(put("a.bin", DATA)))
    assert file.read(0, 10) == DATA[:10]
    put("a.bin", DATA[::-1])
    with pytest.raises(
        SourceChanged, match=r"s3://bkt/a\.bin: changed while open: .*open the source again"
    ):
        file.read(90_000, 100_000)
    with pytest.raises(SourceChanged):
        pickle.loads(pickle.dumps(file))


def test_a_scan_asks_for_few_large_ranges(put: Put, proxy: FaultProxy) -> None:
    data = os.urandom(10 << 20)
    file = open_file(identify(put("large.bin", data)))
    proxy.log.clear()
    room, found = bytearray(1 << 20), b""
    while count := file.readinto(room, len(found)):
        found += room[:count]
    assert found == data
    ranges = [asked for method, _, asked, _ in proxy.log if method == "GET"]
    assert len(ranges) <= 6
    edges = [tuple(map(int, asked.removeprefix("bytes=").split("-"))) for asked in ranges if asked]
    assert sum(stop - start + 1 for start, stop in edges) == len(data)  # no byte twice


def test_an_old_listing_gives_no_old_bytes(put: Put, proxy: FaultProxy) -> None:
    put("data/a.bin", b"old")
    put("data/b.bin", b"gone soon")
    assert len(find("s3://bkt/data/*.bin")) == 2
    put("data/a.bin", b"newer bytes")
    open_place("s3://bkt")[0].remove("s3://bkt/data/b.bin")
    proxy.fault("stale", "list-type", times=99)
    found = find("s3://bkt/data/*.bin")
    assert found == ["s3://bkt/data/a.bin", "s3://bkt/data/b.bin"]  # as the listing says
    assert open_file(identify(found[0])).read(0, 11) == b"newer bytes"
    with pytest.raises(SourceError, match=r"b\.bin: nothing found"):
        identify(found[1])


@pytest.mark.parametrize("do", ["lost-reply", 503, 409, "reset"])
def test_a_create_whose_reply_was_lost_is_recognised(proxy: FaultProxy, do: int | str) -> None:
    place = open_place("s3://bkt/x")[0]
    proxy.fault(do, "/bkt/x", method="PUT", times=2)
    assert place.create("s3://bkt/x", lambda file: file.write(DATA)) == len(DATA)
    assert place.read("s3://bkt/x") == DATA
    with pytest.raises(FileExistsError, match="already there with other content"):
        place.create("s3://bkt/x", lambda file: file.write(DATA[1:]))


LARGE = os.urandom(1 << 20) * 33


@pytest.mark.parametrize(("method", "match"), [("PUT", "partNumber="), ("POST", "uploadId=")])
def test_a_large_object_is_written_in_parts_and_is_whole_or_absent(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, method: str, match: str
) -> None:
    """Of an upload that fails, no part arrives, or all do: moto cannot take a part and the end of its upload at once."""
    monkeypatch.setenv("PENSTOCK_REMOTE_TRIES", "2")
    monkeypatch.setenv(
        "PENSTOCK_REMOTE_TIMEOUT", "120"
    )  # 33 MB through a proxy in Python, on a machine that others use
    place, data = open_place("s3://bkt/x")[0], LARGE
    proxy.fault(503, match, method=method, times=99)
    with pytest.raises(OSError, match="503"):
        place.create("s3://bkt/x", lambda file: file.write(data))
    assert place.kind("s3://bkt/x") == ""
    assert b"<UploadId>" not in ask(proxy.upstream, "/bkt?uploads", "GET")  # no part is left there
    proxy.rules.clear()
    assert place.create("s3://bkt/x", lambda file: file.write(data)) == len(data)
    assert sum("partNumber" in path and method == "PUT" for method, path, _, _ in proxy.log) >= 5
    assert place.read("s3://bkt/x") == place.read_now("s3://bkt/x") == data


@pytest.mark.parametrize("end", [403, 404, 500])
def test_an_upload_whose_part_failed_and_that_cannot_be_ended_is_repeated(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    """The client says only why it could not end the upload: that must not count as "denied" or "nothing found"."""
    monkeypatch.setenv("PENSTOCK_REMOTE_TIMEOUT", "120")
    place = open_place("s3://bkt/x")[0]
    proxy.fault(503, "uploadId=", method="POST")
    proxy.fault(end, "uploadId=", method="DELETE")
    assert place.create("s3://bkt/x", lambda file: file.write(LARGE)) == len(LARGE)
    assert [fault for *_, fault in proxy.log if fault] == [503, end]


def test_a_bucket_in_another_region_is_said_at_once(
    put: Put, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put("a.bin", DATA)
    proxy.fault(301, "a.bin", times=9)
    with pytest.raises(SourceError, match="the bucket is in another region; set AWS_REGION"):
        identify(url)
    assert len(proxy.log) == 1


def test_the_store_s_own_word_for_a_failure_is_in_the_error(put: Put, proxy: FaultProxy) -> None:
    file = open_file(identify(put("a.bin", DATA)))
    proxy.fault(403, "a.bin", method="GET")
    with pytest.raises(
        SourceError, match=r"access denied \(403 AccessDenied\); .*the clock of this machine"
    ):
        file.read(0, 10)


def test_secrets_are_not_in_a_pickle(
    proxy: FaultProxy, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    file = open_file(identify(put("a.bin", DATA)))
    assert file.read(0, 3) == DATA[:3]
    assert b"very-secret" not in pickle.dumps(file)


def test_a_process_that_was_forked_after_a_request_is_refused_and_does_not_hang(put: Put) -> None:
    url = put("a.bin", DATA)
    script = (
        "import os, sys\nfrom penstock.places import read\n"
        f"assert len(read({url!r})) == {len(DATA)}\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    try:\n"
        f"        read({url!r})\n"
        "    except Exception as error:\n"
        "        print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        f"assert len(read({url!r})) == {len(DATA)}\n"  # the parent goes on
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert (
        "was forked from one that has read from a remote place" in done.stdout
        and "spawn" in done.stdout
    )


def test_missing_credentials_are_said_to_be_missing(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")  # nothing leaves this machine
    monkeypatch.setenv("PENSTOCK_REMOTE_TRIES", "2")
    with pytest.raises(
        SourceError,
        match=r"the environment has no credentials.*AWS_ACCESS_KEY_ID.*AWS_SKIP_SIGNATURE",
    ):
        read("s3://bkt/a.jsonl")
    assert not proxy.log


def test_files_in_a_bucket_are_chosen_by_the_same_rule() -> None:
    files = [f"s3://bucket/test/data/{name}" for name in ("dev.jsonl", "part.jsonl")]
    chosen = choose_files("s3://bucket/test/data/", files, "train")
    assert (chosen.used, chosen.left_out) == (files[1:], files[:1])
