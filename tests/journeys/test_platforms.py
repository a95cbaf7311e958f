"""Where the package runs: what Linux can show of macOS and Windows, in a process that calls itself one of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import penstock as ps

# Libraries choose by the platform when they are imported, so they are imported as on Linux.
# There is no F_FULLFSYNC on Linux: the number is macOS's own, and the call fails as it does there on a network share.
AS_ON_MACOS = """
import fcntl, json, multiprocessing.spawn, multiprocessing.popen_spawn_posix, sys
import numpy, orjson, pyarrow, tokenizers, torch, yaml
sys.platform = "darwin"
fcntl.F_FULLFSYNC = 51
import penstock as ps
store = ps.prepare(sys.argv[1], tokenizer=sys.argv[2], template="text", num_proc=2)
batches = [batch["input_ids"].tolist() for batch in ps.Loader(store, batch_size=2, max_length=32, output="numpy")]
print(json.dumps({"key": store.fingerprint, "batches": batches, "cache": str(store.cache.root)}))
"""


def run(code: str, *arguments: object, home: Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**env, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_on_windows_the_import_ends_with_one_sentence_that_names_wsl(tmp_path: Path) -> None:
    result = run("import sys; sys.platform = 'win32'; import penstock", home=tmp_path)
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ") and "WSL" in last


def test_as_on_macos_it_gives_the_same_store_and_batches(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    texts = tmp_path / "texts.jsonl"
    lines = [json.dumps({"text": f"line {number} of a small book"}) for number in range(64)]
    texts.write_text("\n".join(lines))
    result = run(AS_ON_MACOS, texts, tokenizer_path, home=tmp_path)
    assert result.returncode == 0, result.stderr
    there = json.loads(result.stdout.splitlines()[-1])

    store = ps.prepare(
        texts, tokenizer=tokenizer_path, template="text", cache_dir=tmp_path / "here"
    )
    loader = ps.Loader(store, batch_size=2, max_length=32, output="numpy")
    assert there["key"] == store.fingerprint
    assert there["batches"] == [batch["input_ids"].tolist() for batch in loader]
    assert there["cache"].startswith(str(tmp_path / "Library" / "Caches"))
