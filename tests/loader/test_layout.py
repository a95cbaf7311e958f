"""The same rows in every form that a model may want."""

from dataclasses import fields
from inspect import signature

import numpy as np
import pytest

import penstock as ps
from penstock.engines import LocalEngine
from penstock.errors import PlanError
from penstock.loader.layout import BatchForm, LoaderSettings
from penstock.plan.settings import PlanSettings
from penstock.settings import declared
from penstock.sources import open_source
from penstock.store import build
from penstock.templates import open_template, open_tokenizer

from .arrays import Loader


@pytest.fixture
def store(tokenizer_path, cache):
    """Prompts and completions, so that part of every sample is not trained."""
    rng = np.random.default_rng(3)
    words = ["fox", "dog", "runs", "over", "away"]

    def text(least):
        return " ".join(rng.choice(words, rng.integers(least, 12)).tolist())

    records = [{"prompt": text(1), "completion": " " + text(1)} for _ in range(200)]
    source = open_source(records, cache=cache)
    template = open_template("prompt_completion", open_tokenizer(tokenizer_path), {})
    return build(source, template, engine=LocalEngine(1), cache=cache, shard_rows=50)


def expected(store, spans, row):
    """(ids, labels) of a row's samples, by the store's own word."""
    out = []
    for _, sample, start, stop in spans[row].tolist():
        ids = store[sample].input_ids[start:stop].astype(np.int64)
        mask = store[sample].loss_mask[start:stop].copy()
        mask[0] = False
        out.append((ids, np.where(mask, ids, -100)))
    return out


@pytest.mark.parametrize("align", [1, 4])
@pytest.mark.parametrize("window", ["auto", 1, "all"])
def test_packed_rows(store, align, window):
    for batch in Loader(
        store, batch_size=2, max_length=48, align=align, shuffle_window=window, pad_token_id=7
    ):
        assert batch["input_ids"].shape == (2, 48)
        borders = set(batch["cu_seqlens"].tolist())
        for r in range(2):
            place = 0
            for number, (ids, labels) in enumerate(expected(store, batch.rows, r)):
                end = place + len(ids)
                assert np.array_equal(batch["input_ids"][r, place:end], ids)
                assert np.array_equal(batch["labels"][r, place:end], labels)
                assert np.array_equal(batch["position_ids"][r, place:end], np.arange(len(ids)))
                assert (
                    batch["seq_idx"][r, place:end] == number
                ).all() and r * 48 + place in borders
                place = place + -(-len(ids) // align) * align
            assert (batch["input_ids"][r, place:] == 7).all() and (
                batch["seq_idx"][r, place:] == -1
            ).all()
        assert "attention_mask" not in batch


@pytest.fixture
def wide_store(cache):
    """Ids of four bytes, all of them trained."""
    rng = np.random.default_rng(4)
    records = [
        {"input_ids": rng.integers(0, 150_000, rng.integers(2, 30)).tolist()} for _ in range(150)
    ]
    template = open_template("pretokenized", None, {"vocab_size": 150_000})
    source = open_source(records, cache=cache)
    return build(source, template, engine=LocalEngine(1), cache=cache, shard_rows=50)


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"padding_free": True, "pad_to_multiple_of": 8},
        {"align": 4},
        {"packing": "none", "pad_side": "right"},
    ],
    ids=str,
)
@pytest.mark.parametrize("mixed", [False, True])
def test_stores_of_narrow_and_wide_ids_of_all_and_part_trained(store, wide_store, form, mixed):
    stores = [store, wide_store] if mixed else [wide_store]
    assert {str(found.tokens(0).input_ids.dtype) for found in stores} == (
        {"uint16", "uint32"} if mixed else {"uint32"}
    )
    for batch in Loader(stores, batch_size=3, max_length=48, **form):
        spans = batch.rows.spans.tolist()
        ids = [
            stores[source][sample].input_ids[start:stop] for source, sample, start, stop in spans
        ]
        masks = [
            stores[source][sample].loss_mask[start:stop].copy()
            for source, sample, start, stop in spans
        ]
        for mask in masks:
            mask[0] = False
        real = batch["seq_idx"] >= 0
        if form.get("align"):  # what alignment adds belongs to its sample, and is no target
            inside = np.concatenate([np.arange(-(-len(one) // 4) * 4) < len(one) for one in ids])
            assert (batch["labels"][real][~inside] == -100).all()
        else:
            inside = np.full(int(real.sum()), True)
        assert np.array_equal(batch["input_ids"][real][inside], np.concatenate(ids))
        labels = np.where(np.concatenate(masks), np.concatenate(ids).astype(np.int64), -100)
        assert (
            np.array_equal(batch["labels"][real][inside], labels)
            and (batch["labels"][~real] == -100).all()
        )
        assert batch.trained == int(np.concatenate(masks).sum())


def test_a_flat_row_holds_the_same_tokens_without_padding(store):
    options = {"batch_size": 3, "max_length": 48}
    pairs = zip(Loader(store, **options), Loader(store, **options, padding_free=True), strict=True)
    for padded, flat in pairs:
        real = padded["seq_idx"] >= 0
        for name in ("input_ids", "labels", "position_ids"):
            assert np.array_equal(flat[name][0], padded[name][real])
        assert flat["cu_seqlens"][-1] == real.sum() and (flat["seq_idx"] >= 0).all()
        assert len(flat["cu_seqlens"]) == len(flat.rows.spans) + 1
    for flat in Loader(store, **options, padding_free=True, pad_to_multiple_of=64):
        assert flat["input_ids"].shape[1] % 64 == 0


def test_shifted_labels_are_what_a_model_that_shifts_would_compare_with(store):
    options = {"batch_size": 2, "max_length": 48}
    pairs = zip(Loader(store, **options), Loader(store, **options, labels="shifted"), strict=True)
    for plain, shifted in pairs:
        assert np.array_equal(shifted["labels"][:, :-1], plain["labels"][:, 1:])
        assert (shifted["labels"][:, -1] == -100).all()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("padding", ["longest", "max_length"])
def test_unpacked_rows_are_padded(store, side, padding):
    options = {
        "batch_size": 4,
        "max_length": 64,
        "packing": "none",
        "padding": padding,
        "pad_side": side,
        "pad_to_multiple_of": 8,
    }
    for batch in Loader(store, **options):
        lengths = (batch.rows.spans["stop"] - batch.rows.spans["start"]).tolist()
        width = batch["input_ids"].shape[1]
        assert width == (64 if padding == "max_length" else -(-max(lengths) // 8) * 8)
        assert batch["attention_mask"].sum(axis=1).tolist()[: len(lengths)] == lengths
        for r, length in enumerate(lengths):
            real = slice(width - length, width) if side == "left" else slice(0, length)
            ids, labels = expected(store, batch.rows, r)[0]
            assert np.array_equal(batch["input_ids"][r, real], ids) and np.array_equal(
                batch["labels"][r, real], labels
            )
            assert batch["attention_mask"][r, real].all()
            assert np.array_equal(batch["position_ids"][r, real], np.arange(length))


@pytest.mark.parametrize("pad_to_multiple_of", [1, 6])
@pytest.mark.parametrize("packing", ["none", "group_4"])
def test_unpacked_rows_have_their_alignment(store, packing, pad_to_multiple_of):
    for batch in Loader(
        store,
        batch_size=3,
        max_length=48,
        packing=packing,
        align=4,
        pad_to_multiple_of=pad_to_multiple_of,
        pad_token_id=7,
    ):
        found = [expected(store, batch.rows, r) for r in range(3)]
        room = max(-(-len(ids) // 4) * 4 for row in found for ids, _ in row)
        assert batch["input_ids"].shape == (3, -(-room // pad_to_multiple_of) * pad_to_multiple_of)
        for r, row in enumerate(found):
            for ids, labels in row:  # one; none where a last step is filled up
                assert np.array_equal(batch["input_ids"][r, : len(ids)], ids)
                assert np.array_equal(batch["labels"][r, : len(ids)], labels)
                assert (batch["input_ids"][r, len(ids) :] == 7).all() and (
                    batch["labels"][r, len(ids) :] == -100
                ).all()


def test_a_block_mask_lets_a_token_see_its_own_sample_only(store):
    batch = next(iter(Loader(store, batch_size=2, max_length=32, attention_mask="4d")))
    mask, documents = batch["attention_mask"], batch["seq_idx"]
    assert mask.shape == (2, 1, 32, 32)
    for r in range(2):
        for q in range(32):
            for k in range(32):
                assert mask[r, 0, q, k] == (k <= q and documents[r, q] == documents[r, k])


def test_tensors_hold_what_arrays_hold(store):
    torch = pytest.importorskip("torch", reason="tensors need torch")
    options = {"batch_size": 2, "max_length": 48}
    pairs = zip(Loader(store, **options), Loader(store, **options, output="torch"), strict=True)
    for arrays, tensors in pairs:
        for name, value in arrays.items():
            if isinstance(value, np.ndarray):
                assert isinstance(tensors[name], torch.Tensor) and np.array_equal(
                    tensors[name].numpy(), value
                )
    documents, index = next(iter(Loader(store, **options)))["seq_idx"][0], np.arange(48)
    block = next(iter(Loader(store, **options, attention_mask="4d")))["attention_mask"][0, 0]
    assert np.array_equal(block, (documents[:, None] == documents) & (index[:, None] >= index))


def test_forms_that_contradict_themselves_are_refused(store):
    for options, message in [
        ({"labels": "left"}, "labels is 'left', expected one of unshifted, shifted"),
        ({"pin_memory": True}, "pin_memory is for output='torch'"),
        ({"padding_free": "yes"}, "padding_free is 'yes'"),
        ({"padding_free": True, "attention_mask": "4d"}, "use cu_seqlens instead"),
        ({"padding_free": True, "pad_side": "left"}, "no padding to put on the left"),
        ({"pad_to_multiple_of": 0}, "pad_to_multiple_of is 0"),
        ({"pad_token_id": -1}, "pad_token_id is -1"),
    ]:
        with pytest.raises(PlanError, match=message):
            Loader(store, batch_size=2, max_length=48, **options)


def test_rows_of_several_samples_say_that_no_cache_may_be_used(store):
    pytest.importorskip("torch")

    def first(**options):
        return next(iter(Loader(store, batch_size=2, max_length=48, **options)))

    for several in ({}, {"packing": "none", "padding_free": True}, {"attention_mask": "4d"}):
        assert first(output="torch", **several)["use_cache"] is False
    for without in ({"use_cache": None}, {"packing": "none"}, {"output": "numpy"}):
        assert "use_cache" not in first(**{"output": "torch", **without})
    with pytest.raises(
        PlanError, match="use_cache is True, expected False or None: with a cache, packed samples"
    ):
        first(output="torch", use_cache=True)


@pytest.mark.parametrize("settings", [PlanSettings, LoaderSettings, BatchForm])
def test_every_setting_carries_its_documentation(settings):
    assert all(len(field.metadata["doc"]) > 5 for field in fields(settings))


def test_the_parameters_of_a_loader_are_the_documented_ones():
    parameters = signature(ps.Loader).parameters
    for owner in (LoaderSettings, PlanSettings, BatchForm):
        for name, setting in declared(owner).items():
            if name != "weights":  # given with the stores
                assert parameters[name].default == setting.default
