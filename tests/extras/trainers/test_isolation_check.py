"""The isolation check refuses models that let packed samples see each other, passes those that do not, and disturbs nothing."""

import re
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.errors import NotIsolated, PlanError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from penstock.extras.media.rotary import FOUR_POSITIONS  # noqa: E402
from penstock.extras.trainers.isolation import check_at_first_step, check_isolation, find_row  # noqa: E402
from penstock.extras.trainers.model_inputs import ModelInputs  # noqa: E402
from penstock.types import Column, Samples, Values  # noqa: E402
from tests.docs.pages import blocks  # noqa: E402

from .models import bloom, gpt2, gpt_oss, llama, mistral, mixtral, opt, qwen2, qwen2_5_vl  # noqa: E402

WORDS = ["fox", "dog", "runs", "over", "away", "lazy", "home", "and"]


@pytest.fixture(scope="module")
def store(tokenizer_path, tmp_path_factory):
    rng = np.random.default_rng(4)
    records = [
        {"text": " ".join(rng.choice(WORDS, rng.integers(2, 90)).tolist())} for _ in range(60)
    ]
    cache_dir = tmp_path_factory.mktemp("cache")
    return ps.prepare(
        records, tokenizer=tokenizer_path, template="text", cache_dir=cache_dir, num_proc=1
    )


def loader(store, **options):
    return ps.Loader(store, **{"batch_size": 2, "max_length": 128, "output": "torch", **options})


PASS = {
    "sdpa": (llama, {}),
    "eager": (lambda: llama("eager"), {}),
    "qwen2 sdpa": (qwen2, {}),
    "qwen2 eager": (lambda: qwen2("eager"), {}),
    "4d mask with sdpa": (llama, {"attention_mask": "4d"}),
    "4d mask with eager": (lambda: llama("eager"), {"attention_mask": "4d"}),
    "4d mask with eager, half precision": (
        lambda: llama("eager").half(),
        {"attention_mask": "4d"},
    ),
    "4d mask with eager, one sample a row": (
        lambda: llama("eager"),
        {"attention_mask": "4d", "packing": "none"},
    ),
    "4d mask with a sliding window": (lambda: mistral(4), {"attention_mask": "4d"}),
    "4d masks with eager, by kind of layer": (gpt_oss, {"attention_mask": "4d"}),
    "positions that the model learns": (gpt2, {}),
    "experts": (mixtral, {}),
    "half precision": (lambda: llama().half(), {}),
    "double precision": (lambda: llama().double(), {}),
    "multimodal positions": (qwen2_5_vl, {}),
    "one flat row": (llama, {"packing": "none", "padding_free": True}),
    "padding on the left": (llama, {"pad_side": "left"}),
    "aligned samples": (llama, {"align": 8, "pad_to_multiple_of": 16}),
    "pieces of a stream": (llama, {"packing": "concat", "on_overlong": "split"}),
}


@pytest.mark.parametrize("case", PASS)
def test_models_that_keep_samples_apart_pass(store, case, caplog):
    make, options = PASS[case]
    check_isolation(make(), loader(store, **options))
    assert caplog.text == ""  # it did run


REFUSED = {
    "positions that the model does not read": (
        bloom,
        {},
        "names no position_ids: set packing='none' in the Loader",
    ),
    "flat rows of such a model": (
        bloom,
        {"padding_free": True},
        "set packing='none' in the Loader and leave out padding_free",
    ),
    "a cache": (llama, {"use_cache": None}, "With a cache, .* leave use_cache= out of the Loader"),
    "a cache in the text model alone": (
        qwen2_5_vl,
        {"use_cache": None},
        "leave use_cache= out of the Loader",
    ),
    "a cache, half precision": (
        lambda: llama().half(),
        {"use_cache": None},
        "leave use_cache= out",
    ),
    "experts and a cache": (mixtral, {"use_cache": None}, "leave use_cache= out"),
    "sdpa that does not look at positions": (
        opt,
        {},
        "attn_implementation='flash_attention_2', or set attention_mask='4d' in the Loader, which keeps them apart, or set packing='none'",
    ),
    "eager that does not look at positions": (
        gpt_oss,
        {},
        "With eager this model ignores where positions restart: .*flash.*, or set attention_mask='4d' in the Loader",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_models_that_mix_samples_up_are_refused_with_what_to_change(store, case):
    make, options, advice = REFUSED[case]
    model = make()
    with pytest.raises(PlanError, match=advice) as caught:
        check_isolation(model, loader(store, **options))
    found = str(caught.value)
    assert type(model).__name__ in found and "isolation_check=False turns this check off" in found
    assert re.search(r"sample [12] of a row \(list:\d+\) has logits that differ by up to \d", found)
    assert f"attn_implementation='{model.config._attn_implementation}'" in found


def test_advice_names_only_attention_that_the_model_supports(store):
    """T10: gpt_oss has no sdpa, and the advice named it."""
    model = gpt_oss()
    with pytest.raises(NotIsolated) as caught:
        check_isolation(model, loader(store))
    assert "'sdpa'" not in str(caught.value)
    for flash in model._compatible_flash_implementations:
        assert repr(flash) in str(caught.value)


def test_masks_of_numbers_give_a_packed_sample_the_logits_that_it_has_alone(store):
    """T10: also beyond the sliding window, which the tokens of the isolation check may not reach."""
    model = gpt_oss(sliding_window=4).eval()
    batch = next(iter(loader(store, attention_mask="4d", batch_size=1)))
    packed = model(**{**ModelInputs(model)(batch), "labels": None}).logits[0]
    begin = 0
    for sample in range(int(batch["seq_idx"].max()) + 1):
        ids = batch["input_ids"][batch["seq_idx"] == sample][None]
        alone = model(input_ids=ids, use_cache=False).logits[0]
        end = begin + ids.shape[1]
        assert torch.allclose(packed[begin:end], alone, atol=1e-5)
        begin = end
    assert sample > 0 and end > 8  # several samples, longer than the window


def test_a_loop_that_passes_the_plain_mask_to_eager_attention_is_refused(store):
    batches = loader(store, attention_mask="4d")
    batch = next(iter(batches))
    with pytest.raises(NotIsolated, match=r"pass \*\*ModelInputs\(model\)\(batch\)"):
        check_isolation(llama("eager"), batches, inputs=batch)
    assert check_isolation(llama("eager"), batches, inputs=ModelInputs(llama("eager"))(batch))


def test_the_check_says_whether_it_compared_a_row(store, caplog):
    assert check_isolation(llama(), loader(store)) is True
    assert check_isolation(bloom(), loader(store, packing="none")) is False


class Scored:
    """A record's numbers are its ids, and their sum is a column."""

    vocab_size = 300

    def identity(self):
        return {"template": "scored"}

    def encode(self, records):
        ids = np.array([record["ids"] for record in records], np.uint32)
        return Samples(
            input_ids=ids.ravel(),
            loss_mask=np.ones(ids.size, np.bool_),
            offsets=np.arange(len(ids) + 1) * ids.shape[1],
            columns={"score": Values(ids.sum(axis=1).astype(np.float32))},
        )

    def decode(self, input_ids):
        return " ".join(map(str, input_ids))

    columns = (Column(name="score", dtype="float32", per="sample"),)


def test_a_function_of_the_users_own_gets_the_columns_of_the_samples_that_are_compared(tmp_path):
    scores = []

    def collate(arrays, rows):
        scores.append((len(arrays.pop("score")), len(rows.spans)))
        return arrays

    records = [{"ids": [1 + row, 2, 3, 4]} for row in range(40)]
    store = ps.prepare(records, template=Scored(), cache_dir=tmp_path, num_proc=1)
    assert check_isolation(llama(), loader(store, collate=collate)) is True
    assert scores and all(count == spans for count, spans in scores)


def test_a_leak_below_the_rounding_of_sixteen_bits_is_found(store):
    """Under bf16 a sample may differ by percents from itself alone, but not with what stands before it in the row."""
    with pytest.raises(PlanError, match="from those behind another first sample"):
        check_isolation(bloom(), loader(store), precision="bf16")


def test_rounding_is_measured_before_it_is_called_a_leak(store):
    """A model whose logits depend on the batch's shape a little, as they do under low precision, passes."""

    class Noisy(transformers.LlamaForCausalLM):
        def forward(self, input_ids=None, **options):
            found = super().forward(input_ids=input_ids, **options)
            found.logits = found.logits * (1 + 1e-3 * input_ids.numel() / 64)
            return found

    check_isolation(Noisy(llama().config), loader(store))


def test_rows_without_neighbours_need_no_check(store):
    for options in ({"packing": "none"}, {"packing": "group_2"}, {"max_per_row": 1}):
        assert find_row(loader(store, **options)) is None
        check_isolation(bloom(), loader(store, **options))
    records = ps.open([{"a": 1}])
    assert find_row(ps.Loader(records, batch_size=1)) is None


def test_the_check_disturbs_nothing(store):
    model, batches = llama(dropout=0.5), loader(store)
    model.train()
    model.model.layers[0].eval()  # a part that the user keeps frozen
    modes = [module.training for module in model.modules()]
    before = (
        batches.state_dict(),
        batches.metrics.as_dict(),
        batches.counters,
        torch.get_rng_state(),
    )
    check_isolation(model, batches)
    with pytest.raises(PlanError):
        check_isolation(
            model, batches, inputs={"input_ids": None}
        )  # no positions: also when it refuses
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    after = batches.state_dict(), batches.metrics.as_dict(), batches.counters, torch.get_rng_state()
    assert before[:3] == after[:3] and torch.equal(before[3], after[3])
    first = [batch["input_ids"].tolist() for batch in islice(batches, 2)]
    assert first == [batch["input_ids"].tolist() for batch in islice(loader(store), 2)]


def test_a_row_is_found_where_the_run_is_and_at_its_end(store):
    batches = loader(store, batch_size=1)
    for _ in batches:
        pass
    assert len(find_row(batches)) >= 2


def test_a_model_that_cannot_be_compared_is_said_so(store, caplog):
    class Bare(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, input_ids, labels=None):
            return {"loss": self.weight.sum()}

    check_isolation(Bare(), loader(store))
    assert (
        "could not run: the model returns no logits for each token; isolation_check=False"
        in caplog.text
    )

    class Demanding(Bare):
        def forward(self, input_ids, pixels):
            raise AssertionError("not reached")

    check_isolation(Demanding(), loader(store))
    assert "could not run: TypeError:" in caplog.text and "'pixels'" in caplog.text


def test_logits_that_are_not_numbers_do_not_pass(store, caplog):
    class Broken(transformers.LlamaForCausalLM):
        def forward(self, input_ids=None, position_ids=None, **options):
            found = super().forward(input_ids=input_ids, position_ids=position_ids, **options)
            found.logits = found.logits * (
                float("nan") if self.everywhere or position_ids is not None else 1
            )
            return found

    model = Broken(llama().config)
    model.everywhere = False
    with pytest.raises(PlanError, match="differ by up to nan"):
        check_isolation(model, loader(store))
    model.everywhere = True
    check_isolation(model, loader(store))
    assert "the model's logits are not finite" in caplog.text


def test_a_loop_that_passes_plain_positions_to_a_vision_language_model_is_refused(store):
    batches, model = loader(store), qwen2_5_vl().train()
    batch = next(iter(batches))
    check_at_first_step(model, batches)
    with pytest.raises(
        PlanError, match=r"shape \[4, rows, length\]: pass \*\*ModelInputs\(model\)\(batch\)"
    ):
        model(**batch)
    model(**ModelInputs(model)(batch))


def test_a_collate_of_the_users_is_part_of_the_check(store, caplog):
    def without_cache(arrays, rows):
        return {name: value for name, value in arrays.items() if name != "use_cache"}

    with pytest.raises(PlanError, match=r"With a cache, .*: pass use_cache=False to the model"):
        check_isolation(llama(), loader(store, collate=without_cache))
    check_isolation(
        llama(), loader(store, collate=lambda arrays, rows: {"ids": arrays["input_ids"]})
    )
    assert "collate= of the Loader changes input_ids" in caplog.text


LOOPS = {
    "all of it": (("input_ids", "labels", "position_ids", "use_cache"), {}, None),
    "no use_cache": (
        ("input_ids", "labels", "position_ids"),
        {},
        "pass use_cache=False to the model",
    ),
    "no positions": (("input_ids", "labels", "use_cache"), {}, "Pass the batch's position_ids"),
    "a mask of ones": (
        ("input_ids", "labels", "position_ids", "use_cache"),
        {"mask": True},
        "no attention mask",
    ),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_of_the_users_own_is_checked_with_what_it_passes(store, loop):
    names, extra, advice = LOOPS[loop]
    batches = loader(store)
    inside = torch.nn.Sequential(llama())  # as a LightningModule holds it
    inside.train()
    check_at_first_step(inside, batches)
    batch = next(iter(batches))
    mask = {"attention_mask": torch.ones_like(batch["input_ids"])} if extra else {}

    def step():
        return inside[0](**{name: batch[name] for name in names}, **mask).loss

    inside.eval()
    step()  # an evaluation is not a training step
    inside.train()
    if advice is None:
        checked = step()
        assert torch.equal(checked, step())
    else:
        with pytest.raises(PlanError, match=advice):
            step()


def test_families_with_four_positions_are_those_of_transformers():
    """Their text model reads where samples begin from position_ids[0], where that has four rows."""
    models = Path(transformers.__file__).parent / "models"
    reads = re.compile(r"shape\[0\] == 4:\n\s+text_position_ids = position_ids\[0\]")
    families = {
        file.parent.name
        for file in models.glob("*/modeling_*.py")
        if reads.search(file.read_text())
    }
    assert families == {name.removesuffix("_thinker") for name in FOUR_POSITIONS}
    known = {name for folder in families for name in _model_types(models / folder)}
    assert known >= FOUR_POSITIONS


def _model_types(folder: Path) -> list[str]:
    return [
        name
        for file in folder.glob("configuration_*.py")
        for name in re.findall(r'model_type = "(\w+)"', file.read_text())
    ]


def test_inputs_of_a_batch_count_what_it_holds(store):
    batch = next(iter(loader(store)))
    inputs = ModelInputs(llama())(batch)
    assert inputs.tokens == int((batch["seq_idx"] >= 0).sum()) and inputs.samples == len(
        batch.rows.spans
    )
    assert ModelInputs(qwen2_5_vl())(batch)["position_ids"].shape == (
        4,
        *batch["position_ids"].shape,
    )


def test_plain_records_are_refused_by_name():
    batch = next(iter(ps.Loader(ps.open([{"question": "a"}]), batch_size=1)))
    with pytest.raises(
        PlanError,
        match="the batch has 'records', and the model needs input_ids: this Loader serves plain records",
    ):
        ModelInputs(llama())(batch)


def test_the_loop_of_the_guide_runs(store):
    """docs/guides/trainers.md shows it; the other blocks of that page need whole trainings."""
    page = Path(__file__).parents[3] / "docs" / "guides" / "trainers.md"
    (example,) = (block.text for block in blocks(page) if "check_isolation(" in block.text)
    names = {"model": llama(), "loader": loader(store)}
    exec(example, names)
    assert names["loss"] > 0
    with pytest.raises(SystemExit, match="packed samples would see each other: BloomForCausalLM"):
        exec(example, {"model": bloom(), "loader": loader(store)})
