"""Is a shard encoded as one, though its records come in parts?"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import numpy as np
import pytest

from penstock.cache import Cache
from penstock.engines import LocalEngine
from penstock.sources import ListSource
from penstock.store import build
from penstock.types import Record, Samples

from .shelves import Numbers, records


class Learning(Numbers):
    """Counts its encoders, and how many records each has met."""

    def __init__(self) -> None:
        super().__init__()
        self.met: list[int] = []

    def encoder(self) -> Callable[[Iterable[Record]], Samples]:
        self.met.append(0)

        def encode(part: Iterable[Record]) -> Samples:
            rows = list(part)
            self.met[-1] += len(rows)
            return Numbers.encode(self, rows)

        return encode


class Own(Learning):
    """Says itself how records are encoded."""

    def encode(self, records: Any) -> Samples:
        samples = super().encode(records)
        return Samples(
            input_ids=samples.input_ids + np.uint32(1),
            loss_mask=samples.loss_mask,
            offsets=samples.offsets,
            dropped=samples.dropped,
        )


def ids_of(template: Any, cache: Cache) -> list[list[int]]:
    source = ListSource(records(250))
    store = build(
        source,
        template,
        engine=LocalEngine(1),
        cache=cache,
        shard_bytes=1 << 20,
        shard_rows=100,
        refresh=True,
    )
    return [sample.input_ids.tolist() for sample in store]


def test_each_shard_has_an_encoder_of_its_own_for_all_of_its_parts(cache: Cache) -> None:
    template = Learning()
    assert ids_of(template, cache) == [record["ids"] for record in records(250)]
    assert template.met == [100, 100, 50]


def test_a_subclass_with_an_encode_of_its_own_is_not_passed_over(cache: Cache) -> None:
    template = Own()
    assert ids_of(template, cache) == [
        [number + 1 for number in record["ids"]] for record in records(250)
    ]
    assert template.met == []


@pytest.mark.parametrize("size", [1, 7, 40, 1000])
def test_conversations_in_parts_are_the_conversations_as_a_whole(size: int) -> None:
    """Some are refused, some have a turn that the others have not: parts change neither tokens nor places."""
    from tests.templates.conversations import chat

    text = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "<{{ m.role }}>{{ m.content | trim }}{{ eos_token }}{% endfor %}"
    )
    template = chat(text, on_refused="skip")
    roles = ("user", "assistant", "user", "assistant", "tool", "assistant")
    rows = [
        {
            "messages": [
                {"role": role, "content": f" the fox {row} "}
                for role in roles[: 2 + row % 4 + (row % 9 == 8)]
            ]
        }
        for row in range(100)
    ]
    whole, encode, rest = template.encode(rows), template.encoder(), iter(rows)
    parts = [encode(part) for part in iter(lambda: list(islice(rest, size)), [])]
    for name in ("input_ids", "loss_mask"):
        assert np.array_equal(
            np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name)
        ), name
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    assert np.array_equal(lengths, np.diff(whole.offsets)) and whole.dropped
    dropped = {
        size * number + row: why
        for number, part in enumerate(parts)
        for row, why in part.dropped.items()
    }
    assert dropped == whole.dropped
