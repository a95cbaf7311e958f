"""Hooks of mkdocs.  README.md is the home page.  The changelog and the benchmark pages, which are outside docs/, are pages, too.

A link from a page to code or a test becomes the path as text: the site does not contain the repository.
"""

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
HOME = ROOT / "README.md"
MORE = sorted([ROOT / "CHANGELOG.md", *(ROOT / "benchmarks").rglob("*.md")])
LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    files.append(File.generated(config, "index.md", abs_src_path=str(HOME)))
    for page in MORE:
        files.append(
            File.generated(config, page.relative_to(ROOT).as_posix(), abs_src_path=str(page))
        )
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links to where their targets are on the site."""
    home = ROOT if Path(page.file.abs_src_path) in (HOME, *MORE) else Path(config["docs_dir"])
    folder = (home / page.file.src_uri).parent

    def replaced(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / link[2]))
        inside = target.is_relative_to(Path(config["docs_dir"]))
        name = (
            target.relative_to(config["docs_dir"] if inside else ROOT).as_posix()
            if target.exists()
            else ""
        )
        name = "index.md" if target == HOME else name
        if not name or name in files.src_uris:
            up = (
                os.path.relpath(name or link[2], PurePosixPath(page.file.src_uri).parent)
                if name
                else link[2]
            )
            return f"[{link[1]}]({Path(up).as_posix()}{link[3] or ''})"
        return f"{link[1]} (`{name}`)"

    return LINK.sub(replaced, markdown)
