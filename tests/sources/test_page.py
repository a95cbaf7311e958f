"""Does what the page about sources shows run as it stands?"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from penstock.cache import Cache
from penstock.sources import open_source

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "sources.md"


def blocks(language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```",
        PAGE.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )


def test_the_examples_run(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    lines = [json.dumps({"text": f"line {row} " * (row % 5)}) + "\n" for row in range(200)]
    (tmp_path / "data" / "a.jsonl").write_text("".join(lines))
    script = tmp_path / "page.py"
    examples = blocks("python")
    assert len(examples) >= 3
    script.write_text("\n".join(examples))
    env = {**os.environ, "PENSTOCK_CACHE": str(tmp_path / "cache")}
    result = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "text: str (always)" in result.stdout and "a.jsonl:18" in result.stdout


def test_the_list_opens(tmp_path: Path, cache: Cache) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (shown,) = blocks("yaml")
    (tmp_path / "list.yaml").write_text(shown)
    (tmp_path / "chat").mkdir()
    (tmp_path / "chat" / "a.jsonl").write_text('{"text": "a"}\n')
    pq.write_table(pa.table({"text": ["b"] * 20, "other": [1] * 20}), tmp_path / "math.parquet")
    assert list(open_source(tmp_path / "list.yaml", cache=cache)) == [
        {"text": "a"},
        {"text": "b"},
        {"text": "b"},
    ]
