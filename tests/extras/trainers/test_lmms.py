"""RecipeDataset as LMMS-Engine 0.1.4 uses a dataset: build(), get_collator(), and the StatefulDataLoader of its FSDP2 trainer."""

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import PlanError
from penstock.trainers.lmms import RecipeDataset, register, sample_rows
from tests.extras.media import vlm

torch = pytest.importorskip("torch")
torchdata = pytest.importorskip("torchdata.stateful_dataloader")
pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it

RECIPE = """
data: data.jsonl
tokenizer: model
processor: model
max_length: 256
batch_size: 2
packing: first_fit
epochs: 3
cache_dir: cache
num_proc: 1
"""


class DatasetConfig:
    """The fields of LMMS-Engine's DatasetConfig that a dataset reads."""

    dataset_type = "penstock"
    dataset_format = "yaml"

    def __init__(self, dataset_path: Any) -> None:
        self.dataset_path = dataset_path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lmms")
    vlm.make_data(folder, "qwen2_5_vl", count=30)
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


def built(folder: Path) -> RecipeDataset:
    data_set = RecipeDataset(DatasetConfig(str(folder / "recipe.yaml")))
    data_set.build()
    return data_set


def data_loader(data_set: RecipeDataset, num_workers: int = 0) -> Any:
    """As FSDP2SFTTrainer.prepare_dataloader of LMMS-Engine makes it for an IterableDataset."""
    return torchdata.StatefulDataLoader(
        data_set,
        batch_size=1,
        collate_fn=data_set.get_collator(),
        num_workers=num_workers,
        pin_memory=False,
        persistent_workers=False,
        sampler=None,
        drop_last=True,
        prefetch_factor=None if not num_workers else 2,
    )


def plain(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in batch.items()}


def test_each_sample_is_a_row_with_its_own_media(folder: Path) -> None:
    data_set = built(folder)
    loader = ps.load(folder / "recipe.yaml", rank=0, world_size=1)
    store = loader.stores[0]
    for packed, batch in zip(loader, data_loader(data_set), strict=False):
        spans = packed.rows.spans.tolist()
        assert batch["input_ids"].shape[0] == len(spans) > packed.rows.num_rows
        for row, (_, sample, _, _) in enumerate(spans):
            size = int(batch["attention_mask"][row].sum())
            assert batch["input_ids"][row, :size].tolist() == store[sample].input_ids.tolist()
            trained = store[sample].loss_mask
            expected = np.where(trained, store[sample].input_ids.astype(int), -100)
            assert batch["labels"][row, :size].tolist() == expected.tolist()
            assert (batch["labels"][row, size:] == -100).all()
        if "pixel_values" in packed:
            assert torch.equal(batch["pixel_values"], packed["pixel_values"])
            assert torch.equal(batch["image_grid_thw"], packed["image_grid_thw"])
        assert "position_ids" not in batch and "cu_seqlens" not in batch


def test_a_model_gives_the_rows_the_loss_that_samples_have_alone(folder: Path) -> None:
    """The rows are what the model's own code expects: padded on the right, with its own positions."""
    data_set = built(folder)
    batch = next(iter(data_loader(data_set)))
    model = vlm.tiny_model("qwen2_5_vl").eval()
    with torch.no_grad():
        together = model(**batch).logits
    text_only = [
        row
        for row, ids in enumerate(batch["input_ids"].tolist())
        if not set(ids) & media_ids(model)
    ]
    assert text_only
    for row in text_only:
        size = int(batch["attention_mask"][row].sum())
        with torch.no_grad():
            alone = model(input_ids=batch["input_ids"][row : row + 1, :size]).logits
        assert torch.allclose(together[row, :size], alone[0], atol=1e-4)


def media_ids(model: Any) -> set[int]:
    return {model.config.image_token_id, model.config.video_token_id}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_state_of_its_data_loader_resumes(folder: Path, num_workers: int) -> None:
    whole = [plain(batch) for batch in data_loader(built(folder), num_workers)]
    assert len(whole) > 4
    batches = data_loader(built(folder), num_workers)
    first = []
    for batch in batches:
        first.append(plain(batch))
        if len(first) == 3:
            state = batches.state_dict()
            break
    again = data_loader(built(folder), num_workers)
    again.load_state_dict(state)
    assert first == whole[:3] and [plain(batch) for batch in again] == whole[3:]


def test_what_it_saves_beside_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    data_set = built(folder)
    tokenizer = data_set.processor._folder
    assert Path(tokenizer) == folder / "model"


def test_mistakes_are_refused(folder: Path) -> None:
    with pytest.raises(PlanError, match="dataset_path is None, expected the path of a recipe"):
        RecipeDataset(DatasetConfig(None)).build()
    data_set = built(folder)
    item = next(iter(data_set))
    with pytest.raises(PlanError, match="set per_device_train_batch_size to 1"):
        data_set.get_collator()([item, item])
    shifted = RecipeDataset(loader=ps.load(folder / "recipe.yaml", labels="shifted"))
    with pytest.raises(PlanError, match="leave out labels, padding_free and pad_side"):
        shifted.build()
    records = RecipeDataset(loader=ps.Loader(ps.open([{"a": 1}]), batch_size=1))
    with pytest.raises(PlanError, match="plain records"):
        records.build()


def test_images_stacked_by_row_are_not_cut_out_of_packed_rows(folder: Path) -> None:
    batch = next(iter(ps.load(folder / "recipe.yaml", rank=0, world_size=1)))
    batch["pixel_attention_mask"] = torch.ones(2, 1, 4, 4)
    with pytest.raises(PlanError, match="set packing: none for this model"):
        sample_rows(batch)


def test_its_registry_finds_the_data_set() -> None:
    mapping = pytest.importorskip("lmms_engine.mapping_func", reason="LMMS-Engine is not installed")
    register()
    register()
    assert mapping.DATASET_MAPPING["penstock"] is RecipeDataset
    assert isinstance(sys.modules["lmms_engine"], types.ModuleType)
