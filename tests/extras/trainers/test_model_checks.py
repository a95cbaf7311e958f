"""Before the first step, a model is compared with the stores (N8): token ids, positions, end and padding tokens."""

import json
import shutil

import pytest

import penstock as ps
from penstock.errors import PlanError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from penstock.extras.trainers.isolation import check_isolation  # noqa: E402
from penstock.extras.trainers.model_checks import check_model, check_only_model  # noqa: E402
from penstock.extras.trainers.model_inputs import ModelInputs  # noqa: E402

from .models import SMALL, gpt2, llama, opt  # noqa: E402

TEXT = "the quick brown fox jumps over the lazy dog and runs away home "


@pytest.fixture
def store(tokenizer_path, tmp_path):
    folder = tmp_path / "tokenizer"
    shutil.copytree(tokenizer_path, folder)
    named = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return ps.prepare(
        [{"text": TEXT * times} for times in (1, 2, 40)],
        tokenizer=folder,
        template="text",
        cache_dir=tmp_path / "cache",
        num_proc=1,
    )


def loader(store, **options):
    return ps.Loader(store, **{"batch_size": 2, "max_length": 128, "max_dropped": 1.0, **options})


def small(**changes):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SMALL, **changes}))


def largest_id(store):
    return max(int(sample.input_ids.max()) for sample in store)


def test_a_model_without_embeddings_for_all_tokens_is_refused_by_name(store):
    """N8: it ended in a bare IndexError."""
    rows = largest_id(store)  # one too few
    model = small(vocab_size=rows)
    expected = rf"store 'list' has token id \d+ \(list:1\), and LlamaForCausalLM has embeddings for the ids 0 to {rows - 1} only"
    with pytest.raises(PlanError, match=expected):
        check_model(model, loader(store))
    with pytest.raises(PlanError, match=expected):
        check_isolation(model, loader(store))
    with pytest.raises(PlanError, match=rf"the batch of step 0 has token id {rows}, and Llama"):
        ModelInputs(model)(next(iter(loader(store))))


def test_a_tokenizer_may_have_more_ids_than_the_model_if_the_data_has_none_of_them(
    tokenizer_path, tmp_path, caplog
):
    """As that of Gemma 3, which has a token for images, with a model for text."""
    store = ps.prepare(
        [{"text": "qzx"}] * 4,
        tokenizer=tokenizer_path,
        template="text",
        cache_dir=tmp_path / "cache",
        num_proc=1,
    )
    model = small(vocab_size=largest_id(store) + 1)
    assert store.vocab_size > model.config.vocab_size
    check_model(model, loader(store))
    ModelInputs(model)(next(iter(loader(store))))
    assert caplog.text == ""


def test_a_padding_id_that_the_model_does_not_have_is_refused(store):
    with pytest.raises(
        PlanError, match=r"pads with pad_token_id=400, and .* the ids 0 to 399 only"
    ):
        check_model(llama(), loader(store, pad_token_id=400))


@pytest.mark.parametrize("make", [gpt2, opt])
def test_learned_positions_that_do_not_suffice_are_refused(store, make):
    with pytest.raises(
        PlanError, match=r"max_position_embeddings=256, which it has learned.*pass max_length=256"
    ):
        check_model(make(), loader(store, max_length=4096))
    check_model(make(), loader(store, max_length=256))


def test_rotary_positions_beyond_those_of_the_model_are_warned_of(store, caplog):
    check_model(llama(), loader(store, max_length=4096, on_overlong="truncate"))
    assert "has max_position_embeddings=256: it was not made for later positions" in caplog.text


def test_a_long_row_of_short_samples_needs_no_long_positions(store, caplog):
    """Positions begin again at 0 in each sample."""
    check_model(gpt2(), loader(store, max_length=300))
    assert caplog.text == ""


def test_other_end_and_padding_tokens_are_warned_of(store, caplog):
    check_model(small(eos_token_id=7, pad_token_id=9), loader(store))
    assert (
        "ends generation at eos_token_id 7, and the tokenizer of store 'list' has eos_token '<|endoftext|>' with id 0"
        in caplog.text
    )
    assert "has pad_token_id=9 in its config" in caplog.text and "with id 0" in caplog.text


def test_one_of_several_end_tokens_suffices(store, caplog):
    model = small(eos_token_id=7)
    model.generation_config.eos_token_id = [7, 0]
    check_model(model, loader(store))
    assert caplog.text == ""


def test_one_of_several_models_in_a_loop_may_have_other_tokens(store, caplog):
    """A loop of the user's own may train a model next to another one that reads other text."""
    other = small(vocab_size=100)
    check_only_model([other, llama()], loader(store))
    with pytest.raises(PlanError):
        check_only_model([other], loader(store))
    ids = torch.zeros(1, 8, dtype=torch.int64)
    short = loader(store, max_length=4096)
    assert check_isolation(other, short, inputs={"input_ids": ids}) is False
    assert "the model has embeddings for 100 ids, and the Loader has others" in caplog.text


def test_plain_records_and_unknown_models_are_not_compared(store):
    check_model(llama(), ps.Loader(ps.open([{"a": 1}]), batch_size=1))
    check_model(torch.nn.Linear(2, 2), loader(store))
