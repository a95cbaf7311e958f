"""Is a store that is made while it is used the same store, with the same batches, byte for byte?"""

import hashlib
import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.cache import Cache
from penstock.cache.claims import Claim, take_claim
from penstock.engines import LocalEngine
from penstock.errors import StoreError, TemplateError
from penstock.sources import ListSource, open_source
from penstock.store import Store, build
from penstock.store.shards import shard_key
from penstock.templates import TextTemplate, open_tokenizer
from tests.processes import children
from tests.raised import raises_code

Write = Callable[..., Path]

RECORDS = [{"text": "the quick brown fox " * (1 + row % 7), "row": row} for row in range(1200)]


@pytest.fixture
def template(tokenizer_path: Path) -> TextTemplate:
    return TextTemplate(open_tokenizer(tokenizer_path))


def small(source: Any, template: Any, cache: Cache, *, background: bool, **more: Any) -> Store:
    engine = LocalEngine(2, inline=not background)
    return build(
        source,
        template,
        engine=engine,
        cache=cache,
        background=background,
        shard_bytes=10_000,
        shard_rows=100,
        **more,
    )


def contents(cache: Cache) -> dict[str, str]:
    files = [
        path
        for folder in ("shards", "stores")
        for path in (cache.root / folder).rglob("*")
        if path.is_file()
    ]
    return {
        str(path.relative_to(cache.root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


class Gate(TextTemplate):
    """A template that waits for a file before it encodes any but the first rows, so that a store stays unfinished."""

    def __init__(self, tokenizer: Any, gate: Path) -> None:
        super().__init__(tokenizer)
        self._gate = gate

    def encode(self, records: Any) -> Any:
        records = list(records)
        while any(record["row"] >= 300 for record in records) and not self._gate.exists():
            self._gate.with_name(f"waiting-{os.getpid()}").touch()
            threading.Event().wait(0.01)
        return super().encode(records)


def test_the_same_files_as_prepared_ahead(
    tmp_path: Path, write_jsonl: Write, template: TextTemplate
) -> None:
    path = write_jsonl(RECORDS)
    caches = [Cache(tmp_path / name) for name in ("ahead", "background")]
    ahead = small(open_source(path, cache=caches[0]), template, caches[0], background=False)
    store = small(open_source(path, cache=caches[1]), template, caches[1], background=True)
    assert (
        store.fingerprint == ahead.fingerprint
        and len(store) == 1200
        and store.num_shards == ahead.num_shards
    )
    assert [sample.text for sample in store] == [sample.text for sample in ahead]
    store.wait()
    assert store.manifest == ahead.manifest and store.counts == ahead.counts
    assert contents(caches[0]) == contents(caches[1]) and contents(caches[0])


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("mix", ["one", "rows", "tokens"])
def test_the_same_batches_as_prepared_ahead(
    tmp_path: Path, template: TextTemplate, shuffle: bool, mix: str
) -> None:
    def batches(background: bool) -> list[dict[str, Any]]:
        cache = Cache(tmp_path / str(background))
        stores = [
            small(ListSource(records, name=name), template, cache, background=background)
            for name, records in (("a", RECORDS), ("b", RECORDS[::3]))
        ]
        chosen = stores[0] if mix == "one" else {"a": (stores[0], 0.7), "b": (stores[1], 0.3)}
        more = {"mix_by": mix, "output": "numpy"} if mix != "one" else {"output": "numpy"}
        loader = ps.Loader(
            chosen,
            batch_size=4,
            max_length=128,
            shuffle=shuffle,
            shuffle_window=4,
            block=256,
            **more,
        )
        return [dict(batch) for batch in loader]

    ahead, streamed = batches(False), batches(True)
    assert len(ahead) == len(streamed) > 10
    for one, two in zip(ahead, streamed, strict=True):
        assert one.keys() == two.keys()
        assert all(np.array_equal(one[name], two[name]) for name in one)


def test_what_is_asked_for_is_made_first(tmp_path: Path, tokenizer_path: Path) -> None:
    gate = tmp_path / "gate"
    template = Gate(open_tokenizer(tokenizer_path), gate)
    cache = Cache(tmp_path / "cache")
    store = small(ListSource(RECORDS), template, cache, background=True)
    assert (
        "which are made while they are used" in store.describe()
        and "samples not counted yet" in repr(store)
    )
    with pytest.raises(StoreError, match=r"not complete yet.*store\.wait\(\)"):
        store.counts
    assert store[250].text.startswith("the quick")  # of the first shards, which need no gate
    last = store.num_shards - 1
    store.want([last, 7])
    gate.touch()
    assert store.lengths_of(np.array([1199, 3])).tolist() == [len(store[1199]), len(store[3])]
    assert store.wait().counts.rows == 1200
    store.want([0])  # a whole store needs no request


def test_copies_in_other_processes_make_what_they_need(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    gate = tmp_path / "gate"
    template = Gate(open_tokenizer(tokenizer_path), gate)
    store = small(ListSource(RECORDS), template, Cache(tmp_path / "cache"), background=True)
    copy = pickle.loads(pickle.dumps(store))
    assert copy.fingerprint == store.fingerprint and copy[150].text == store[150].text
    gate.touch()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            code = 0 if store[1100].text.startswith("the quick") else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert copy[1199].text == store[1199].text
    store.wait()


@pytest.mark.timeout(60)
def test_a_shard_that_another_process_gave_up_is_made_by_its_reader_while_all_workers_are_busy(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    gate, cache = tmp_path / "gate", Cache(tmp_path / "cache")
    template, source = Gate(open_tokenizer(tokenizer_path), gate), ListSource(RECORDS)
    with take_claim(shard_key(source.digest(100, 200), template.identity()), cache) as claim:  # type: ignore[union-attr]
        assert isinstance(claim, Claim)
        store = small(source, template, cache, background=True)
        while len(list(tmp_path.glob("waiting-*"))) < 2:
            time.sleep(0.01)
    assert store[150].text.startswith("the quick") and not gate.exists()
    gate.touch()
    assert store.wait().counts.rows == 1200


def test_an_error_comes_up_where_somebody_asks(
    tmp_path: Path, write_jsonl: Write, template: TextTemplate
) -> None:
    path = write_jsonl([*RECORDS[:1190], {"text": None}, *RECORDS[1191:]])
    cache = Cache(tmp_path / "cache")
    store = small(open_source(path, cache=cache), template, cache, background=True)
    with pytest.raises(TemplateError, match=rf"^{path}:1191: key 'text' is null"):
        list(store)
    with pytest.raises(TemplateError, match=rf"^{path}:1191: key 'text' is null"):
        store.wait()
    assert not (cache.root / "stores").exists()


def test_letting_go_stops_the_work_and_leaves_nothing_half(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    cache = Cache(tmp_path / "cache")
    template = Gate(open_tokenizer(tokenizer_path), tmp_path / "gate")
    before = children()  # another test's, such as the resource tracker of multiprocessing
    store = small(ListSource(RECORDS), template, cache, background=True)
    assert store[0].text.startswith("the quick") and children() > before
    store.close()
    with pytest.raises(StoreError, match="closed before all of its shards were made"):
        store.wait()
    del store
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock-prepare"]
    assert children() == before
    assert not list(cache.root.rglob(".*.tmp"))
    (tmp_path / "gate").touch()
    assert small(ListSource(RECORDS), template, cache, background=False).counts.rows == 1200


def test_a_store_that_is_closed_while_every_process_works_was_closed_and_did_not_fail(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    cache = Cache(tmp_path / "cache")
    store = small(
        ListSource(RECORDS),
        Gate(open_tokenizer(tokenizer_path), tmp_path / "gate"),
        cache,
        background=True,
    )
    while len(list(tmp_path.glob("waiting-*"))) < 2:
        time.sleep(0.01)  # until both wait at the gate, and no worker asks for a task
    store.close()
    with pytest.raises(StoreError, match="closed before all of its shards were made"):
        store.wait()


def test_a_store_that_is_still_being_made_is_not_shuffled_as_a_whole(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    gate = tmp_path / "gate"
    store = small(
        ListSource(RECORDS),
        Gate(open_tokenizer(tokenizer_path), gate),
        Cache(tmp_path),
        background=True,
    )
    for options in ({}, {"shuffle_window": "auto"}, {"shuffle_window": "all"}):
        with raises_code("background_needs_a_window"):
            ps.Loader(store, batch_size=4, max_length=128, output="numpy", **options)
    ps.Loader(store, batch_size=4, max_length=128, output="numpy", shuffle_window=4)
    ps.Loader(store, batch_size=4, max_length=128, output="numpy", shuffle=False)
    gate.touch()
    assert list(ps.Loader(store.wait(), batch_size=4, max_length=128, output="numpy"))


def test_an_engine_that_loses_tasks_makes_no_store(tmp_path: Path, template: TextTemplate) -> None:
    class Lazy(LocalEngine):
        def run(self, *given: Any, **more: Any) -> Iterator[Any]:
            return islice(super().run(*given, **more), 5)

    with pytest.raises(
        StoreError, match=r"LocalEngine\(1\) ended after 5 of 13 shards, without an error"
    ):
        build(
            ListSource(RECORDS),
            template,
            engine=Lazy(1),
            cache=Cache(tmp_path),
            shard_bytes=10_000,
            shard_rows=100,
        )
    assert not (tmp_path / "stores").exists()


def test_a_finished_store_has_nothing_to_make(
    tmp_path: Path, write_jsonl: Write, template: TextTemplate
) -> None:
    cache = Cache(tmp_path / "cache")
    source = open_source(write_jsonl(RECORDS), cache=cache)
    small(source, template, cache, background=False)
    store = small(source, template, cache, background=True)
    assert store.manifest is not None and store.wait().counts.rows == 1200


@pytest.mark.parametrize("cache", [True, False])
def test_a_script_that_ends_early_ends_cleanly(
    tmp_path: Path, tokenizer_path: Path, cache: bool
) -> None:
    (tmp_path / "data.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in RECORDS * 60)
    )
    script = f"""
        import sys, penstock as ps
        store = ps.prepare({str(tmp_path / "data.jsonl")!r}, tokenizer={str(tokenizer_path)!r}, cache={cache},
                           background=True, num_proc=2)
        print(store[0].text[:9])
        if {cache}: sys.exit(3)
        raise RuntimeError("mine")
    """
    environment = {
        **os.environ,
        "PENSTOCK_CACHE": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path / "tmp"),
    }
    (tmp_path / "tmp").mkdir()
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout == "the quick\n" and result.returncode == (3 if cache else 1)
    assert (
        "RuntimeError: mine" in result.stderr
    ) != cache and "Exception ignored" not in result.stderr
    assert not list((tmp_path / "tmp").iterdir())


def test_a_store_that_this_process_makes_itself_stops_within_a_shard_when_it_is_closed(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    """As in a daemonic process: there is no other process to end."""

    class Slow(TextTemplate):
        num_encoded = 0

        def encode(self, records: Any) -> Any:
            Slow.num_encoded += 1
            time.sleep(0.1)
            return super().encode(records)

    cache = Cache(tmp_path / "cache")
    template = Slow(open_tokenizer(tokenizer_path))
    store = build(
        ListSource(RECORDS),
        template,
        engine=LocalEngine(1),
        cache=cache,
        background=True,
        shard_rows=1200,
    )
    while not Slow.num_encoded:
        time.sleep(0.01)
    store.close()
    assert Slow.num_encoded < 5 and not [
        each for each in threading.enumerate() if each.name == "penstock-prepare"
    ]


def test_an_engine_that_loses_tasks_while_rows_are_digested_is_named(
    tmp_path: Path, template: TextTemplate
) -> None:
    class Loses:
        def run(self, work: Any, tasks: Any, *, on_note: Any = None) -> Iterator[Any]:
            return islice(LocalEngine(1).run(work, tasks, on_note=on_note), 3)

        def __repr__(self) -> str:
            return "Loses()"

    with pytest.raises(StoreError, match=r"Loses\(\) ended after 3 of 12 shards, without an error"):
        build(
            ListSource(RECORDS),
            template,
            engine=Loses(),
            cache=Cache(tmp_path / "c"),
            background=True,
            shard_rows=100,
        )
