"""Vision-language models on packed rows with images: a sample has the logits that it has alone, through every trainer."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import penstock as ps  # noqa: E402
from penstock.errors import PlanError  # noqa: E402
from penstock.extras.trainers.isolation import check_isolation  # noqa: E402
from penstock.extras.trainers.model_inputs import ModelInputs  # noqa: E402
from tests.extras.media import vlm  # noqa: E402

from .models import llama  # noqa: E402
from .runs import DIE_AT, open_loader  # noqa: E402
from .test_trainers import drive, logged  # noqa: E402

FORMS: list[dict[str, Any]] = [
    {},
    {"padding_free": True},
    {"align": 8},
    {"packing": "first_fit", "pad_to_multiple_of": 64},
]


@pytest.fixture(scope="module", params=vlm.FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / request.param
    folder.mkdir()
    vlm.make_data(folder, request.param, count=36)
    return folder


@pytest.fixture(scope="module")
def store(folder: Path) -> Any:
    return vlm.prepare(folder)


def alone(folder: Path, model: Any) -> list[tuple[list[int], Any]]:
    """Ids and logits of every record, made by transformers' own processor and the model's own positions."""
    from transformers.image_utils import load_image

    processor, found = vlm.whole_processor(folder / "model", vlm.family_of(folder)), []
    for line in (folder / "data.jsonl").read_text().splitlines():
        messages = json.loads(line)["messages"]
        images = [
            load_image(str(folder / p["image"]))
            for p in messages[0]["content"]
            if p["type"] == "image"
        ]
        text = processor.apply_chat_template(messages, tokenize=False)
        inputs = processor(text=[text], images=images or None, return_tensors="pt")
        with torch.no_grad():
            found.append(
                (inputs["input_ids"][0].tolist(), model(**inputs, use_cache=False).logits[0])
            )
    return found


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_packed_samples_have_the_logits_that_they_have_alone(
    folder: Path, store: Any, form: dict[str, Any]
) -> None:
    model = vlm.tiny_model(vlm.family_of(folder)).eval()
    expected, inputs, seen, packed = alone(folder, model), ModelInputs(model), 0, 0
    for batch in ps.Loader(store, **{"batch_size": 2, "max_length": 128, "seed": 1, **form}):
        with torch.no_grad():
            logits = model(**inputs(batch)).logits.flatten(0, 1)
        flat, numbers = batch["input_ids"].reshape(-1), batch["seq_idx"].reshape(-1)
        begins = (
            ((batch["position_ids"][0].reshape(-1) == 0) & (numbers >= 0)).nonzero()[:, 0].tolist()
        )
        packed += len(begins) > len(batch["input_ids"])
        for begin, span in zip(begins, batch.rows.spans, strict=True):
            ids, own = expected[int(span["sample"])]
            assert flat[begin : begin + len(ids)].tolist() == ids
            torch.testing.assert_close(logits[begin : begin + len(ids)], own, rtol=0, atol=2e-6)
            seen += 1
    assert seen == 36 and packed


def test_the_images_matter(folder: Path, store: Any) -> None:
    """Were they left out or exchanged, the test above would notice."""
    model = vlm.tiny_model(vlm.family_of(folder)).eval()
    batch = next(
        batch for batch in ps.Loader(store, batch_size=2, max_length=128) if "pixel_values" in batch
    )
    inputs = ModelInputs(model)(batch)
    with torch.no_grad():
        right = model(**inputs).logits
        wrong = model(**{**inputs, "pixel_values": inputs["pixel_values"].flip(0)}).logits
    assert (right - wrong).abs().max() > 1e-3


def loss_by_hand(folder: Path, loader: Any, model: Any) -> list[float]:
    """The mean over the targets of each batch, from logits of the samples alone."""
    own, losses = alone(folder, model), []
    for batch in loader:
        total, targets = 0.0, 0
        for _, sample, _, _ in batch.rows.spans.tolist():
            ids, logits = own[sample]
            mask = torch.from_numpy(loader.stores[0][sample].loss_mask.copy())[1:]
            each = torch.nn.functional.cross_entropy(
                logits[:-1], torch.tensor(ids[1:]), reduction="none"
            )
            total, targets = total + float(each[mask].sum()), targets + int(mask.sum())
        losses.append(total / targets)
    return losses


@pytest.mark.filterwarnings(
    "ignore:`gradient_checkpointing` is deprecated:FutureWarning"
)  # trl's own default
@pytest.mark.parametrize("trainer", ["hf", "trl"])
def test_a_trainer_has_the_loss_of_the_samples_alone(
    folder: Path, store: Any, trainer: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a learning rate of 0, so that every step sees the first model.  The isolation check runs, too."""
    model = vlm.tiny_model(vlm.family_of(folder))
    given = {"batch_size": 2, "max_length": 128, "seed": 1, "epochs": 1}
    expected = loss_by_hand(folder, ps.Loader(store, **given), model)
    options = {
        "output_dir": str(tmp_path),
        "learning_rate": 0.0,
        "logging_steps": 1,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
    }
    loader = ps.Loader(store, **given)
    if trainer == "hf":
        from transformers import TrainingArguments

        from penstock.extras.trainers.hf_trainer import LoaderTrainer

        made: Any = LoaderTrainer(model=model, args=TrainingArguments(**options), loader=loader)
    else:
        pytest.importorskip("trl")
        from transformers import PreTrainedTokenizerFast
        from trl import SFTConfig

        from penstock.extras.trainers.trl import LoaderSFTTrainer

        path = str(folder / "model" / "tokenizer.json")
        words = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
        made = LoaderSFTTrainer(
            model=model,
            args=SFTConfig(**options, bf16=False),
            processing_class=PreTrainedTokenizerFast(tokenizer_file=path, **words),
            loader=loader,
        )
    made.train()
    found = [line["loss"] for line in made.state.log_history if "loss" in line]
    assert found == pytest.approx(expected, abs=2e-4)  # the Trainer rounds to four digits
    assert "isolation check could not run" not in caplog.text


@pytest.mark.soak
@pytest.mark.parametrize("trainer", ["hf", "trl"])
@pytest.mark.parametrize("family", vlm.FAMILIES)
def test_killed_and_resumed_it_trains_the_same_batches(
    family: str, trainer: str, tmp_path: Path
) -> None:
    vlm.make_data(tmp_path, family, count=48)
    open_loader(tmp_path, output="numpy")
    drive(trainer, tmp_path)
    lines = {part: logged(tmp_path / f"{part}.jsonl") for part in ("whole", "cut", "rest")}
    assert [line["ids"] for line in lines["whole"]] == [
        batch["input_ids"].tolist() for batch in open_loader(tmp_path, output="numpy")
    ]
    assert len(lines["cut"]) == DIE_AT and lines["cut"] == lines["whole"][:DIE_AT]
    kept = len(lines["whole"]) - len(lines["rest"])
    assert 0 < kept < DIE_AT
    assert lines["rest"] == lines["whole"][kept:]  # the losses too, to the last bit


@pytest.mark.soak
def test_two_ranks_are_killed_and_one_goes_on(tmp_path: Path) -> None:
    """A step of a rank may have no image: its vision tower gets no gradient, which the Trainer allows for such models."""
    vlm.make_data(tmp_path, "qwen3_vl", count=64)
    drive("ranks", tmp_path)
    batches = list(open_loader(tmp_path, output="numpy", batch_size=4))
    whole = [batch["input_ids"].tolist() for batch in batches]
    cut = [[line["ids"] for line in logged(tmp_path / f"cut-{rank}.jsonl")] for rank in range(2)]
    for mine, theirs, expected in zip(*cut, whole, strict=False):
        assert len(mine) == len(theirs) == 2 and sorted(mine + theirs) == sorted(expected)
    rest = [line["ids"] for line in logged(tmp_path / "rest.jsonl")]
    assert 0 < len(whole) - len(rest) < DIE_AT and rest == whole[len(whole) - len(rest) :]


# The isolation check


def test_the_isolation_check_compares_images_and_passes(
    folder: Path, store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    check_isolation(
        vlm.tiny_model(vlm.family_of(folder)), ps.Loader(store, batch_size=2, max_length=128)
    )
    assert not caplog.records


def test_the_isolation_check_refuses_a_cache(folder: Path, store: Any) -> None:
    loader = ps.Loader(store, batch_size=2, max_length=128, use_cache=None)
    with pytest.raises(PlanError, match="does not keep the samples of a row apart"):
        check_isolation(vlm.tiny_model(vlm.family_of(folder)), loader)


# Models that do not fit


def test_a_text_model_is_refused(store: Any) -> None:
    batch = next(
        batch for batch in ps.Loader(store, batch_size=2, max_length=128) if "pixel_values" in batch
    )
    with pytest.raises(PlanError, match="does not take them: it would train on placeholders alone"):
        ModelInputs(llama())(batch)


def test_a_model_with_other_placeholders_is_refused(
    folder: Path, store: Any, tmp_path: Path
) -> None:
    from transformers import TrainingArguments

    from penstock.extras.trainers.hf_trainer import LoaderTrainer

    model = vlm.tiny_model(vlm.family_of(folder))
    model.config.image_token_id = 3
    args = TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True
    )
    trainer = LoaderTrainer(
        model=model, args=args, loader=ps.Loader(store, batch_size=2, max_length=128, epochs=1)
    )
    with pytest.raises(
        PlanError,
        match="has image_token_id=3 in its config, and the store's image placeholders are",
    ):
        trainer.train()
