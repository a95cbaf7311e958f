"""What a command loads and touches: on a finished store no tokenizer and no template engine, of data that is not prepared one row."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cache import Cache
from penstock.sources import ListSource
from penstock.templates import bytes_to_encode, fast_bytes, open_tokenizer

FAST_BYTES = 8 << 20  # more than enough for the vocabularies of the tests
ENGINES = {"tokenizers", "fastokens"}
CHAT = "{% for m in messages %}{{ '<' + m.role + '>' + m.content + eos_token }}{% endfor %}"
RUN = (
    "import json, sys\n"
    "from penstock.cli.main import run\n"
    "code = run(sys.argv[1:])\n"
    "print('LOADED ' + json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    "sys.exit(code)\n"
)


@pytest.fixture
def vocabulary(tokenizer_path: Path, tmp_path: Path) -> Path:
    """A copy that a test may edit, with a chat template."""
    folder = shutil.copytree(tokenizer_path, tmp_path / "vocabulary")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|endoftext|>", "chat_template": CHAT})
    )
    return folder


@pytest.fixture
def recipe(vocabulary: Path, write_jsonl: Callable[..., Path], tmp_path: Path) -> Path:
    turns = [{"role": "user", "content": "the fox"}, {"role": "assistant", "content": "a dog"}]
    write_jsonl([{"messages": turns, "row": row} for row in range(30)], "chat.jsonl")
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "data: chat.jsonl\ntemplate: messages\ntokenizer: vocabulary\nmax_length: 64\nbatch_size: 2\n"
    )
    return path


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[..., set[str]]:
    """Run a command in a process of its own; which modules it loaded."""

    def run(*arguments: str | Path, **environment: str) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-c", RUN, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PENSTOCK_CACHE": str(tmp_path / "cache"), **environment},
        )
        assert done.returncode == 0, done.stderr
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("LOADED ")]
        return set(json.loads(line.removeprefix("LOADED ")))

    return run


def test_commands_on_a_finished_store_load_no_tokenizer_and_no_template_engine(
    loaded: Callable[..., set[str]], recipe: Path
) -> None:
    assert loaded("prepare", recipe) >= {"tokenizers"}
    for command in (
        ("prepare",),
        ("plan",),
        ("stats",),
        ("trace", "--step", "0"),
        ("cache", "why"),
    ):
        assert not loaded(*command, recipe) & ENGINES, command
    assert "pyarrow" not in loaded("plan", recipe)  # lengths are a plain array


def test_commands_that_show_text_load_the_reference_and_never_fastokens(
    loaded: Callable[..., set[str]], recipe: Path
) -> None:
    for command in (
        ("show", "--row", "0"),
        ("check",),
        ("prepare",),
        ("show", "--row", "0"),
        ("show", "--step", "0"),
    ):
        found = loaded(*command, recipe)
        assert "tokenizers" in found and "fastokens" not in found, command


def test_only_processes_that_encode_open_a_tokenizer(
    loaded: Callable[..., set[str]], vocabulary: Path, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        line = json.dumps({"text": f"the {name} fox " + "jumps over a lazy dog " * 2000})
        (tmp_path / f"{name}.jsonl").write_text(f"{line}\n" * (3 * FAST_BYTES // len(line)))
    common = ("--tokenizer", vocabulary, "--template", "text", "--num-proc", "2")
    assert "fastokens" in loaded("prepare", "first.jsonl", *common), (
        "the engines are compared once, to name the store"
    )
    assert not loaded("prepare", "second.jsonl", *common) & ENGINES, (
        "two workers encode, and this process does not"
    )
    assert "fastokens" in loaded("prepare", "second.jsonl", *common[:-1], "1", "--refresh"), (
        "now it encodes itself"
    )


def test_a_changed_tokenizer_is_no_hit(
    loaded: Callable[..., set[str]], recipe: Path, vocabulary: Path
) -> None:
    loaded("prepare", recipe)
    assert "tokenizers" not in loaded("prepare", recipe)
    config = vocabulary / "tokenizer_config.json"
    before = config.stat()
    config.write_text(config.read_text().replace("'>'", "']'"))  # as long as before
    os.utime(config, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "tokenizers" in loaded("prepare", recipe)
    assert "tokenizers" not in loaded("prepare", recipe)


def test_a_damaged_memo_is_made_again(
    loaded: Callable[..., set[str]], recipe: Path, tmp_path: Path
) -> None:
    loaded("prepare", recipe)
    stores = sorted(path.name for path in (tmp_path / "cache" / "stores").rglob("*.json"))
    remembered = [path for path in (tmp_path / "cache" / "memo").rglob("*") if path.is_file()]
    assert remembered
    for path in remembered:
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content.replace(b"endoftext", b"endofteXt").replace(b"0", b"1"))
    assert "tokenizers" in loaded("prepare", recipe)
    assert sorted(path.name for path in (tmp_path / "cache" / "stores").rglob("*.json")) == stores
    assert "tokenizers" not in loaded("plan", recipe)


def test_a_finished_store_is_found_in_a_cache_without_memos(
    loaded: Callable[..., set[str]], recipe: Path, tmp_path: Path
) -> None:
    loaded("prepare", recipe)
    shards = list((tmp_path / "cache" / "shards").rglob("*.arrow"))
    shutil.rmtree(tmp_path / "cache" / "memo")
    loaded("plan", recipe)
    assert list((tmp_path / "cache" / "shards").rglob("*.arrow")) == shards


def published(cache: Path) -> set[str]:
    """Folders of a cache that hold files."""
    return {path.relative_to(cache).parts[0] for path in cache.rglob("*") if path.is_file()}


def test_show_of_a_row_reads_that_row_and_prepares_nothing(
    command: Any, recipe: Path, tmp_path: Path
) -> None:
    data = tmp_path / "chat.jsonl"
    lines = data.read_text().splitlines()
    lines[7] = '{"messages": not json'
    lines[8] = '{"messages": [{"role": "user", "content": {"no": "text"}}]}'
    data.write_text("\n".join(lines) + "\n")
    done = command("show", recipe, "--row", "3", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (
        found["sample"] == 3
        and found["where"].endswith("chat.jsonl:4")
        and json.loads(found["raw"])["row"] == 3
    )
    assert found["trained"] > 0 and found["rendered"].startswith("<user>the fox")
    assert found["landings"] == [] and found["packed_row"] is None
    assert "not prepared; run penstock prepare" in found["outcome"]
    assert not published(tmp_path / "cache") & {"shards", "stores", "digests"}
    assert command("show", recipe, "--row", "7").returncode == 3
    assert "has 30 records" in command("show", recipe, "--row", "30").stderr
    assert command(
        "show", recipe, "--random", "--set", "on_bad=skip", "--set", "on_refused=skip"
    ).returncode in (0, 3)
    assert not published(tmp_path / "cache") & {"shards", "stores", "digests"}


def test_show_of_a_prepared_row_says_the_same_and_where_it_is_trained(
    command: Any, recipe: Path
) -> None:
    alone = json.loads(command("show", recipe, "--row", "-2", "--json").stdout)
    assert command("prepare", recipe).returncode == 0
    prepared = json.loads(command("show", recipe, "--row", "-2", "--json").stdout)
    assert prepared["landings"] and prepared["packed_row"] is not None
    position = ("landings", "outcome", "packed_row", "source")
    for name in alone.keys() - set(position):
        assert prepared[name] == alone[name], name


def rows(num_bytes: int, num_rows: int) -> ListSource:
    return ListSource(
        [{"text": "x" * (num_bytes // num_rows)} for _ in range(num_rows)], name="rows"
    )


@pytest.mark.parametrize("num_rows", [100, 4000])
@pytest.mark.parametrize("vocab_size", [30_000, 150_000, 260_000])
def test_the_engine_is_a_function_of_the_data_and_the_vocabulary(
    num_rows: int, vocab_size: int
) -> None:
    least = int(fast_bytes(vocab_size))
    assert bytes_to_encode(rows(least // 2, num_rows)) < least
    assert bytes_to_encode(rows(2 * least, num_rows)) >= least
    assert bytes_to_encode(ListSource([], name="nothing")) == 0
    assert bytes_to_encode(rows(50_000, 50_000)) < least  # many rows, little text
    few = num_rows // 4  # are encoded
    assert bytes_to_encode(rows(2 * least, num_rows), rows=few) < least


def test_a_larger_vocabulary_needs_more_data_to_be_worth_fastokens() -> None:
    sizes = [fast_bytes(tokens) for tokens in (30_000, 150_000, 260_000)]
    assert sizes == sorted(set(sizes))


def test_a_few_huge_rows_are_large_data(tmp_path: Path, cache: Cache) -> None:
    import penstock as ps

    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("the fox " * (FAST_BYTES // 12))
    files = ps.open(str(tmp_path / "*.txt"), record="file", cache_dir=cache.root)
    assert len(files) == 2
    assert bytes_to_encode(files) > FAST_BYTES > bytes_to_encode(files, rows=1)


def test_small_and_large_data_have_stores_of_their_engine(
    tokenizer_path: Path, cache: Cache
) -> None:
    import penstock as ps

    template: dict[str, Any] = {
        "tokenizer": tokenizer_path,
        "cache_dir": cache.root,
        "num_proc": 1,
        "template": "text",
    }
    small = ps.prepare([{"text": "the fox"}], **template)
    large = ps.prepare(
        [{"text": "the fox"}, *({"text": "a dog " * 5000} for _ in range(600))], **template
    )
    engines = [
        store.template.identity()["tokenizer"]["engine"].split()[0] for store in (small, large)
    ]
    assert engines == ["tokenizers", "fastokens"]
    assert small[0].input_ids.tolist() == large[0].input_ids.tolist()


def test_one_store_however_the_tokenizer_is_given(tokenizer_path: Path, cache: Cache) -> None:
    import penstock as ps
    from penstock.templates import TextTemplate

    data = [{"text": "the fox"}]
    given = [
        ps.prepare(data, tokenizer=tokenizer_path, template="text", cache_dir=cache.root),
        ps.prepare(
            data, tokenizer=open_tokenizer(tokenizer_path), template="text", cache_dir=cache.root
        ),
        ps.prepare(
            data, template=TextTemplate(open_tokenizer(tokenizer_path)), cache_dir=cache.root
        ),
        ps.prepare(data, tokenizer=tokenizer_path, template="text", cache=False),
    ]
    assert len({store.fingerprint for store in given}) == 1
    assert given[0].template.identity()["tokenizer"]["engine"].startswith("tokenizers ")


def test_warnings_of_a_template_are_repeated_on_a_hit(
    command: Any, recipe: Path, vocabulary: Path
) -> None:
    (vocabulary / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    said = [line for line in command("prepare", recipe).stderr.splitlines() if "ChatML" in line]
    again = [line for line in command("plan", recipe).stderr.splitlines() if "ChatML" in line]
    assert said and again == said


def test_nothing_of_a_tokenizer_is_kept_without_a_cache(
    tokenizer_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import penstock as ps

    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "unused"))
    store = ps.prepare(
        [{"text": "the fox"}], tokenizer=tokenizer_path, template="text", cache=False
    )
    assert store[0].text.startswith("the fox")
    assert not (tmp_path / "unused").exists()
