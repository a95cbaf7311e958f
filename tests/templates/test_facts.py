"""Facts are computed once per content, and never trusted where they are damaged."""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from penstock.cache import Cache
from penstock.templates.tokenizer import facts


class Counted:
    """A computation that counts how often it was asked."""

    def __init__(self, value: Any) -> None:
        self.value, self.asked = value, 0

    def __call__(self) -> Any:
        self.asked += 1
        return self.value


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    facts._kept.clear()


def ask(question: Counted, cache: Cache | None, about: Any = "a tokenizer") -> Any:
    facts._kept.clear()  # as another process would begin
    return facts.recall("test", about=about, compute=question, cache=cache)


def only_file(cache: Cache) -> Path:
    (entry,) = cache.entries("facts")
    return cache.path(entry.name)


def test_a_fact_is_computed_once_per_content(cache: Cache) -> None:
    question = Counted({"engine": "fastokens", "ids": (1, 2)})
    assert ask(question, cache) == {"engine": "fastokens", "ids": [1, 2]} == ask(question, cache)
    assert question.asked == 1
    ask(question, cache, about="another tokenizer")
    assert question.asked == 2


def test_the_first_answer_has_the_same_types_as_a_remembered_one(cache: Cache) -> None:
    first = ask(Counted({1: (2, 3)}), cache)
    assert first == {"1": [2, 3]} == ask(Counted(None), cache)


@pytest.mark.parametrize(
    "damage", ["cut", "flipped", "empty", "not json", "another value", "another name"]
)
def test_a_damaged_fact_is_computed_again_and_replaced(cache: Cache, damage: str) -> None:
    question = Counted({"engine": "tokenizers"})
    ask(question, cache)
    path = only_file(cache)
    good = path.read_bytes()
    found = json.loads(good)
    if damage == "another name":
        ask(Counted({"engine": "forged"}), cache, about="another tokenizer")
        others = [cache.path(entry.name) for entry in cache.entries("facts")]
        (other,) = [each for each in others if each != path]
        content = other.read_bytes()
    else:
        content = {
            "cut": good[:-5],
            "flipped": good.replace(b"tokenizers", b"fastokens!"),
            "empty": b"",
            "not json": b"\xff{",
            "another value": json.dumps({**found, "value": '{"engine": "forged"}'}).encode(),
        }[damage]
    path.unlink()
    path.write_bytes(content)
    assert ask(question, cache) == {"engine": "tokenizers"}
    assert question.asked == 2
    assert path.read_bytes() == good


def test_facts_of_other_code_are_not_used(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    question = Counted(1)
    ask(question, cache)
    monkeypatch.setattr(facts, "code_digest", lambda: "other code")
    ask(question, cache)
    assert question.asked == 2


def test_without_a_cache_a_fact_is_kept_for_the_process() -> None:
    question = Counted(1)
    assert [facts.recall("test", about=1, compute=question, cache=None) for _ in range(3)] == [
        1,
        1,
        1,
    ]
    assert question.asked == 1


def test_a_read_only_cache_is_no_error(cache: Cache) -> None:
    cache.root.mkdir()
    (cache.root / "facts").write_bytes(b"a file where a folder should be")  # also refused to root
    question = Counted(1)
    assert ask(question, cache) == ask(question, cache) == 1
    assert question.asked == 2


def test_an_error_is_not_remembered(cache: Cache) -> None:
    with pytest.raises(ZeroDivisionError):
        facts.recall("test", about=1, compute=lambda: 1 // 0, cache=cache)
    assert facts.recall("test", about=1, compute=lambda: 2, cache=cache) == 2


def test_two_processes_that_write_one_fact_leave_it_whole(cache: Cache) -> None:
    code = (
        "import sys\n"
        "from penstock.cache import Cache\n"
        "from penstock.templates.tokenizer import facts\n"
        "for number in range(40):\n"
        "    facts._kept.clear()\n"
        "    value = facts.recall('test', about=number % 5, compute=lambda: ['x' * 5000, number % 5], cache=Cache(sys.argv[1]))\n"
        "    assert value == ['x' * 5000, number % 5], value\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(cache.root)]) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert len(cache.entries("facts")) == 5


def test_versions_of_packages_are_those_that_importlib_gives(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("penstock", "tokenizers", "fastokens", "jinja2"):
        assert facts.package_version(name) == metadata.version(name)
    (tmp_path / "elsewhere-1.2.3.dist-info").mkdir()
    (tmp_path / "elsewhere-1.2.3.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.2.3\n"
    )
    (tmp_path / "older.egg-info").mkdir()
    (tmp_path / "older.egg-info" / "PKG-INFO").write_text(
        "Metadata-Version: 2.1\nName: older\nVersion: 0.9\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    facts._installed.cache_clear()
    assert (facts.package_version("elsewhere"), facts.package_version("older")) == ("1.2.3", "0.9")
    with pytest.raises(metadata.PackageNotFoundError):
        facts.package_version("nowhere")
    facts._installed.cache_clear()
