"""Can a finished store be used by people who may not write to its cache?"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.cache import Cache
from penstock.store.inventory import list_stores
from penstock.store.verify import verify_all
from tests.cache.people import BECOME, NOBODY, as_root, run, with_strace

RECORDS = [
    {"text": f"the quick brown fox {row} " * (row % 9)} for row in range(2000)
]  # beyond what needs no index
OPEN = """
store = penstock.api.prepare({path!r}, tokenizer={tokenizer!r}, cache_dir={root!r}, num_proc=1)
loader = penstock.Loader(store, batch_size=2, max_length=64, output="numpy")
print(len(store), store[17].text[:9], sum(1 for _ in loader) == len(loader))
"""


@pytest.fixture
def shared(public_path: Path, tokenizer_path: Path) -> dict[str, str]:
    """Data, tokenizer and a cache with a finished store, all of them root's, for everybody to read."""
    path, root, tokenizer = (public_path / name for name in ("data.jsonl", "cache", "tokenizer"))
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    root.mkdir()
    root.chmod(0o755)
    shutil.copytree(tokenizer_path, tokenizer)
    for file in (path, tokenizer, *tokenizer.iterdir()):
        file.chmod(0o755 if file.is_dir() else 0o644)
    made = {"path": str(path), "tokenizer": str(tokenizer), "root": str(root)}
    for _ in range(2):  # the second look finds the file settled, and says so in its note
        subprocess.run(
            [sys.executable, "-c", "import penstock.api\n" + OPEN.format(**made)],
            check=True,
            capture_output=True,
        )
    return made


@as_root
@with_strace
def test_another_user_trains_from_a_cache_of_root_and_does_not_even_try_to_write(
    shared: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    calls = "trace=openat,mkdir,mkdirat,unlink,unlinkat,rename,renameat,renameat2,link,linkat,utimensat,fchmod,chmod,ftruncate"
    before = ("strace", "-f", "-y", "-qq", "-o", str(log), "-e", calls)
    # Once as root, elsewhere, so that all modules are loaded: the other user may have no right to the interpreter's folder.
    warm = "import penstock.api\n" + OPEN.format(**{**shared, "root": str(tmp_path / "elsewhere")})
    script = warm + BECOME.format(uid=NOBODY) + OPEN.format(**shared)
    result = run(script, before=before)
    assert result.returncode == 0 and result.stdout == "2000 the quick True\n" * 2, result.stderr
    ours = [line for line in log.read_text().splitlines() if shared["root"] in line]
    tries = [
        line
        for line in ours
        if "openat" not in line or "O_WRONLY" in line or "O_RDWR" in line or "O_CREAT" in line
    ]
    assert ours and tries == []


@as_root
def test_a_read_only_disk_is_no_hindrance(shared: dict[str, str]) -> None:
    root = shared["root"]
    mounted = subprocess.run(["mount", "--bind", root, root], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("no right to mount")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", root], check=True)
        result = run("import penstock.api\n" + OPEN.format(**shared))
        assert result.returncode == 0 and result.stdout.startswith("2000 the quick"), result.stderr
        cache = Cache(root)
        assert [report.store for report in verify_all(cache) if report.is_whole] == [
            result_store(root)
        ]
        assert [info.store for info in list_stores(cache).stores] == [result_store(root)]
        with pytest.raises(
            penstock.errors.StoreError, match="Read-only file system; nothing can be written there"
        ):
            Cache(root).publish("a/b", lambda file: None)
    finally:
        subprocess.run(["umount", root], check=True)


def result_store(root: str) -> str:
    (path,) = Path(root, "stores").rglob("*.json")
    return path.stem
