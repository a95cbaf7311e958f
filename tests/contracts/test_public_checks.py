"""Do the public checks let what is right pass, and does each kind of mistake trip them?"""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.engines import LocalEngine
from penstock.templates import open_template, open_tokenizer
from penstock.testing import check_engine, check_resume, check_template
from penstock.types import Record, Samples

Write = Callable[..., Path]

TEXTS = [{"text": f"the quick brown fox {row} " * (row % 6 + 1)} for row in range(70)]


@pytest.fixture
def store(write_jsonl: Write, tokenizer_path: Path, tmp_path: Path) -> Any:
    return ps.prepare(
        write_jsonl(TEXTS),
        tokenizer=tokenizer_path,
        template="text",
        cache_dir=tmp_path / "cache",
        num_proc=1,
    )


def maker(store: Any, **options: Any) -> Callable[[int, int], ps.Loader]:
    given = {"batch_size": 2, "max_length": 64, "output": "numpy", **options}
    return lambda rank, world_size: ps.Loader(store, rank=rank, world_size=world_size, **given)


# Resume


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"last_step": "drop"},
        {"last_step": "wrap", "epochs": 2},
        {"epochs": 3, "packing": "none"},
        {"epochs": None},
        {"prefetch": 0},
    ],
)
def test_penstocks_own_loader_resumes(store: Any, options: dict[str, Any]) -> None:
    check_resume(maker(store, **options), cuts=5, max_steps=30)


class Wrapped:
    """A user's own loader, around ours."""

    def __init__(self, loader: ps.Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def state_dict(self) -> Any:
        return self.loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.loader.load_state_dict(state)


class Forgets(Wrapped):
    def load_state_dict(self, state: Any) -> None:
        pass


class Late(Wrapped):
    """Saves the state from before the last step."""

    def __iter__(self) -> Iterator[Any]:
        self.before = self.loader.state_dict()
        for batch in self.loader:
            yield batch
            self.before = self.loader.state_dict()

    def state_dict(self) -> Any:
        return getattr(self, "before", None) or self.loader.state_dict()


class Skips(Wrapped):
    """Loses a batch that was read ahead."""

    def load_state_dict(self, state: Any) -> None:
        self.loader.load_state_dict(state)
        self.is_resumed = state["step"] > 0

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.loader), 1 if getattr(self, "is_resumed", False) else 0, None)


class PerRank(Wrapped):
    def state_dict(self) -> Any:
        return {**self.loader.state_dict(), "rank": self.loader.world.rank}

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict({name: value for name, value in state.items() if name != "rank"})


class NoJson(Wrapped):
    def state_dict(self) -> Any:
        return {"state": {1, 2}}


class Ends(Wrapped):
    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.loader), 4 if self.loader.world.rank else None)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Forgets, r"a state that was just loaded is saved as another one"),
        (
            Late,
            r"cut after step \d+ of 1 ranks, resumed on 1: row \d+ is .*, expected .*; \d+ rows came before the cut",
        ),
        (Skips, r"cut after step \d+ of 1 ranks, resumed on 1: row \d+ is "),
        (PerRank, r"resumed on 2: a state that was just loaded is saved as another one"),
        (NoJson, r"the state is not plain JSON: Object of type set is not JSON serializable"),
        (Ends, r"rank 1 of 2 has no more steps, and others have"),
    ],
)
def test_a_loader_that_does_not_resume_is_caught(
    store: Any, kind: type[Wrapped], message: str
) -> None:
    make = maker(store)
    with pytest.raises(AssertionError, match=message):
        check_resume(lambda rank, size: kind(make(rank, size)), cuts=4, world_sizes=(1, 2))


def test_ranks_that_save_different_states_are_caught(store: Any) -> None:
    make = maker(store)
    with pytest.raises(
        AssertionError, match=r"after step 0 of 2 ranks, rank 1 saves .*, rank 0 saves "
    ):
        check_resume(lambda rank, size: PerRank(make(rank, size)), cuts=4, world_sizes=(2,))


def test_an_order_that_depends_on_the_ranks_is_caught(store: Any) -> None:
    with pytest.raises(
        AssertionError, match=r"on 2 ranks row \d+ is .*: the order depends on the ranks"
    ):
        check_resume(lambda rank, size: maker(store, seed=size)(rank, size), cuts=3)


def test_batches_of_another_kind_are_looked_at_as_told(store: Any) -> None:
    make = maker(store, packing="none")
    check_resume(
        make,
        cuts=3,
        rows=lambda batch: [tuple(row[row > 0].tolist()) for row in batch["input_ids"]],
    )


# Templates


@pytest.mark.parametrize("name", ["text", "messages", "alpaca", "prompt_completion"])
def test_penstocks_own_templates_keep_the_contract(tokenizer_path: Path, name: str) -> None:
    records: dict[str, list[Record]] = {
        "text": [{"text": "the fox"}, {"text": ""}, {"text": "über 狐"}],
        "messages": [
            {
                "messages": [
                    {"role": "user", "content": "fox?"},
                    {"role": "assistant", "content": "dog"},
                ]
            },
            {"messages": [{"role": "user", "content": "nobody answers"}]},
        ],
        "alpaca": [{"instruction": "fox", "input": "", "output": "dog"}],
        "prompt_completion": [
            {"prompt": "fox ", "completion": "dog"},
            {"prompt": "fox", "completion": ""},
        ],
    }
    check_template(open_template(name, open_tokenizer(tokenizer_path), {}), records[name])


class Letters:
    """A template in ten lines: a letter is its number."""

    vocab_size = 300

    def identity(self) -> dict[str, Any]:
        return {"template": "letters"}

    def encode(self, records: Iterable[Record]) -> Samples:
        texts = [record["text"] for record in records]
        ids = np.array([ord(char) for text in texts for char in text], np.uint32)
        offsets = np.cumsum([0, *map(len, texts)]).astype(np.int64)
        dropped = {number: "empty" for number, text in enumerate(texts) if not text}
        return Samples(
            input_ids=ids, loss_mask=np.ones(len(ids), np.bool_), offsets=offsets, dropped=dropped
        )

    def decode(self, input_ids: Any) -> str:
        return "".join(map(chr, input_ids.tolist()))


class Remembers(Letters):
    seen = 0

    def encode(self, records: Iterable[Record]) -> Samples:
        made = super().encode(records)
        self.seen += 1
        return Samples(
            input_ids=made.input_ids + self.seen,
            loss_mask=made.loss_mask,
            offsets=made.offsets,
            dropped=made.dropped,
        )


class Hides(Letters):
    def encode(self, records: Iterable[Record]) -> Samples:
        made = super().encode(records)
        return Samples(input_ids=made.input_ids, loss_mask=made.loss_mask, offsets=made.offsets)


class Untrained(Letters):
    def encode(self, records: Iterable[Record]) -> Samples:
        made = super().encode(records)
        return Samples(
            input_ids=made.input_ids,
            loss_mask=~made.loss_mask,
            offsets=made.offsets,
            dropped=made.dropped,
        )


class Narrow(Letters):
    vocab_size = 100


class Objects(Letters):
    def identity(self) -> dict[str, Any]:
        return {"template": Letters}


class Changes(Letters):
    def encode(self, records: Iterable[Record]) -> Samples:
        records = list(records)
        made = super().encode(records)
        for record in records:
            record["seen"] = record.get("seen", 0) + 1
        return made


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Remembers, "an iterator of records gives the same"),
        (Hides, "record 1 has 0 tokens and is not among the dropped"),
        (Untrained, "record 0 has nothing to train on and is not dropped"),
        (Narrow, "id 120, expected ids below 100"),
        (Objects, r"identity\(\) is not plain JSON"),
        (Changes, "record 0 is left as it was"),
    ],
)
def test_a_template_that_breaks_the_contract_is_caught(kind: type[Letters], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_template(kind(), [{"text": "fox"}, {"text": ""}, {"text": "dog"}])


def test_expected_samples_are_compared() -> None:
    records = [{"text": "ab"}, {"text": ""}]
    check_template(Letters(), records, expected=[([97, 98], [True, True]), None])
    with pytest.raises(AssertionError, match="record 0 is what was expected"):
        check_template(Letters(), records, expected=[([97, 99], [True, True]), None])
    with pytest.raises(AssertionError, match="1 expected samples for 2 records"):
        check_template(Letters(), records, expected=[None])


# Engines


@pytest.mark.parametrize(
    "engine",
    [
        LocalEngine(1),
        LocalEngine(2),
        LocalEngine(1, inline=False),
        LocalEngine(2, start_method="spawn"),
    ],
)
def test_penstocks_own_engines_keep_the_contract(engine: LocalEngine) -> None:
    check_engine(engine)


class Plain:
    """The simplest engine there is, with a mistake where a subclass makes one."""

    def run(self, work: Any, tasks: Any, *, on_note: Any = None) -> Iterator[Any]:
        for task in tasks:
            if task is not None:
                yield self.do(work, task, on_note)

    def do(self, work: Any, task: Any, on_note: Any) -> Any:
        result = work(task)
        if not hasattr(result, "send"):
            return result
        while True:
            try:
                note = next(result)
            except StopIteration as end:
                return end.value
            if on_note is not None:
                on_note(task, note)


class Swallows(Plain):
    def do(self, work: Any, task: Any, on_note: Any) -> Any:
        try:
            return super().do(work, task, on_note)
        except ValueError:
            return None


class Twice(Plain):
    def run(self, work: Any, tasks: Any, *, on_note: Any = None) -> Iterator[Any]:
        for task in tasks:
            yield self.do(work, task, on_note)
            yield self.do(work, task, on_note)


class Deaf(Plain):
    def do(self, work: Any, task: Any, on_note: Any) -> Any:
        return super().do(work, task, None)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Swallows, "a task that raises must raise where the results are read"),
        (Twice, "every task is done once"),
        (Deaf, "the notes of task 0 arrive in order"),
    ],
)
def test_an_engine_that_breaks_the_contract_is_caught(kind: type[Plain], message: str) -> None:
    check_engine(Plain())
    with pytest.raises(AssertionError, match=message):
        check_engine(kind())


def test_states_are_compared_as_json(store: Any) -> None:
    state = maker(store)(0, 1).state_dict()
    assert json.loads(json.dumps(state)) == state
