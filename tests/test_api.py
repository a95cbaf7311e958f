"""Do the verbs wire the rooms as design.md says, and refuse what is not built?"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock as ps
from penstock.errors import StoreError, TemplateError
from penstock.store import Store
from penstock.templates import TextTemplate, open_tokenizer
from tests.raised import raises_code

Write = Callable[..., Path]
RECORDS = [{"text": f"the fox {row}"} for row in range(200)]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "own"))
    return tmp_path / "own"


def test_open_gives_records(write_jsonl: Write, own_cache: Path, tmp_path: Path) -> None:
    records = RECORDS * 20  # large enough to be worth an index
    path = write_jsonl(records)
    assert list(ps.open(path)) == list(ps.open([path])) == list(ps.open(records)) == records
    assert own_cache.exists() and [file.name for file in tmp_path.glob("data*")] == [
        "data.jsonl"
    ]  # nothing next to data
    assert ps.open(path, name="wiki", cache_dir=tmp_path / "given").name == "wiki"


def test_prepare_takes_paths_sources_and_lists(write_jsonl: Write, tokenizer_path: Path) -> None:
    path = write_jsonl(RECORDS)
    stores = [
        ps.prepare(path, tokenizer=tokenizer_path),
        ps.prepare(
            str(path), tokenizer=str(tokenizer_path / "tokenizer.json"), template="text", num_proc=2
        ),
        ps.prepare(ps.open(path), template=TextTemplate(open_tokenizer(tokenizer_path))),
        ps.prepare([path], tokenizer=tokenizer_path, eos=True, refresh=True),
    ]
    assert len({store.fingerprint for store in stores}) == 1
    assert stores[0][7].text == "the fox 7<|endoftext|>" and str(stores[0][7].where) == f"{path}:8"
    listed = ps.prepare(RECORDS, tokenizer=tokenizer_path, name="mine")
    assert listed.name == "mine" and [sample.text for sample in listed] == [
        sample.text for sample in stores[0]
    ]
    assert len(ps.prepare(ps.open(path)[10:20], tokenizer=tokenizer_path)) == 10


def test_without_a_cache_nothing_stays(
    write_jsonl: Write, tokenizer_path: Path, own_cache: Path
) -> None:
    store = ps.prepare(write_jsonl(RECORDS), tokenizer=tokenizer_path, cache=False, num_proc=2)
    root = store.cache.root
    assert root.exists() and store[3].text == "the fox 3<|endoftext|>"
    del store
    assert not root.exists() and not own_cache.exists()


def test_what_makes_no_sense_is_refused(tokenizer_path: Path) -> None:
    with pytest.raises(
        StoreError,
        match="progress is 'loud', expected one of 'auto', 'plain', 'none', or a function",
    ):
        ps.prepare(RECORDS, tokenizer=tokenizer_path, progress="loud")
    with raises_code("no_tokenizer"):
        ps.prepare(RECORDS)
    with pytest.raises(TemplateError, match="has no option train_on"):
        ps.prepare(RECORDS, tokenizer=tokenizer_path, train_on="assistant")
    with pytest.raises(
        TemplateError, match="a Template was given, so eos, tokenizer has no effect"
    ):
        ps.prepare(
            RECORDS,
            tokenizer=tokenizer_path,
            template=TextTemplate(open_tokenizer(tokenizer_path)),
            eos=True,
        )
    with pytest.raises(
        TemplateError, match=r"no template fits 1 record with the keys messages \(list\)"
    ):
        ps.prepare([{"messages": []}], tokenizer=tokenizer_path)


def test_the_module_names_what_it_has() -> None:
    assert {"open", "prepare"} <= set(dir(ps))
    with pytest.raises(AttributeError, match=r"has no attribute 'tokenize'; it has .*prepare"):
        ps.tokenize
    assert isinstance(ps.prepare.__doc__, str) and Store.__doc__


def test_import_is_light() -> None:
    script = "import sys, penstock; print([name for name in ('numpy', 'pyarrow', 'tokenizers') if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def ends_with_seven(record: dict[str, str]) -> bool:
    return record["text"].endswith("7")


def in_capitals(record: dict[str, str]) -> dict[str, str]:
    return {"text": record["text"].upper()}


def test_views_are_prepared_like_files(write_jsonl: Write, tokenizer_path: Path) -> None:
    source = ps.open(write_jsonl(RECORDS))
    kept = source.filter(ends_with_seven)
    view = ps.concat(
        [
            kept.map(in_capitals),
            source[:3],
            source.select([9, 9]),
        ]
    )
    store = ps.prepare(view, tokenizer=tokenizer_path, template="text", eos=False, num_proc=2)
    assert [sample.text for sample in store] == [record["text"] for record in view]
    assert str(store[1].where).endswith(":18") and str(store[-1].where).endswith(":10")


def test_prepare_says_that_no_record_gives_a_sample(
    tmp_path: Path, tokenizer_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"prompt": "hi", "completion": ""}] * 3
    with caplog.at_level("WARNING", "penstock"):
        store = ps.prepare(rows, tokenizer=tokenizer_path, cache_dir=tmp_path, num_proc=1)
    assert store.counts.samples == 0
    assert "none of 3 records gives a sample: 3 records nothing_to_train" in caplog.text
