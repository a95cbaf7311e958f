"""A prepared store on the hub: its card, the same samples back, and what is refused."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.extras.remote.loopback_hub import LoopbackHub

pytest.importorskip("huggingface_hub", reason="the extra penstock[hf] is not installed")

RECIPE = "# what it was made with\ndata: chat.jsonl\ntokenizer: tok\n"
MAKE = """
import numpy as np
from penstock.store import Store
from penstock.errors import StoreError
records = [{"text": "the fox " * (1 + n % 9)} for n in range(NUMBER)] + [{"text": ""}]
store = ps.prepare(records, tokenizer=TOKENIZER, template="text", cache_dir=CACHE, num_proc=1, name="foxes")
def same(one, other):
    ours = [each for each in one if len(each)]
    theirs = [each for each in other if len(each)]
    return len(ours) == len(theirs) and all(
        np.array_equal(a.input_ids, b.input_ids) and np.array_equal(a.loss_mask, b.loss_mask)
        for a, b in zip(ours, theirs, strict=True)
    )
def refused(call):
    try:
        call()
    except StoreError as error:
        return str(error)
    return "accepted"
"""

Run = Callable[..., list[str]]


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    hub = LoopbackHub()
    yield hub
    hub.stop()


@pytest.fixture
def run(hub: LoopbackHub, tmp_path: Path, tokenizer_path: Path) -> Run:
    """Run statements in a new process with the hub's address; return the lines that it prints."""

    def run(statements: str, number: int = 40) -> list[str]:
        head = (
            f"import penstock as ps\nNUMBER = {number}\nTOKENIZER = {str(tokenizer_path)!r}\n"
            f"CACHE = {str(tmp_path / 'cache')!r}\n"
        )
        usual = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environment = usual | {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_TOKEN": "t",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "NO_PROXY": "127.0.0.1",
        }
        done = subprocess.run(
            [sys.executable, "-c", head + MAKE + statements],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.splitlines()

    return run


def test_the_samples_come_back(hub: LoopbackHub, run: Run, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    said = run(
        "commit = store.push_to_hub('org/foxes', recipe="
        + repr(str(tmp_path / "recipe.yaml"))
        + ", "
        "tokenizer='org/tok', license='mit', source_licenses={'books|old': 'cc0-1.0'})\n"
        "back = Store.load_from_hub('org/foxes', tokenizer=TOKENIZER, cache_dir=CACHE, num_proc=1)\n"
        "print(commit, same(store, back), back.counts.samples, back[0].text == store[0].text)\n"
        "at = Store.load_from_hub(f'org/foxes@{commit}', cache_dir=CACHE, num_proc=1)\n"
        "print(same(store, at))\n"
    )
    files = hub.repos["org/foxes"].commits[said[0].split()[0]]
    assert said[0].split()[1:] == ["True", "40", "True"] and said[1] == "True"
    assert sorted(files) == [
        "README.md",
        "data/train-00000-of-00001.parquet",
        "penstock.json",
        "recipe.yaml",
    ]
    assert files["recipe.yaml"].decode() == RECIPE


def test_the_card_says_what_it_is(hub: LoopbackHub, run: Run, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    run(
        "store.push_to_hub('org/foxes', recipe=" + repr(str(tmp_path / "recipe.yaml")) + ", "
        "tokenizer='org/tok', license='mit', source_licenses={'books|old': 'cc0-1.0'})\n"
        "store.push_to_hub('org/bare')\n"
    )
    repo = hub.repos["org/foxes"]
    files = repo.commits[repo.branches["main"]]
    card = files["README.md"].decode()
    head = yaml.safe_load(card.split("---")[1])
    assert head["license"] == "mit" and head["size_categories"] == ["n<1K"]
    assert head["configs"][0]["data_files"] == [{"split": "train", "path": "data/*.parquet"}]
    facts = json.loads(files["penstock.json"])
    tokens, trained = facts["counts"]["tokens"], facts["counts"]["trained"]
    assert f"| tokens | {tokens:,}, of which {trained:,} (" in card
    assert "| records read | 41 |" in card and "| samples | 40 |" in card
    assert "| tokenizer | `org/tok`, " in card and facts["tokenizer"]["digest"] in card
    assert "| books\\|old | cc0-1.0 |" in card and f"```yaml\n{RECIPE}```" in card
    assert "Store.load_from_hub('org/foxes')" in card
    bare = hub.repos["org/bare"]
    card = bare.commits[bare.branches["main"]]["README.md"].decode()
    assert "license" not in yaml.safe_load(card.split("---")[1])
    assert "not stated by who pushed it" in card and "The recipe was not pushed." in card


def test_datasets_reads_it(hub: LoopbackHub, run: Run) -> None:
    pytest.importorskip("datasets")
    run("store.push_to_hub('org/foxes')")
    files = hub.repos["org/foxes"].commits[hub.repos["org/foxes"].branches["main"]]
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(pa.BufferReader(files["data/train-00000-of-00001.parquet"]))
    assert table.column_names == ["input_ids", "loss_mask"] and len(table) == 40


def test_a_new_push_replaces_the_samples(hub: LoopbackHub, run: Run) -> None:
    run("store.push_to_hub('org/foxes')")
    repo = hub.repos["org/foxes"]
    old = {**repo.commits[repo.branches["main"]], "data/train-00001-of-00002.parquet": b"old"}
    repo.push({**old, "notes.txt": b"mine"})
    said = run(
        "store.push_to_hub('org/foxes')\n"
        "print(len(Store.load_from_hub('org/foxes', cache_dir=CACHE, num_proc=1)))\n",
        number=25,
    )
    assert said == ["25"]
    files = repo.commits[repo.branches["main"]]
    assert "data/train-00001-of-00002.parquet" not in files and files["notes.txt"] == b"mine"


def test_what_cannot_be_pushed_or_loaded_is_refused(hub: LoopbackHub, run: Run) -> None:
    run("store.push_to_hub('org/foxes')")
    repo = hub.repos["org/foxes"]
    files = dict(repo.commits[repo.branches["main"]])
    facts = json.loads(files["penstock.json"])
    facts["counts"]["tokens"] += 1
    repo.push({**files, "penstock.json": json.dumps(facts).encode()})
    facts["counts"]["tokens"] -= 1
    facts["tokenizer"] = {"name": "org/other", "digest": "0" * 32}
    repo.push({**files, "penstock.json": json.dumps(facts).encode()}, "other")
    said = run(
        "print(refused(lambda: store.push_to_hub('foxes')))\n"
        "print(refused(lambda: Store.load_from_hub('org/foxes', cache_dir=CACHE, num_proc=1)))\n"
        "print(refused(lambda: Store.load_from_hub('org/foxes@other', tokenizer=TOKENIZER, cache_dir=CACHE, num_proc=1)))\n"
        "print(refused(lambda: Store.load_from_hub('org/none', cache_dir=CACHE)))\n"
        "pairs = [{'prompt': 'a', 'chosen': 'b', 'rejected': 'c'}]\n"
        "both = ps.prepare(pairs, tokenizer=TOKENIZER, cache_dir=CACHE, num_proc=1)\n"
        "print(refused(lambda: both.push_to_hub('org/pairs')))\n"
    )
    assert "'foxes' is not the name of a data set" in said[0]
    assert "its files were changed" in said[1]
    assert "made with another tokenizer (org/other)" in said[2]
    assert "no store that push_to_hub has made" in said[3]
    assert "which a data set of tokens on the hub cannot give back" in said[4]
    hub.faults.append(("/commit/main", 403, 9))
    said = run("print(refused(lambda: store.push_to_hub('org/foxes')))")
    assert "push_to_hub to org/foxes failed: " in said[0] and "hf auth login" in said[0]
