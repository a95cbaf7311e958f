"""Does a name stand for the right files, in the right order, and does a read give exactly what was asked for?"""

import glob
import os
import pickle
import threading
from pathlib import Path

import pytest

from penstock.errors import SourceChanged, SourceError
from penstock.places import find, identify, open_file
from penstock.places.files import natural
from tests.cache.people import NOBODY, as_root, run


def test_natural_order_counts() -> None:
    names = ["part-10.jsonl", "part-2.jsonl", "part-1.jsonl", "part-02.jsonl", "a", "10", "9"]
    assert sorted(names, key=natural) == [
        "9",
        "10",
        "a",
        "part-1.jsonl",
        "part-02.jsonl",
        "part-2.jsonl",
        "part-10.jsonl",
    ]


def test_globs_folders_and_paths(tmp_path: Path) -> None:
    for name in ("p-10.jsonl", "p-9.jsonl", "sub/x.jsonl", "other.txt", ".hidden.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [Path(path).name for path in find(tmp_path / "*.jsonl")] == ["p-9.jsonl", "p-10.jsonl"]
    assert [Path(path).name for path in find(f"{tmp_path}/**/*.jsonl")] == [
        "p-9.jsonl",
        "p-10.jsonl",
        "x.jsonl",
    ]
    assert [Path(path).name for path in find(tmp_path)] == ["other.txt", "p-9.jsonl", "p-10.jsonl"]
    assert find(tmp_path / "p-9.jsonl") == [str(tmp_path / "p-9.jsonl")]


def test_a_name_with_glob_characters_that_exists_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "a[1].jsonl").touch()
    (tmp_path / "a1.jsonl").touch()
    assert find(tmp_path / "a[1].jsonl") == [str(tmp_path / "a[1].jsonl")]


@pytest.mark.extra("remote")
def test_nothing_there_is_an_error_with_the_name(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"\*\.jsonl: nothing found, expected at least one file"):
        find(tmp_path / "*.jsonl")
    (tmp_path / ".hidden").touch()
    with pytest.raises(SourceError, match=r"nothing found, expected a file in this folder$"):
        find(tmp_path)
    (tmp_path / "below").mkdir()
    with pytest.raises(
        SourceError, match=r"the folder has 1 folder in it: .*/\*\* selects all files below"
    ):
        find(tmp_path)
    with pytest.raises(SourceError, match=r"no\.jsonl: nothing found"):
        identify(str(tmp_path / "no.jsonl"))
    with pytest.raises(SourceError, match="not a regular file"):
        identify(str(tmp_path))
    with pytest.raises(
        SourceError, match="unknown kind of place ftp://, expected a local path or one of s3://"
    ):
        find("ftp://host/a.jsonl")


def test_ranges_from_many_threads(tmp_path: Path) -> None:
    content = os.urandom(1 << 16)
    (tmp_path / "a").write_bytes(content)
    file = open_file(identify(str(tmp_path / "a")))
    wrong: list[int] = []

    def reader(seed: int) -> None:
        for start in range(seed, len(content) - 100, 97):
            if file.read(start, start + 100) != content[start : start + 100]:
                wrong.append(start)

    threads = [threading.Thread(target=reader, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert pickle.loads(pickle.dumps(file)).read(5, 9) == content[5:9]


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    file = open_file(identify(str(path)))
    os.truncate(path, 4)
    with pytest.raises(
        SourceChanged, match=r"a: changed while open: ends at byte 4, expected 10 bytes"
    ):
        file.read(0, 10)
    with pytest.raises(SourceChanged, match="has 4 bytes"):
        file.check()
    with pytest.raises(SourceChanged):
        pickle.loads(pickle.dumps(file))


@as_root
@pytest.mark.parametrize("pattern", ["**", "**/*.jsonl", "*/*.jsonl", "*/b.jsonl"])
def test_a_glob_that_meets_a_folder_which_may_not_be_listed_is_an_error_with_its_name(
    public_path: Path, pattern: str
) -> None:
    for name in ("open/b.jsonl", "closed/b.jsonl"):
        (public_path / name).parent.mkdir()
        (public_path / name).write_text("{}\n")
    (public_path / "closed").chmod(0o700)
    script = (
        "from penstock.places import find\nfrom penstock.errors import SourceError\n"
        f"try:\n    print(find({f'{public_path}/{pattern}'!r}))\nexcept SourceError as error:\n    print(error)\n"
    )
    found = run(script, uid=NOBODY)
    assert (
        found.stdout.startswith(f"{public_path}/closed") and "Permission denied" in found.stdout
    ), found
    assert [Path(path).name for path in find(f"{public_path}/{pattern}")] == [
        "b.jsonl",
        "b.jsonl",
    ]  # as root


def test_globs_find_what_the_glob_module_finds(tmp_path: Path) -> None:
    for name in (
        "a/b/c.jsonl",
        "a/c.jsonl",
        "a/.h/c.jsonl",
        "x.jsonl",
        "[q]/c.jsonl",
        "a/b/d.txt",
        ".top.jsonl",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "loop").symlink_to(tmp_path / "a")
    (tmp_path / "other").symlink_to(tmp_path / "a" / "b")
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nothing")
    for pattern in (
        "**",
        "**/*.jsonl",
        "*/*.jsonl",
        "*",
        "a/**",
        "a/**/c.jsonl",
        "?.jsonl",
        "*/b/*",
        "[[]q]/*",
        ".*",
        "**/b/**",
    ):
        listed = map(home, glob.glob(str(tmp_path / pattern), recursive=True))  # noqa: PTH207
        expected = {path for path in listed if not path.is_dir()}
        assert sorted(map(home, find(tmp_path / pattern))) == sorted(expected), pattern


def home(path: str) -> Path:
    return Path(path).parent.resolve() / Path(path).name
