"""Is a store that was pushed to the hub the same store where it is loaded, and is every other case refused by name?

`huggingface_hub` reads its settings when it is imported, so each test runs processes of its own against a hub on this machine.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import penstock as ps
from penstock.cache import open_cache
from penstock.errors import SourceError
from penstock.store import Store
from penstock.store.inventory import prune, survey
from penstock.store.loaded import load_from
from penstock.templates import open_tokenizer
from tests.extras.remote.loopback_hub import LoopbackHub, Repo

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "runs"]
TOKEN = "hf_writer"
NAME = "org/store"

Run = Callable[..., str]


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    hub = LoopbackHub()
    hub.writers = {TOKEN}
    yield hub
    hub.stop()


@pytest.fixture
def run(hub: LoopbackHub, tmp_path: Path) -> Run:
    """Run statements in a new process of a machine of this name; return what it prints, or its error in one line."""

    def run(statements: str, *, machine: str = "a", **environment: str) -> str:
        script = (
            "import penstock as ps\nfrom penstock.errors import PenstockError\nfrom penstock.store import Store\ntry:\n"
            + "".join(f"    {line}\n" for line in statements.splitlines())
            + "except PenstockError as error:\n    print('ERROR', error)\n"
        )
        home = tmp_path / machine
        made = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        made |= {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(home / "hf"),
            "HF_HUB_DISABLE_XET": "1",  # its servers speak a protocol of their own
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_TOKEN": TOKEN,
            "NO_PROXY": "127.0.0.1",
            "PENSTOCK_CACHE": str(home / "cache"),
            "PENSTOCK_REMOTE_TRIES": "2",
            "PENSTOCK_REMOTE_WAIT": "0.01",
            **environment,
        }
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=made,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def write_records(path: Path, number: int, *, first: int = 0) -> Path:
    """Records of texts, and one without a text."""
    texts = [
        " ".join(WORDS[: 2 + row % 13] * (1 + row % 3)) for row in range(first, first + number)
    ]
    lines = [json.dumps({"text": text, "n": row}) for row, text in enumerate(["", *texts])]
    path.write_text("\n".join(lines) + "\n")
    return path


def prepared(data: Path, tokenizer: str | Path, cache: Path) -> Store:
    return ps.prepare(data, tokenizer=tokenizer, template="text", cache_dir=cache, num_proc=1)


def batches_digest(store: Store, **order: Any) -> str:
    """A digest of every array of two epochs."""
    content = hashlib.sha256()
    given = {"batch_size": 3, "max_length": 32, "seed": 5, "epochs": 2, "output": "numpy", **order}
    loader = ps.Loader(store, **given)
    for batch in loader:
        for name in sorted(batch):
            array = np.asarray(batch[name])
            content.update(f"{name} {array.dtype} {array.shape}".encode())
            content.update(array.tobytes())
    return content.hexdigest()


DIGEST = """
import hashlib
import numpy as np
from tests.extras.remote.test_pushed import batches_digest
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_records(tmp_path / "texts.jsonl", 300)


@pytest.fixture
def push(run: Run, data: Path, tokenizer_path: Path) -> Callable[..., str]:
    """Prepare the records on machine a, and push the store."""

    def push(arguments: str = "'org/store'", before: str = "", **environment: str) -> str:
        return run(
            f"store = ps.prepare({str(data)!r}, tokenizer={str(tokenizer_path)!r}, template='text', num_proc=1)\n"
            f"{before}\nprint(store.push_to_hub({arguments}))",
            **environment,
        )

    return push


def test_a_loaded_store_gives_the_batches_of_the_store_that_was_pushed(
    hub: LoopbackHub,
    run: Run,
    push: Callable[..., str],
    data: Path,
    tokenizer_path: Path,
    tmp_path: Path,
) -> None:
    commit = push("'org/store', private=True, commit_message='the first one'").strip()
    assert commit == hub.repos[NAME].branches["main"]
    url = f"hf://datasets/org/store@{commit}"
    assert hub.repos[NAME].messages == ["the first one"]
    assert hub.repos[NAME].is_private
    assert any(file.endswith(".arrow") for file in hub.repos[NAME].large)
    data.rename(tmp_path / "gone.jsonl")  # nothing of the records is needed

    for place in ("'org/store'", f"'org/store', revision='{commit}'", f"'org/store@{commit}'"):
        out = run(
            f"{DIGEST}store = Store.load_from_hub({place})\n"
            "print(len(store), store.fingerprint, store.counts.trained, store.name)\n"
            "print(batches_digest(store), store[1].where)",
            machine="b",
            PYTHONPATH=os.pathsep.join(sys.path),
        ).split()
        store = prepared(tmp_path / "gone.jsonl", tokenizer_path, tmp_path / "c")
        assert out[:4] == [str(len(store)), store.fingerprint, str(store.counts.trained), "texts"]
        assert out[4] == batches_digest(store)
        assert out[5] == f"{url}:2"


def test_texts_need_the_tokenizer_that_the_store_was_made_with(
    run: Run, push: Callable[..., str], tokenizer_path: Path, tmp_path: Path, data: Path
) -> None:
    push()
    text = json.loads(data.read_text().splitlines()[4])["text"]
    out = run(
        f"print(Store.load_from_hub('org/store', tokenizer={str(tokenizer_path)!r})[4].text)\n"
        "store = Store.load_from_hub('org/store')\n"
        "print(store[4].input_ids.size)\nstore[4].text",
        machine="b",
    ).splitlines()
    assert text in out[0]
    assert int(out[1]) > 0
    assert out[2].startswith("ERROR this store was loaded without its tokenizer")

    other = json.loads((tokenizer_path / "tokenizer.json").read_text())
    other["model"]["vocab"]["another"] = len(other["model"]["vocab"]) + 10
    (tmp_path / "other.json").write_text(json.dumps(other))
    out = run("Store.load_from_hub('org/store', tokenizer='other.json')", machine="b")
    assert re.search(r"made with a tokenizer of digest \w{8}, and .* has \w{8}", out)


def test_the_card_says_what_the_store_holds(
    hub: LoopbackHub, push: Callable[..., str], data: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "job").mkdir()
    recipe = tmp_path / "job" / "recipe.yaml"
    recipe.write_text(
        f"data: {data}\ntokenizer: {tokenizer_path}\ntemplate: text\nmax_length: 32\n"
    )
    licences = "license='other', license_name='ours', license_link='https://x.org/l'"
    named = "tokenizer='org/tok', source_licenses={'books|old': 'cc0-1.0'}"
    push(f"'org/store', {licences}, {named}, recipe={str(recipe)!r}")
    card = hub.repos[NAME].commits[hub.repos[NAME].branches["main"]]["README.md"].decode()
    _, head, text = card.split("---\n", 2)
    store = prepared(data, tokenizer_path, tmp_path / "c")
    counts = store.counts
    assert counts.rows == 301
    assert counts.samples == 300
    fields = yaml.safe_load(head)
    assert fields["license"] == "other"
    assert fields["license_name"] == "ours"
    assert fields["license_link"] == "https://x.org/l"
    assert fields["size_categories"] == ["n<1K"]
    assert "penstock" in fields["tags"]
    assert f"| tokens | {counts.tokens:,} " in text
    assert f"| trained tokens | {counts.trained:,} " in text
    assert "| dropped records | 1 |" in text
    ((reason, part),) = counts.dropped.items()
    assert part.count == 1
    assert re.search(rf"\| `{reason}` \| .+ \| 1 \|", text)
    assert store.manifest is not None
    assert store.manifest.template["tokenizer"]["digest"] in text
    assert 'Store.load_from_hub("org/store")' in text
    assert "max_length: 32" in text
    assert "| tokenizer | `org/tok` |" in text
    assert "| books\\|old | cc0-1.0 |" in text
    assert "Of this dataset: ours (https://x.org/l)." in text
    assert "template: text" in text
    assert str(tmp_path) not in card  # the folders of this machine are nobody's business
    assert "…/texts.jsonl" in text


def test_the_library_datasets_reads_the_same_tokens(
    run: Run, push: Callable[..., str], data: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    push()
    out = run(
        "import datasets, json\n"
        "rows = datasets.load_dataset('org/store', split='train')\n"
        "print(json.dumps(rows['input_ids'][:]))",
        machine="b",
    )
    store = prepared(data, tokenizer_path, tmp_path / "c")
    assert json.loads(out.splitlines()[-1]) == [sample.input_ids.tolist() for sample in store]


def test_a_second_push_replaces_the_first_and_the_first_commit_stays(
    hub: LoopbackHub,
    run: Run,
    push: Callable[..., str],
    data: Path,
    tokenizer_path: Path,
    tmp_path: Path,
) -> None:
    first = push().strip()
    assert push().strip() == first  # nothing changed, so there is no new commit
    before = prepared(data, tokenizer_path, tmp_path / "c").fingerprint
    write_records(data, 200, first=7)
    second = push(before="print(len(Store.load_from_hub('org/store')))").split()
    after = prepared(data, tokenizer_path, tmp_path / "c").fingerprint
    assert second[0] == "301"
    assert second[1] != first
    files = hub.repos[NAME].commits[hub.repos[NAME].branches["main"]]
    assert sum(file.startswith("shards/") for file in files) == 1
    assert [file for file in files if file.endswith(".json")] == [
        "penstock.json",
        f"stores/{after[:2]}/{after}.json",
    ]
    out = run(
        f"print(Store.load_from_hub('org/store').fingerprint)\nprint(Store.load_from_hub('org/store', revision={first!r}).fingerprint)",
        machine="b",
    )
    assert out.split() == [after, before]


@pytest.mark.parametrize(
    ("arguments", "before", "environment", "message"),
    [
        ("'org/store', token='hf_reader'", "", {}, "the hub refuses this token (403)"),
        ("'store'", "", {}, "'store': expected the name of a dataset on the hub"),
        (
            "'org/store', license='MIT License'",
            "",
            {},
            "license='MIT License', expected an identifier",
        ),
        ("'org/store', license='other'", "", {}, "license='other' needs license_name="),
        (
            "'org/store', license='mit', license_name='x'",
            "",
            {},
            "are for license='other', and license is 'mit'",
        ),
        ("'org/store'", "", {"HF_TOKEN": ""}, "cannot push to org/store: no token was found"),
        ("'org/store'", "", {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"),
        ("'org/store'", "", {"HF_TOKEN": "hf_reader"}, "the hub refuses this token (403)"),
        ("'org/other'", "", {}, "has other data, such as data.jsonl, and no store"),
        ("'org/public', private=True", "", {}, "everybody can read it, but private=True was given"),
        (
            "'org/store'",
            "file = next(store.cache.root.rglob('*.arrow'))\n"
            "file.write_bytes(file.read_bytes().replace(b'ARROW1', b'ARROW2', 1))",
            {},
            "is not pushed: 1 of 3 files are damaged",
        ),
        (
            "'org/store'",
            "from penstock.engines import LocalEngine\n"
            "store = ps.prepare([{'text': 'the fox ' + str(n)} for n in range(9)], tokenizer=TOKENIZER, template='text', "
            "background=True, num_proc=1)\n"
            "store.close(); store._manifest = None; store._builder = None",
            {},
            "is not complete yet, so it cannot be pushed; call store.wait() first",
        ),
    ],
)
def test_what_cannot_be_pushed_is_refused_by_name(
    hub: LoopbackHub,
    push: Callable[..., str],
    tokenizer_path: Path,
    arguments: str,
    before: str,
    environment: dict[str, str],
    message: str,
) -> None:
    hub.repos["org/other"] = Repo.of({"data.jsonl": b"{}\n"})
    hub.repos["org/public"] = Repo.of({"README.md": b""})
    made = f"TOKENIZER = {str(tokenizer_path)!r}\n{before}"
    out = push(arguments, made.replace("\n", "\n"), **environment)
    assert out.startswith("ERROR ")
    assert message in out
    assert NAME not in hub.repos or not hub.repos[NAME].messages


def test_a_commit_that_another_process_makes_in_between_is_not_lost(
    hub: LoopbackHub, push: Callable[..., str]
) -> None:
    push()
    first = hub.repos[NAME].branches["main"]
    files = hub.repos[NAME].commits[first]

    class Meanwhile(list):  # type: ignore[type-arg]
        """Another commit is made when the upload begins."""

        def append(self, entry: Any) -> None:
            if "/preupload/" in entry[1]:
                hub.repos[NAME].push({**files, "NOTE.md": b"mine"})
            super().append(entry)

    hub.log = Meanwhile()
    out = push("'org/store', license='mit'")
    assert "ERROR cannot push to hf://datasets/org/store: another commit was made" in out
    assert hub.repos[NAME].commits[hub.repos[NAME].branches["main"]]["NOTE.md"] == b"mine"


def test_a_store_that_is_not_what_it_promises_is_not_loaded(
    hub: LoopbackHub, run: Run, push: Callable[..., str], tmp_path: Path
) -> None:
    push()
    repo = hub.repos[NAME]
    good = repo.commits[repo.branches["main"]]
    shard = next(file for file in good if file.endswith(".arrow"))
    lengths = next(file for file in good if file.endswith(".lengths"))
    manifest = next(file for file in good if file.startswith("stores/") and file.endswith(".json"))
    index = json.loads(good["penstock.json"])

    def load_with(files: dict[str, bytes | None]) -> str:
        changed = {**good, **files}
        for content in changed.values():
            if content is not None:
                hub.objects[hashlib.sha256(content).hexdigest()] = content
        repo.push({name: content for name, content in changed.items() if content is not None})
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        return run("print(len(Store.load_from_hub('org/store')))", machine="b")

    middle = len(good[shard]) // 2
    flipped = bytearray(good[shard])
    flipped[middle] ^= 1
    numbers = np.frombuffer(good[lengths][:-16], "<i4").copy()
    numbers[[2, 3]] = numbers[[3, 2]]
    assert "do not have the digest" in load_with({shard: bytes(flipped)})
    assert "bytes, expected" in load_with({shard: good[shard][:-1]})
    assert "not a whole store" in load_with({shard: None})
    assert "not a whole store" in load_with({manifest: None})
    assert "damaged" in load_with({lengths: numbers.tobytes() + good[lengths][-16:]})
    assert "its digest does not match" in load_with(
        {manifest: good[manifest].replace(b'"jsonl"', b'"json "').replace(b" 1,", b" 2,", 1)}
    )
    older = json.dumps({**index, "format": 4}).encode()
    assert "a store of format 4, written by Penstock" in load_with({"penstock.json": older})
    assert "damaged" in load_with({"penstock.json": b"[]"})
    assert "has no file penstock.json" in load_with({"penstock.json": None})
    assert load_with({}) == "301\n"


def test_a_clone_is_a_folder_that_can_be_loaded_and_prepare_does_not_trust_it(
    hub: LoopbackHub, push: Callable[..., str], data: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    push()
    clone = tmp_path / "clone"
    for name, content in hub.repos[NAME].commits[hub.repos[NAME].branches["main"]].items():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_bytes(content)
    cache = tmp_path / "mine"
    loaded = load_from(str(clone), open_cache(cache), name="copy")
    assert loaded.name == "copy"
    assert (
        list(cache.glob("shards/**/*.arrow")) == []
    )  # a shard of others must not stand for records
    made = prepared(data, tokenizer_path, cache)
    assert made.fingerprint == loaded.fingerprint
    assert batches_digest(made) == batches_digest(loaded)
    with pytest.raises(SourceError, match="tokens and masks, not the records"):
        loaded.source[0]


def test_a_branch_is_made_and_the_main_one_stays(
    hub: LoopbackHub, run: Run, push: Callable[..., str]
) -> None:
    commit = push("'org/store', revision='tries', license='mit'").strip()
    repo = hub.repos[NAME]
    assert repo.branches["tries"] == commit
    assert "penstock.json" not in repo.commits[repo.branches["main"]]
    out = run(
        "print(len(Store.load_from_hub('org/store', revision='tries')))\nStore.load_from_hub('org/store')",
        machine="b",
    )
    assert out.startswith("301\nERROR ")
    assert "has no file penstock.json" in out


def test_pairs_come_back_with_their_columns(
    hub: LoopbackHub, run: Run, tokenizer_path: Path, tmp_path: Path
) -> None:
    pairs = [
        {"prompt": "the fox", "chosen": "jumps " * (1 + n % 5), "rejected": "runs"}
        for n in range(40)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    made = f"ps.prepare('pairs.jsonl', tokenizer={str(tokenizer_path)!r}, num_proc=1)"
    path = os.pathsep.join(sys.path)
    mine = run(
        f"{DIGEST}store = {made}\nstore.push_to_hub('org/store')\nprint(batches_digest(store))",
        PYTHONPATH=path,
    )
    theirs = run(
        f"{DIGEST}print(batches_digest(Store.load_from_hub('org/store')))",
        machine="b",
        PYTHONPATH=path,
    )
    assert len(mine.strip()) == 64
    assert mine == theirs


def test_what_was_copied_before_a_copy_broke_off_is_not_copied_again(
    hub: LoopbackHub, run: Run, data: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    before = (
        "from penstock.api import choose_template\n"
        "from penstock.cache import open_cache\n"
        "from penstock.engines import LocalEngine\n"
        "from penstock.store import build\n"
    )
    run(
        f"{before}source = ps.open({str(data)!r})\n"
        f"template = choose_template(source, 'text', {str(tokenizer_path)!r}, {{}}, facts=None)\n"
        "store = build(source, template, engine=LocalEngine(1), cache=open_cache(), shard_rows=100)\n"
        "store.push_to_hub('org/store')"
    )
    files = hub.repos[NAME].commits[hub.repos[NAME].branches["main"]]
    shards = [file for file in files if file.endswith(".arrow")]
    assert len(shards) == 4
    lost = shards[2]
    content = files.pop(lost)
    assert "not a whole store" in run("Store.load_from_hub('org/store')", machine="b")
    copied = {path.name for path in (tmp_path / "b" / "cache" / "loaded").rglob("*.arrow")}
    assert copied
    assert Path(lost).name not in copied
    hub.repos[NAME].push({**files, lost: content, "NOTE.md": b"whole again"})
    hub.log.clear()
    assert run("print(len(Store.load_from_hub('org/store')))", machine="b") == "301\n"
    fetched = [path for method, path, _ in hub.log if method == "HEAD" and path.endswith(".arrow")]
    assert sorted(Path(path).name for path in fetched) == sorted(
        {Path(shard).name for shard in shards} - copied
    )


def test_a_loaded_store_is_pruned_whole(
    hub: LoopbackHub, push: Callable[..., str], data: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    push()
    clone = tmp_path / "clone"
    for name, content in hub.repos[NAME].commits[hub.repos[NAME].branches["main"]].items():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_bytes(content)
    cache = open_cache(tmp_path / "mine")
    prepared(data, tokenizer_path, tmp_path / "mine")
    loaded = load_from(str(clone), cache)
    prune(cache, max_bytes=0)  # all of it was used within a day
    assert batches_digest(loaded)
    now = cache.now()
    for entry in cache.entries("loaded"):
        os.utime(cache.path(entry.name), (now - 2e5, now - 2e5))
    items = [item for item in survey(cache).items() if item.name.startswith("loaded/")]
    assert [len(item.files) for item in items] == [3]
    prune(cache, older_than=1e5)
    assert cache.entries("loaded") == []
    assert len(prepared(data, tokenizer_path, tmp_path / "mine")) == 301
    assert len(load_from(str(clone), cache)) == 301


def test_a_notebook_shows_a_loaded_store_with_texts_or_ids(
    hub: LoopbackHub, push: Callable[..., str], tokenizer_path: Path, tmp_path: Path
) -> None:
    push()
    clone = tmp_path / "clone"
    for name, content in hub.repos[NAME].commits[hub.repos[NAME].branches["main"]].items():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_bytes(content)
    cache = open_cache(tmp_path / "mine")
    with_texts = load_from(str(clone), cache, tokenizer=open_tokenizer(tokenizer_path))
    without = load_from(str(clone), cache)
    sample = without[5]
    assert f"{sample.input_ids[2]} " in sample._repr_html_()
    assert "fox" in with_texts[5]._repr_html_()
    for store in (with_texts, without):
        batch = next(iter(ps.Loader(store, batch_size=1, max_length=64, output="numpy")))
        assert "301" in store._repr_html_()
        assert "input_ids" in batch._repr_html_()


def test_a_store_of_a_stream_keeps_its_order_in_windows(
    hub: LoopbackHub, run: Run, tokenizer_path: Path
) -> None:
    made = (
        "def records():\n"
        "    for number in range(700):\n"
        "        yield {'text': 'the fox ' * (1 + number % 9)}\n"
        f"store = ps.prepare(records, tokenizer={str(tokenizer_path)!r}, template='text', num_proc=1).wait()\n"
    )
    orders = "[batches_digest(store, **each) for each in ({}, {'shuffle': False}, {'shuffle_window': 2})]"
    path = os.pathsep.join(sys.path)
    mine = run(f"{DIGEST}{made}store.push_to_hub('org/store')\nprint({orders})", PYTHONPATH=path)
    loaded = "store = Store.load_from_hub('org/store')\n"
    theirs = run(f"{DIGEST}{loaded}print({orders})", machine="b", PYTHONPATH=path)
    assert mine.startswith("['")
    assert mine == theirs
    assert len(set(mine.split(", "))) == 3
