"""Are datasets of the hub read at one commit, by name and URL, with a token and offline, and is every other case said?

`huggingface_hub` reads its settings when it is imported, so each test runs a process of its own against a hub on this machine.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.extras.remote.loopback_hub import LoopbackHub, Repo


def lines(*numbers: int) -> bytes:
    return b"".join(
        json.dumps({"n": number, "text": f"the fox {number}"}).encode() + b"\n"
        for number in numbers
    )


def parquet(*numbers: int) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": list(numbers)}), out)
    return bytes(out.getvalue().to_pybytes())


CARD = b"""---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*.parquet
  - split: test
    path: data/test-*.parquet
- config_name: other
  data_files: more/*.jsonl
---
# A dataset
"""
BY_CARD = {
    "README.md": CARD,
    "data/train-2.parquet": parquet(2, 3),
    "data/train-10.parquet": parquet(10),
    "data/test-0.parquet": parquet(-1),
    "more/x.jsonl": lines(7, 8),
}

Run = Callable[..., str]


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    hub = LoopbackHub()
    hub.repos["org/card"] = Repo.of(BY_CARD)
    yield hub
    hub.stop()


@pytest.fixture
def run(hub: LoopbackHub, tmp_path: Path) -> Run:
    """Run statements in a new process; return what it prints, or its error in one line."""
    (tmp_path / "work").mkdir()

    def run(statements: str, **environment: str) -> str:
        script = (
            "import logging\nlogging.basicConfig(format='%(levelname)s %(message)s')\n"
            "logging.getLogger('penstock').setLevel('INFO')\n"
            "import penstock as ps\nfrom penstock.errors import SourceError\n"
            "def n(*place, **options): return [record['n'] for record in ps.open(*place, **options)]\n"
            "try:\n"
            + "".join(f"    {line}\n" for line in statements.splitlines())
            + "except SourceError as error:\n    print('ERROR', error)\n"
        )
        made = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HF_", "HUGGING"))
        }
        made |= {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "hf"),
            "PENSTOCK_CACHE": str(tmp_path / "cache"),
        }
        made |= {
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1",
        }
        made |= {"PENSTOCK_REMOTE_TRIES": "3", "PENSTOCK_REMOTE_WAIT": "0.01", **environment}
        work = tmp_path / "work"
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=made,
            cwd=work,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + "".join(
            line + "\n"
            for line in done.stderr.splitlines()
            if line.startswith(("INFO hub", "WARNING hub", "INFO org"))
        )

    return run


def test_a_data_set_is_read_by_name_split_configuration_and_url(hub: LoopbackHub, run: Run) -> None:
    commit = hub.repos["org/card"].branches["main"]
    out = run(
        "print(n('org/card', split='train'))\n"
        "print(n('org/card', split='test'), n('org/card', split='train[1:]'))\n"
        "print(n('org/card', config='other'), n('org/card@main', config='other'))\n"
        "print(n('org/card', data_files='data/*-2.parquet'), n('org/card', data_files={'a': 'more/*'}, split='a'))\n"
        "print(n('hf://datasets/org/card/data/train-*.parquet'), n('hf://datasets/org/card/more/x.jsonl@[1:]'))\n"
        "print(ps.open('org/card', split='train').locate(0).file)\n"
    )
    said = out.splitlines()
    assert said[:5] == [
        "[2, 3, 10]",
        "[-1] [3, 10]",
        "[7, 8] [7, 8]",
        "[2, 3] [7, 8]",
        "[2, 3, 10] [8]",
    ]
    assert said[5] == f"hf://datasets/org/card@{commit}/data/train-2.parquet"
    assert f"hub: org/card at revision main is commit {commit}" in out
    assert "org/card: no local file or folder of that name, so it is a dataset on the hub" in out


def test_a_split_is_chosen_by_file_names_where_the_readme_says_nothing(
    hub: LoopbackHub, run: Run
) -> None:
    hub.repos["org/named"] = Repo.of(
        {"data/train-0.jsonl": lines(1), "data/test/0.jsonl": lines(2), "latest.jsonl": lines(3)}
    )
    hub.repos["org/plain"] = Repo.of({"a.jsonl": lines(1), "contest.jsonl": lines(2)})
    out = run(
        "print(n('org/named', split='train'), n('org/named', split='test'), n('org/plain'))\nn('org/named')\n"
    )
    assert out.startswith(
        "[1] [2] [1, 2]\nERROR hf://datasets/org/named: has the splits train, test; choose with split="
    )


def test_a_commit_is_read_whatever_the_branch_is_now_and_each_process_sees_one_commit(
    hub: LoopbackHub, run: Run
) -> None:
    repo = Repo.of({"a.jsonl": lines(1)})
    hub.repos["org/moves"] = repo
    first = repo.branches["main"]
    second = repo.push({"a.jsonl": lines(2)})
    repo.push({"a.jsonl": lines(3)}, "draft")
    out = run(
        f"print(n('org/moves'), n('org/moves', revision='{first}'), n('org/moves', revision='draft'), n('org/moves@{second}'))\n"
    )
    assert "[2] [1] [3] [2]" in out
    repo.push({"a.jsonl": lines(4)})
    assert "[4]" in run("print(n('org/moves'))\n")


def test_a_failed_look_up_never_falls_back_to_an_older_commit(hub: LoopbackHub, run: Run) -> None:
    hub.repos["org/moves"] = Repo.of({"a.jsonl": lines(1)})
    assert "[1]" in run("print(n('org/moves'))\n")
    hub.repos["org/moves"].push({"a.jsonl": lines(2)})
    hub.faults = [("/api/datasets/org/moves", 503, 99)]
    out = run("print(n('org/moves'))\n")
    assert (
        "ERROR" in out
        and "the hub answers 503" in out
        and "set HF_HUB_OFFLINE=1, or name the commit" in out
    )
    hub.faults = [("/api/datasets/org/moves", 503, 2)]  # passes at the third try
    assert "[2]" in run("print(n('org/moves'))\n")


def test_offline_reads_what_the_cache_has_and_says_which_commit(hub: LoopbackHub, run: Run) -> None:
    commit = hub.repos["org/card"].branches["main"]
    run("n('org/card', split='train')\n")
    hub.repos["org/card"].push({"README.md": b"new"})
    hub.log.clear()
    out = run(
        "print(n('org/card', split='train'))\nprint(n('org/card', split='test'))\n",
        HF_HUB_OFFLINE="1",
    )
    assert out.startswith("[2, 3, 10]\nERROR")
    assert f"WARNING hub: org/card at revision main is commit {commit} in the cache; offline" in out
    assert (
        "test-0.parquet: not in the cache of huggingface_hub" in out
    )  # it was never downloaded: not left out silently
    out = run("print(n('org/none'))\n", HF_HUB_OFFLINE="1")
    assert "ERROR" in out and "has no revision 'main'; unset HF_HUB_OFFLINE" in out
    assert hub.log == []


def test_private_and_gated_data_need_a_token_and_say_so(hub: LoopbackHub, run: Run) -> None:
    hub.repos["org/private"] = Repo.of({"a.jsonl": lines(1)}, token="hf_secret")
    hub.repos["org/gated"] = Repo.of({"a.jsonl": lines(1)}, is_gated=True)
    assert "[1]" in run("print(n('org/private'))\n", HF_TOKEN="hf_secret")
    out = run("n('org/private', split='train')\n")
    assert (
        "ERROR" in out
        and "no dataset 'org/private' that you may see" in out
        and "hf auth login" in out
    )
    out = run("n('org/gated')\n", HF_TOKEN="hf_other")
    assert "ERROR" in out and "a gated dataset; accept its terms" in out


def test_a_wrong_name_is_an_error_that_says_what_there_is(
    hub: LoopbackHub, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "work" / "data").mkdir()
    wrong = {
        "n('org/card', split='dev')": "no split 'dev', expected one of train, test",
        "n('org/card')": "has the splits train, test; choose with split=",
        "n('org/card', config='othr')": "no configuration 'othr'; choose with config= one of default, other",
        "n('org/card', revision='v9')": "the dataset has no revision 'v9'",
        "n('org/card', data_files='no/*')": "no/*: nothing found",
        "n('hf://datasets/org/card/no.jsonl')": "no.jsonl: nothing found at commit",
        "n('hf://org/card')": "expected hf://datasets/org/name/path",
        "n('data/train')": "data/train: nothing found",  # a local folder `data` exists: the hub is not asked
        "n([{'n': 1}], revision='x')": "revision='x' is for datasets on the hub",
    }
    tries = [f"try: {each}\nexcept SourceError as error: print(error)" for each in wrong]
    said = run("\n".join(tries)).splitlines()
    for line, (statement, words) in zip(said, wrong.items(), strict=False):
        assert words in line, statement
    assert not any(path.startswith("/api/datasets/data/") for _, path, _ in hub.log)


def test_a_mistyped_local_path_is_said_to_be_missing_first(
    hub: LoopbackHub, run: Run, tmp_path: Path
) -> None:
    missing = "no local file or folder 'dat/chat', and no dataset on the hub could be read: "
    assert (
        "dat/chat.jsonl: nothing found" in run("n('dat/chat.jsonl')\n") and not hub.log
    )  # the hub is not asked
    assert f"{missing}the hub has no dataset" in run("n('dat/chat')\n")
    assert f"{missing}offline, and " in run("n('dat/chat')\n", HF_HUB_OFFLINE="1")
    assert f"{missing}the hub cannot be reached" in run(
        "n('dat/chat')\n", HF_ENDPOINT="http://127.0.0.1:9"
    )
    without = "import sys\nsys.modules['huggingface_hub'] = None\nn('dat/chat')\n"
    assert f"{missing}datasets of the hub need huggingface_hub" in run(without)
    assert "no local file" not in run("n('hf://datasets/dat/chat')\n")


def test_recipes_of_other_tools_name_data_sets_of_the_hub(
    run: Run, tmp_path: Path, tokenizer_path: Path
) -> None:
    work = tmp_path / "work"
    settings = f"tokenizer: {tokenizer_path}\nmax_length: 64\nbatch_size: 1\ntemplate: text\n"
    (work / "skyrl.yaml").write_text(f"dataset_name: org/card\nconfig: other\n{settings}")
    (work / "lmms.yaml").write_text(
        f"{settings}datasets:\n- path: org/card\n  data_type: hf_dataset\n  config: other\n"
    )
    (work / "list.yaml").write_text(
        "datasets:\n- path: org/card\n  data_type: hf_dataset\n  options: {config: other}\n"
    )
    out = run(
        "for recipe in ('skyrl.yaml', 'lmms.yaml'):\n"
        "    loader = ps.load(recipe)\n"
        "    [store] = loader.stores.values() if isinstance(loader.stores, dict) else loader.stores\n"
        "    print(len(store), store[1].where.file, store[1].text)\n"
        "print(n('list.yaml'))\n"
    )
    lines_ = out.splitlines()
    assert [line.split()[0] for line in lines_[:2]] == ["2", "2"], out
    assert all("hf://datasets/org/card@" in line and "the fox 8" in line for line in lines_[:2])
    assert lines_[2] == "[7, 8]"


def test_datasets_gives_the_same_records(hub: LoopbackHub, run: Run) -> None:
    hub.repos["org/named"] = Repo.of(
        {"data/train-0.jsonl": lines(1), "data/train-1.jsonl": lines(4), "test.jsonl": lines(2)}
    )
    out = run(
        "import datasets\ndatasets.disable_progress_bars()\n"
        "for split in ('train', 'test'):\n"
        "    print(sorted(datasets.load_dataset('org/card', split=split)['n']) == sorted(n('org/card', split=split)))\n"
        "    print(list(datasets.load_dataset('org/named', split=split)['n']) == n('org/named', split=split))\n"
    )
    assert out.splitlines()[:4] == ["True"] * 4
