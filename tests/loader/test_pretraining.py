"""Pretraining as nanoGPT and Megatron do it: rows that share a token (overlap) and attention across documents (documents: joined)."""

from itertools import pairwise

import numpy as np
import pytest

import penstock as ps
from penstock.errors import PlanError
from penstock.loader.collate import IGNORE, PADDING
from tests.loader.arrays import Loader


@pytest.fixture(scope="module")
def store(tokenizer_path, tmp_path_factory):
    rng = np.random.default_rng(0)
    words = ["fox", "river", "stone", "mill", "gate"]
    records = [{"text": " ".join(rng.choice(words, int(rng.integers(1, 60))))} for _ in range(120)]
    cache = tmp_path_factory.mktemp("cache")
    return ps.prepare(
        records, tokenizer=tokenizer_path, template="text", cache_dir=cache, num_proc=1
    )


def make(store, **options) -> ps.Loader:
    fixed = {"packing": "concat", "batch_size": 4, "max_length": 33, "shuffle": False}
    return Loader(store, **{**fixed, **options})


def stream_of(store) -> np.ndarray:
    return np.concatenate([store[number].input_ids for number in range(len(store))])


def num_targets(loader) -> int:
    return sum(int(np.count_nonzero(batch["labels"] != IGNORE)) for batch in loader)


def test_every_token_but_the_first_is_a_target_as_in_nanogpt(store):
    """§4: 504,908 targets where nanoGPT has 506,293; nanoGPT's windows are data[i : i + L] and data[i + 1 : i + 1 + L]."""
    stream = stream_of(store)
    loader = make(store, overlap=True, documents="joined")
    length = 32
    inputs, targets, trained = [], [], 0
    for batch in loader:
        trained += batch.trained
        for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
            is_target = labels != IGNORE
            assert (labels[is_target] == ids[is_target]).all()
            count = int(np.count_nonzero(is_target))
            assert not is_target[0] and is_target[1 : count + 1].all()
            if count:
                inputs.append(ids[:count])
                targets.append(labels[is_target])
    begins = range(0, stream.size - 1, length)
    assert [each.tolist() for each in inputs] == [
        stream[:-1][i : i + length].tolist() for i in begins
    ]
    assert [each.tolist() for each in targets] == [
        stream[1:][i : i + length].tolist() for i in begins
    ]
    assert sum(map(len, targets)) == trained == stream.size - 1
    assert loader.counters.tokens_out == stream.size
    assert loader.counters.tokens_shared == len(inputs) - 1


def test_the_counts_of_targets_of_all_four_ways_are_as_the_guide_says(store):
    tokens, documents = stream_of(store).size, len(store)
    plain = make(store)
    rows = plain.plan.num_rows(0)
    cut = sum(
        int((batch.rows.spans["start"] > 0).sum()) for batch in plain
    )  # rows that begin inside a document
    assert num_targets(make(store)) == tokens - documents - cut
    assert num_targets(make(store, overlap=True)) == tokens - documents
    assert num_targets(make(store, documents="joined")) == tokens - rows
    assert num_targets(make(store, overlap=True, documents="joined")) == tokens - 1
    blocks = make(store, overlap=True, documents="joined", block=50)
    num_blocks = len(blocks.plan.table(0)) - 1
    assert num_blocks > 1
    assert num_targets(blocks) == tokens - num_blocks  # a block is a stream of its own


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_positions_and_attention_run_through_a_row_of_joined_documents(store, overlap, shuffle):
    options = {"overlap": overlap, "shuffle": shuffle, "seed": 3}
    apart = list(make(store, **options))
    joined = list(make(store, documents="joined", **options))
    for one, other in zip(apart, joined, strict=True):
        assert (one["input_ids"] == other["input_ids"]).all()
        real = other["seq_idx"] != PADDING
        assert (real == (one["seq_idx"] != PADDING)).all()
        assert (other["seq_idx"][real] == 0).all()
        for ids, labels, positions, here in zip(
            other["input_ids"], other["labels"], other["position_ids"], real, strict=True
        ):
            count = int(here.sum())
            assert here[:count].all()
            assert (positions[:count] == np.arange(count)).all()
            assert (labels[1:count] == ids[1:count]).all()
            assert (labels[:1] == IGNORE).all() and (labels[count:] == IGNORE).all()
        lengths = real.sum(axis=1)
        borders = [0]
        for count in lengths.tolist():
            borders += [borders[-1] + count] if count else []
            borders += [borders[-1] + 33 - count] if count < 33 else []
        assert other["cu_seqlens"].tolist() == borders
        assert other["max_seqlen"] == max(np.diff(borders))
        assert other.trained == int((other["labels"] != IGNORE).sum())


def test_joined_documents_as_one_flat_row_and_with_shifted_labels(store):
    rows = [
        (batch["input_ids"][number][: len(here)], len(here))
        for batch in make(store, documents="joined")
        for number in range(4)
        if len(here := np.flatnonzero(batch["seq_idx"][number] != PADDING))
    ]
    flat = list(make(store, documents="joined", padding_free=True))
    assert np.concatenate([batch["input_ids"][0] for batch in flat]).tolist() == [
        token for ids, _ in rows for token in ids.tolist()
    ]
    for batch in flat:
        borders = batch["cu_seqlens"]
        assert len(borders) <= 5
        for number, (low, high) in enumerate(pairwise(borders)):
            assert batch["position_ids"][0][low:high].tolist() == list(range(high - low))
            assert (batch["seq_idx"][0][low:high] == number).all()
            assert batch["labels"][0][low] == IGNORE
            assert (
                batch["labels"][0][low + 1 : high] == batch["input_ids"][0][low + 1 : high]
            ).all()
    shifted = make(store, documents="joined", overlap=True, labels="shifted")
    plain = make(store, documents="joined", overlap=True)
    for one, other in zip(plain, shifted, strict=True):
        assert (one["labels"][:, 1:] == other["labels"][:, :-1]).all()
        assert (other["labels"][:, -1] == IGNORE).all()


@pytest.mark.parametrize("documents", ["apart", "joined"])
def test_a_run_with_overlap_resumes_anywhere_with_other_ranks(store, documents):
    options = {
        "overlap": True,
        "documents": documents,
        "shuffle": True,
        "batch_size": 1,
        "epochs": 2,
    }

    def arrays(loader) -> list:
        names = ("input_ids", "labels", "position_ids", "seq_idx")
        return [[batch[name].tolist() for name in names] for batch in loader]

    whole = make(store, **options)
    expected = arrays(whole)
    for cut in (1, 5, len(expected) - 3):
        loader = make(store, **options)
        batches = iter(loader)
        for _ in range(cut):
            next(batches)
        state = loader.state_dict()
        ranks = [make(store, **options, rank=rank, world_size=2) for rank in range(2)]
        for each in ranks:
            each.load_state_dict(state)
        dealt = [arrays(each) for each in ranks]
        together = [row for pair in zip(*dealt, strict=True) for row in pair]
        real = [row for row in together if any(number != PADDING for number in row[3][0])]
        rest = [row for row in expected[cut:] if any(number != PADDING for number in row[3][0])]
        assert real == rest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"packing": "mixed_fit"}, "packing='mixed_fit' is something else"),
        ({"packing": "none"}, "packing='none' is something else"),
        ({"align": 8}, "align=8 is something else"),
        ({"attention_mask": "4d"}, "attention_mask='4d' keeps documents apart"),
        ({"documents": "mixed"}, "documents is 'mixed', expected one of apart, joined"),
    ],
)
def test_joined_documents_are_refused_where_they_make_no_sense(store, options, message):
    with pytest.raises(PlanError, match=message):
        make(store, **{"documents": "joined", **options})
