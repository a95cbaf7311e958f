"""Facts of other code are not used, and versions of packages are read quickly."""

from importlib import metadata
from pathlib import Path

import pytest

from penstock.cache import Cache
from penstock.templates.tokenizer import facts


def test_facts_of_other_code_are_not_used(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(("first", "second"))

    def ask() -> str:
        answer: str = facts.recall("test", about=1, compute=lambda: next(answers), cache=cache)
        return answer

    assert (ask(), ask()) == ("first", "first")
    monkeypatch.setattr(facts, "code_digest", lambda: "other code")
    assert ask() == "second"


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
