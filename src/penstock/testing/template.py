"""Does a template keep the rules?  The same record gives the same tokens, whatever came before it and in whichever process."""

import json
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler  # what sending a template to a worker process does
from typing import Any

import numpy as np

from penstock.types import Record, Samples, Template

_Made = tuple[list[int], list[bool], str | None]  # ids, loss mask, reason of a drop


def check_template(
    template: Template,
    records: Sequence[Record],
    *,
    expected: Sequence[tuple[Sequence[int], Sequence[bool]] | None] | None = None,
) -> None:
    """One sample per record, in order, that depends on that record alone.

    expected: ids and loss mask of each record, where they are known; None in place of a record that is dropped.
    """
    _check_identity(template)
    whole = _parts(template, template.encode(list(records)), len(records))
    if expected is not None:
        assert len(expected) == len(records), f"{len(expected)} expected samples for {len(records)} records"
        for number, (found, known) in enumerate(zip(whole, expected, strict=True)):
            ids, mask = ([], []) if known is None else known
            _same(found[:2], (list(ids), [bool(yes) for yes in mask]), f"record {number} is what was expected")
            _same(found[2] is None, known is not None, f"record {number} is dropped or not, as expected")
    _same(
        _parts(template, template.encode(iter(records)), len(records)), whole, "an iterator of records gives the same"
    )
    _same(_parts(template, template.encode([]), 0), [], "no records give no samples")
    for number, record in enumerate(records):
        (alone,) = _parts(template, template.encode([record]), 1)
        _same(alone, whole[number], f"record {number} alone gives what it gives among others")
    _same(
        _parts(template, template.encode(list(records)[::-1]), len(records))[::-1],
        whole,
        "the order of records changes none",
    )
    copy = ForkingPickler.loads(ForkingPickler.dumps(template))
    _same(_parts(copy, copy.encode(list(records)), len(records)), whole, "a pickled copy gives the same")
    _same(copy.identity(), template.identity(), "a pickled copy has the same identity")
    _check_unchanged(template, records)


def _check_identity(template: Template) -> None:
    identity = template.identity()
    try:
        plain = json.loads(json.dumps(identity, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise AssertionError(f"identity() is no plain JSON: {error}") from error
    _same(plain, identity, "identity() is the same after a trip through JSON")
    _same(template.identity(), identity, "identity() asked again is the same")
    assert isinstance(template.vocab_size, int) and template.vocab_size > 0, f"vocab_size is {template.vocab_size!r}"


def _check_unchanged(template: Template, records: Sequence[Record]) -> None:
    before = [repr(record) for record in records]
    template.encode(list(records))
    for number, record in enumerate(records):
        _same(repr(record), before[number], f"record {number} is left as it was")


def _parts(template: Template, samples: Samples, num_records: int) -> list[_Made]:
    offsets, ids, mask = samples.offsets, samples.input_ids, samples.loss_mask
    assert len(offsets) == num_records + 1, f"{len(offsets)} offsets for {num_records} records, expected one more"
    assert offsets[0] == 0 and offsets[-1] == len(ids) and (np.diff(offsets) >= 0).all(), (
        "offsets run from 0 to the last id"
    )
    assert ids.dtype == np.uint32, f"input_ids are {ids.dtype}, expected uint32"
    assert mask.dtype == np.bool_ and mask.shape == ids.shape, (
        f"loss_mask is {mask.dtype} {mask.shape} for {ids.shape} ids"
    )
    assert not len(ids) or int(ids.max()) < template.vocab_size, (
        f"id {ids.max()}, expected ids below {template.vocab_size}"
    )
    made: list[_Made] = []
    for number in range(num_records):
        start, stop = int(offsets[number]), int(offsets[number + 1])
        reason: Any = samples.dropped.get(number)
        assert (reason is not None) == (start == stop), (
            f"record {number} has {stop - start} tokens and is {'not ' if reason is None else ''}among the dropped"
        )
        assert reason is not None or mask[start:stop].any(), (
            f"record {number} has nothing to train on and is not dropped"
        )
        made.append((ids[start:stop].tolist(), mask[start:stop].tolist(), reason))
        if stop > start:
            assert isinstance(template.decode(ids[start:stop]), str), f"decode() of record {number} is no text"
    assert samples.dropped.keys() <= set(range(num_records)), (
        f"dropped names records that are not there: {samples.dropped}"
    )
    return made


def _same(found: Any, known: Any, law: str) -> None:
    assert found == known, f"{law}: found {str(found)[:300]}, expected {str(known)[:300]}"
