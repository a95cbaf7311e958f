"""Does packing isolate?  On a real transformers model, a sample in a packed row gets the logits and the loss it gets alone."""

from itertools import islice, pairwise

import numpy as np
import pytest

import penstock as ps

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCAB = 400
WORDS = ["fox", "dog", "runs", "over", "away", "lazy", "home", "and"]


@pytest.fixture(scope="module")
def store(tokenizer_path, tmp_path_factory):
    rng = np.random.default_rng(4)
    records = [
        {"text": " ".join(rng.choice(WORDS, rng.integers(2, 18)).tolist())} for _ in range(60)
    ]
    cache_dir = tmp_path_factory.mktemp("cache")
    return ps.prepare(
        records, tokenizer=tokenizer_path, template="text", cache_dir=cache_dir, num_proc=1
    )


def make_model(attention: str):
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        attn_implementation=attention,
    )
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return transformers.LlamaForCausalLM(config).double().eval()


@pytest.fixture(scope="module")
def model():
    return make_model("sdpa")


FORMS = {
    "rows with padding": {"packing": "next_fit"},
    "rows without padding": {"packing": "concat", "on_overlong": "split"},
    "padding that the rows do not need": {"packing": "best_fit", "pad_to_multiple_of": 48},
    "one flat row": {"packing": "best_fit", "padding_free": True},
    "aligned samples": {"packing": "best_fit", "align": 4},
}


def alone(model, ids):
    ids = torch.from_numpy(ids.astype(np.int64))[None]
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits[0]


def sum_of_losses(logits, ids) -> float:
    targets = torch.from_numpy(ids.astype(np.int64))[1:]
    return float(torch.nn.functional.cross_entropy(logits[:-1], targets, reduction="sum"))


def run(model, batch, *names, use_cache=False):
    with torch.no_grad():
        return model(
            **{name: batch[name] for name in ("input_ids", "labels", *names)}, use_cache=use_cache
        )


def places(batch):
    """(row, first place, ids of the span) of every span, found by where `seq_idx` changes."""
    flat = batch["seq_idx"].reshape(-1)
    borders = batch["cu_seqlens"].tolist()
    length = batch["input_ids"].shape[1]
    firsts = [start for start, stop in pairwise(borders) if stop > start and flat[start] >= 0]
    assert len(firsts) == len(batch.rows.spans)
    return [(first // length, first % length) for first in firsts]


CASES = [
    (form, mask)
    for form in FORMS
    for mask in ("positions", "4d")
    if (form, mask) != ("one flat row", "4d")
]


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize(("form", "mask"), CASES)
def test_packed_samples_are_computed_as_if_alone(store, model, form, batch_size, mask):
    options = {**FORMS[form], **({"attention_mask": "4d"} if mask == "4d" else {})}
    loader = ps.Loader(store, batch_size=batch_size, max_length=64, output="torch", **options)
    compare(
        store,
        model,
        loader,
        "position_ids",
        *(["attention_mask"] if mask == "4d" else []),
        tolerance=1e-9,
    )


def test_eager_attention_isolates_by_positions(store):
    loader = ps.Loader(store, batch_size=2, max_length=64, output="torch", packing="next_fit")
    compare(
        store, make_model("eager"), loader, "position_ids", tolerance=1e-5
    )  # its softmax is in float32


def compare(store, model, loader, *names, tolerance):
    packed = 0
    for batch in islice(loader, 2):
        together = run(model, batch, *names)
        total, trained = 0.0, 0
        for (_, sample, start, stop), (row, first) in zip(
            batch.rows.spans.tolist(), places(batch), strict=True
        ):
            ids = store[sample].input_ids[start:stop]
            expected = alone(model, ids)
            found = together.logits[row, first : first + len(ids)]
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
            total += sum_of_losses(expected, ids)
            trained += len(ids) - 1
        assert float(together.loss) == pytest.approx(
            total / trained, rel=1e-5
        )  # the model takes its loss in float32
        packed += len(batch.rows.spans) > batch.rows.num_rows
    assert packed  # several samples did share a row


def test_shifted_labels_give_the_same_loss(store, model):
    loaders = [
        ps.Loader(store, batch_size=2, max_length=64, output="torch", labels=labels)
        for labels in ("unshifted", "shifted")
    ]
    for unshifted, shifted in islice(zip(*loaders, strict=True), 3):
        inside = run(model, unshifted, "position_ids")
        loss = torch.nn.functional.cross_entropy(
            inside.logits.reshape(-1, VOCAB), shifted["labels"].reshape(-1)
        )
        assert float(inside.loss) == pytest.approx(float(loss), rel=1e-6)


def test_without_positions_samples_do_see_each_other(store, model):
    """The comparison above can fail: a row handed over as one text is computed otherwise."""
    batch = next(iter(ps.Loader(store, batch_size=1, max_length=64, output="torch")))
    assert len(batch.rows.spans) > 1
    as_one_text, apart = run(model, batch).logits, run(model, batch, "position_ids").logits
    (_, first), (_, second) = places(batch)[:2]
    assert torch.allclose(as_one_text[0, first : second - 1], apart[0, first : second - 1])
    assert not torch.allclose(as_one_text[0, second:], apart[0, second:], atol=1e-3)


def test_a_model_that_keeps_a_cache_needs_the_mask(store, model):
    """With use_cache=True, as models default to outside of trainers, transformers ignores where positions restart."""
    batch = next(
        iter(ps.Loader(store, batch_size=1, max_length=64, output="torch", attention_mask="4d"))
    )
    apart = run(model, batch, "position_ids").logits
    masked = run(model, batch, "position_ids", "attention_mask", use_cache=True).logits
    torch.testing.assert_close(masked, apart, rtol=1e-9, atol=1e-9)
    mixed = run(model, batch, "position_ids", use_cache=True).logits
    assert not torch.allclose(mixed, apart, atol=1e-3)
