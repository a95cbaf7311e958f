"""The contract of a template: the same record gives the same sample, whatever comes before it and in any process."""

from collections.abc import Sequence

import numpy as np

from penstock.testing.same import plain, same, sent
from penstock.types import Record, Samples, Template, columns_of, rule_of

_Sample = tuple[list[int], list[bool], str | None]  # ids, loss mask, reason of a drop


def check_template(
    template: Template,
    records: Sequence[Record],
    *,
    expected: Sequence[tuple[Sequence[int], Sequence[bool]] | None] | None = None,
) -> None:
    """Check that a template makes one sample per record, in order, that depends on that record alone.

    expected: ids and loss mask of each record, if they are known; None for a record that is dropped.
    """
    same(
        template.identity(),
        plain(template.identity(), "identity()"),
        "identity() called again is the same",
    )
    assert isinstance(template.vocab_size, int) and template.vocab_size > 0, (
        f"vocab_size is {template.vocab_size!r}"
    )
    before = [repr(record) for record in records]
    records = list(records)
    whole = _samples(template, template.encode(records), len(records))
    for number, record in enumerate(records):
        same(repr(record), before[number], f"record {number} is left as it was")
    if expected is not None:
        assert len(expected) == len(records), (
            f"{len(expected)} expected samples for {len(records)} records"
        )
        for number, (found, known) in enumerate(zip(whole, expected, strict=True)):
            ids, mask = ([], []) if known is None else known
            same(
                found[:2],
                (list(ids), [bool(yes) for yes in mask]),
                f"record {number} is what was expected",
            )
            same(
                found[2] is None,
                known is not None,
                f"record {number} is dropped or not, as expected",
            )
    same(
        _samples(template, template.encode(iter(records)), len(records)),
        whole,
        "an iterator of records gives the same",
    )
    same(_samples(template, template.encode([]), 0), [], "no records give no samples")
    for number, record in enumerate(records):
        alone = _samples(template, template.encode([record]), 1)
        same(alone, [whole[number]], f"record {number} alone gives what it gives among others")
    backwards = _samples(template, template.encode(records[::-1]), len(records))
    same(backwards[::-1], whole, "the order of records changes no sample")
    copy, _ = sent(template)
    same(_samples(copy, copy.encode(records), len(records)), whole, "a pickled copy gives the same")
    same(copy.identity(), template.identity(), "a pickled copy has the same identity")


def _samples(template: Template, samples: Samples, num_records: int) -> list[_Sample]:
    """The samples one by one, after checking how they are stored."""
    offsets = samples.offsets
    ids = samples.input_ids
    mask = samples.loss_mask
    dropped = samples.dropped
    assert len(offsets) == num_records + 1, (
        f"{len(offsets)} offsets for {num_records} records, expected one more"
    )
    is_rising = offsets[0] == 0 and offsets[-1] == len(ids) and (np.diff(offsets) >= 0).all()
    assert is_rising, "offsets must run from 0 to the number of ids"
    assert ids.dtype == np.uint32, f"input_ids are {ids.dtype}, expected uint32"
    is_mask = mask.dtype == np.bool_ and mask.shape == ids.shape
    assert is_mask, f"loss_mask is {mask.dtype} {mask.shape} for {ids.shape} ids"
    vocab_size = template.vocab_size
    assert not len(ids) or int(ids.max()) < vocab_size, (
        f"id {ids.max()}, expected ids below {vocab_size}"
    )
    assert dropped.keys() <= set(range(num_records)), (
        f"dropped names records that do not exist: {dropped}"
    )
    made: list[_Sample] = []
    for number in range(num_records):
        start = int(offsets[number])
        stop = int(offsets[number + 1])
        reason = dropped.get(number)
        listed = "" if number in dropped else "not "
        is_listed = (number in dropped) == (start == stop)
        assert is_listed, (
            f"record {number} has {stop - start} tokens and is {listed}among the dropped"
        )
        has_target = (
            start == stop
            or mask[start:stop].any()
            or not all(rule_of(column).needs_target for column in columns_of(template))
        )
        assert has_target, f"record {number} has nothing to train on and is not dropped"
        made.append((ids[start:stop].tolist(), mask[start:stop].tolist(), reason))
        if stop > start:
            assert isinstance(template.decode(ids[start:stop]), str), (
                f"decode() of record {number} is not text"
            )
    return made
