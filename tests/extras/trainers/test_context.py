"""Parts of rows for context parallelism: nothing is lost, and attention over the parts is attention over the whole row."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import PlanError
from penstock.extras.trainers.context import gather
from penstock.store import Store
from tests.extras.trainers import attention

torch = pytest.importorskip("torch")

LENGTHS = (5, 9, 3, 14, 7, 30, 2, 11, 1, 26, 8, 8)
SPLITS = ("contiguous", "zigzag", "striped")
UNITS = ("row", "document")
OPTIONS: dict[str, Any] = {
    "batch_size": 2,
    "max_length": 64,
    "labels": "shifted",
    "rank": 0,
    "world_size": 1,
    "seed": 1,
}


def make_store(folder: Path) -> Store:
    records = [
        {"input_ids": [40 + number, *range(1, length)]} for number, length in enumerate(LENGTHS)
    ]
    return ps.prepare(
        records,
        template="pretokenized",
        vocab_size=100,
        cache_dir=folder,
        num_proc=1,
        progress="none",
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_store(tmp_path_factory.mktemp("context"))


def parts_of(store: Store, size: int, **options: Any) -> list[list[Any]]:
    """Return the batches of each rank of a group."""
    return [
        list(ps.Loader(store, **{**OPTIONS, **options}, context_size=size, context_rank=rank))
        for rank in range(size)
    ]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("layout", [{}, {"padding_free": True}, {"packing": "none"}])
def test_the_parts_of_all_ranks_are_the_uncut_batch(
    store: Store, size: int, unit: str, split: str, layout: dict[str, Any]
) -> None:
    options = {"align": 8, "pad_to_multiple_of": 8, "attention_mask": "none", **layout}
    whole = list(ps.Loader(store, **{**OPTIONS, **options}))
    parts = parts_of(store, size, context_split=split, context_unit=unit, **options)
    assert len(whole) == len(parts[0])
    for step, uncut in enumerate(whole):
        at_step = [batches[step] for batches in parts]
        places = [batch["row_places"].numpy() for batch in at_step]
        for name in ("input_ids", "labels", "position_ids", "seq_idx"):
            values = gather([batch[name].numpy() for batch in at_step], places)
            assert np.array_equal(values, uncut[name].numpy()), name
        for batch in at_step:
            assert batch["input_ids"].shape[1] * size == uncut["input_ids"].shape[1]
            check_borders(batch, uncut)


def check_borders(batch: Any, uncut: Any) -> None:
    """Borders say of every document what the uncut row says."""
    real = np.diff(batch["cu_seqlens"].numpy())
    padded = batch["cu_seqlens_padded"].numpy()
    documents = uncut["seq_idx"].numpy().ravel()
    labels = uncut["labels"].numpy()
    assert padded[-1] == documents.size
    assert batch["total_tokens"] == real.sum()
    assert batch["total_targets"] == (labels != -100).sum()
    assert batch["max_seqlen"] == np.diff(padded).max()
    spans = uncut.rows.spans
    assert real[real > 0].tolist() == (spans["stop"] - spans["start"]).tolist()
    for first, last, tokens in zip(padded[:-1], padded[1:], real, strict=True):
        assert len(set(documents[first:last].tolist())) == 1
        assert (documents[first] == -1) == (tokens == 0)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("split", SPLITS)
def test_ring_attention_over_parts_is_attention_over_whole_rows(
    store: Store, size: int, unit: str, split: str
) -> None:
    """By places and document numbers, for every way to cut."""
    options = {"context_split": split, "context_unit": unit, "align": 8}
    compare(store, size, options, attention.ring_by_places)


@pytest.mark.parametrize("size", [2, 4])
def test_the_ring_in_zigzag_form_needs_only_the_borders_of_the_part(
    store: Store, size: int
) -> None:
    """As Megatron and ring attention for sequences of different lengths compute it."""
    options = {"context_split": "zigzag", "context_unit": "document", "align": 8}
    compare(store, size, options, attention.zigzag_ring)


@pytest.mark.parametrize("size", [2, 4])
def test_ulysses_needs_only_the_padded_borders(store: Store, size: int) -> None:
    options = {"context_split": "contiguous"}
    compare(store, size, options, attention.ulysses)


def compare(store: Store, size: int, options: dict[str, Any], attend: Any) -> None:
    whole = list(ps.Loader(store, **OPTIONS, align=options.get("align", 1)))
    parts = parts_of(store, size, **options)
    for step, uncut in enumerate(whole):
        at_step = [batches[step] for batches in parts]
        length = uncut["input_ids"].shape[1]
        expected = attention.whole_rows(uncut["seq_idx"])
        for part, found in zip(at_step, attend(at_step, length), strict=True):
            places = part["row_places"][..., None, None]
            own = expected.gather(1, places.expand(-1, -1, *expected.shape[2:]))
            torch.testing.assert_close(found, own, rtol=0, atol=1e-12)


def test_zigzag_rows_are_those_of_torch(store: Store) -> None:
    from torch.distributed.tensor.experimental._context_parallel._load_balancer import (
        _HeadTailLoadBalancer,
    )

    size = 4
    order = _HeadTailLoadBalancer(OPTIONS["max_length"], size, "cpu")._generate_indices()[0]
    for rank, batches in enumerate(parts_of(store, size, context_split="zigzag")):
        own = order.reshape(size, -1)[rank]
        assert batches[0]["row_places"][0].tolist() == own.tolist()


def test_zigzag_documents_are_those_of_torch(store: Store) -> None:
    from torch.distributed.tensor.experimental._context_parallel._load_balancer import (
        _PerDocumentHeadTailLoadBalancer,
    )

    size = 2
    options = {"context_split": "zigzag", "context_unit": "document", "align": 4, "batch_size": 1}
    for batches in zip(*parts_of(store, size, **options), strict=True):
        rooms = np.diff(batches[0]["cu_seqlens_padded"].numpy()).tolist()
        balancer = _PerDocumentHeadTailLoadBalancer([rooms], size, "cpu")
        order = balancer._generate_indices()[0].tolist()
        places = [iter(batch["row_places"][0].tolist()) for batch in batches]
        # torch lists all ranks' pieces of a document, then those of the next one
        for room in rooms:
            for rank in range(size):
                piece = [next(places[rank]) for _ in range(room // size)]
                assert piece == order[: len(piece)]
                order = order[len(piece) :]
        assert not order


def test_joined_documents_are_one_document_for_attention(store: Store) -> None:
    options = {"packing": "concat", "documents": "joined", "context_split": "zigzag"}
    [batch, *_], _ = parts_of(store, 2, **options)
    assert batch["cu_seqlens_padded"].tolist() == [0, 64, 123, 128]  # the last row is not full


def test_weights_are_cut_with_their_labels(tokenizer_path: Path, tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "the fox?"},
        {"role": "assistant", "content": "dog runs over", "weight": 0.5},
        {"role": "user", "content": "and then?"},
        {"role": "assistant", "content": "the dog sleeps", "weight": 2},
    ]
    weighted = ps.prepare(
        [{"messages": messages}] * 6,
        tokenizer=tokenizer_path,
        cache_dir=tmp_path,
        message_weights=True,
        num_proc=1,
        progress="none",
    )
    whole = next(iter(ps.Loader(weighted, **OPTIONS, future_labels=1)))
    assert len(set(whole["weights"].flatten().tolist())) > 2
    parts = [
        batches[0] for batches in parts_of(weighted, 2, context_split="striped", future_labels=1)
    ]
    places = [part["row_places"].numpy() for part in parts]
    found = gather([part["weights"].numpy() for part in parts], places)
    assert np.array_equal(found, whole["weights"].numpy())
    further = gather([part["future_weights"][:, 0].numpy() for part in parts], places)
    assert np.array_equal(further, whole["future_weights"][:, 0].numpy())
    is_trained = whole["future_labels"] != -100
    assert torch.equal(whole["future_weights"] > 0, is_trained)


def test_future_labels_never_cross_a_document(store: Store) -> None:
    """An oracle in plain Python: the label of depth d is token t + 1 + d of the same sample."""
    depth = 3
    for labels in ("shifted", "unshifted"):
        options = {**OPTIONS, "labels": labels, "align": 4, "future_labels": depth}
        for batch in ps.Loader(store, **options, output="numpy"):
            further = batch["future_labels"]
            assert further.shape == (2, depth, 64)
            for row in range(2):
                for place in range(64):
                    for distance in range(1, depth + 1):
                        predictor = place - (labels == "unshifted")
                        target = predictor + 1 + distance
                        expected = -100
                        if predictor >= 0 and target < 64:
                            documents = batch["seq_idx"][row, [predictor, target]]
                            own = batch["labels"][row, target - (labels == "shifted")]
                            if documents[0] == documents[1]:
                                expected = own
                        assert further[row, distance - 1, place] == expected


def test_future_labels_are_cut_like_labels(store: Store) -> None:
    options = {"future_labels": 2, "align": 8}
    whole = next(iter(ps.Loader(store, **OPTIONS, **options)))
    parts = [
        batches[0]
        for batches in parts_of(
            store, 2, context_split="zigzag", context_unit="document", **options
        )
    ]
    places = [part["row_places"].numpy() for part in parts]
    for distance in range(2):
        values = [part["future_labels"][:, distance].numpy() for part in parts]
        assert np.array_equal(gather(values, places), whole["future_labels"][:, distance].numpy())


REFUSED = [
    ({"labels": "unshifted"}, "needs labels='shifted'"),
    ({"pad_side": "left", "packing": "none"}, "needs pad_side='right'"),
    ({"attention_mask": "4d"}, "attention_mask='4d' contradict"),
    ({"context_unit": "document"}, "and align=1; pass align=4"),
    ({"max_length": 62}, "the Loader makes rows of 62 tokens; pass pad_to_multiple_of=4"),
    ({"packing": "none"}, "rows of a multiple of 1 tokens; pass pad_to_multiple_of=4"),
    ({"context_rank": 2}, "context_rank is 2 of context_size 2"),
    ({"context_size": None, "context_rank": None}, "neither mesh= nor Megatron's"),
    ({"rank": None, "world_size": None}, "so the other parts would be lost"),
    ({"context_split": None}, "would have no effect without context_split"),
    ({"context_split": "spiral"}, "expected one of"),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED)
def test_what_cannot_be_cut_is_refused(
    store: Store, options: dict[str, Any], sentence: str
) -> None:
    asked = {**OPTIONS, "context_split": "zigzag", "context_size": 2, "context_rank": 1, **options}
    with pytest.raises(PlanError) as refused:
        next(iter(ps.Loader(store, **asked)))
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    "asked", [{"future_labels": 1}, {"context_split": "zigzag", "context_size": 2}]
)
def test_objectives_without_next_tokens_are_refused(
    tokenizer_path: Path, tmp_path: Path, asked: dict[str, Any]
) -> None:
    texts = ps.prepare(
        [{"text": "the fox runs over the dog"}] * 4,
        tokenizer=tokenizer_path,
        template="text",
        cache_dir=tmp_path,
        num_proc=1,
        progress="none",
    )
    masked = {"name": "masked_diffusion", "mask_token": "<|endoftext|>"}
    with pytest.raises(PlanError, match="has objective 'masked_diffusion'"):
        ps.Loader(texts, **OPTIONS, **asked, objective=masked)


def test_plain_records_are_not_cut() -> None:
    with pytest.raises(PlanError, match="is for rows of tokens, and this Loader has records"):
        ps.Loader(ps.open([{"a": 1}]), batch_size=1, context_split="zigzag", collate=list)
