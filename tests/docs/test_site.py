"""Build docs/ as a site, with every warning an error, as `make site` does."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_on_the_site_and_can_be_searched(site: Path) -> None:
    pages = {
        page.relative_to(ROOT / "docs").with_suffix(".html")
        for page in (ROOT / "docs").rglob("*.md")
    }
    built = {page.relative_to(site) for page in site.rglob("*.html")}
    assert (
        pages < built and Path("CHANGELOG.html") in built and Path("benchmarks/index.html") in built
    )
    home = (site / "index.html").read_text(encoding="utf-8")
    assert (
        'src="docs/' not in home
        and "images/order.svg" in home
        and 'href="tutorials/sft.html"' in home
    )
    found = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    assert {entry["location"].partition("#")[0] for entry in found} >= {
        page.as_posix() for page in pages
    }


def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    loads = re.compile(r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=\"?(https?:[^\"> ]+)")
    found = {
        url
        for page in site.rglob("*.html")
        for url in loads.findall(page.read_text(encoding="utf-8"))
    }
    assert {url for url in found if "squidfunk.github.io" not in url} == set(), (
        "a <link> that names the theme's author"
    )


def test_a_broken_link_and_a_page_that_the_list_misses_fail_the_build(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("docs", "benchmarks"):
        shutil.copytree(
            ROOT / name,
            root / name,
            ignore=shutil.ignore_patterns("*.py") if name == "benchmarks" else None,
        )
    for name in ("mkdocs.yml", "CHANGELOG.md", "README.md"):
        shutil.copy(ROOT / name, root / name)
    page = root / "docs" / "guides" / "unlisted.md"
    page.write_text("# Unlisted\n")
    assert "unlisted.md" in build(root, tmp_path / "site").stderr
    page.unlink()
    index = root / "docs" / "contents.md"
    index.write_text(
        index.read_text(encoding="utf-8") + "\n[nowhere](guides/nowhere.md)\n", encoding="utf-8"
    )
    done = build(root, tmp_path / "site")
    assert done.returncode != 0 and "nowhere.md" in done.stderr
