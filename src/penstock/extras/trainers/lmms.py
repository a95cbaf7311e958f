"""A recipe as a dataset of LMMS-Engine: its runner, its trainers and their checkpoints stay as they are.

    from penstock.trainers.lmms import register
    register()                      # before lmms_engine reads its configuration

    dataset_config:
      dataset_type: penstock
      dataset_format: yaml
      dataset_path: recipe.yaml     # `penstock import` writes one from the rest of the configuration
      processor_config: {processor_name: model, processor_type: penstock}
    trainer_args:
      per_device_train_batch_size: 1
      max_steps: 5000

An item is a whole batch of the Loader, with each of its samples as a row of its own: LMMS-Engine's models keep samples apart by
`attention_mask`, and remove the padding themselves (use_rmpad).
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch.utils.data import IterableDataset

from penstock.errors import PlanError
from penstock.loader import Loader
from penstock.loader.batch import Batch
from penstock.loader.collate import IGNORE
from penstock.loader.dataset import Steps
from penstock.loader.map_dataset import require_tokens
from penstock.types import MEDIA

# Arrays of a packed row that say where samples begin, or that are made again for a row of each.
_OF_ROWS = (
    "input_ids",
    "labels",
    "position_ids",
    "seq_idx",
    "attention_mask",
    "cu_seqlens",
    "max_seqlen",
    "use_cache",
)
_BY_ROW = "pixel_attention_mask"  # of families whose images are stacked by row


class RecipeDataset(IterableDataset):  # type: ignore[misc]
    """What LMMS-Engine calls a dataset: made of its DatasetConfig, or of a Loader."""

    def __init__(self, config: Any = None, *, loader: Loader | None = None) -> None:
        self.config = config
        self.loader = loader
        self._steps: Steps | None = None

    def build(self) -> None:
        """Open the recipe in `dataset_path`, as the rank that LMMS-Engine's process groups say."""
        if self.loader is None:
            from penstock.recipe.run import load

            path = getattr(self.config, "dataset_path", None)
            if not isinstance(path, str):
                raise PlanError(
                    f"dataset_type penstock: dataset_path is {path!r}, expected the path of a recipe; penstock import writes one"
                )
            self.loader = load(path, **_rank())
        _check(self.loader)
        self._steps = self.loader.as_dataset()

    def get_collator(self) -> "OneBatch":
        """Return what a DataLoader makes of the item of a step."""
        return OneBatch()

    @property
    def processor(self) -> "Processing":
        """What LMMS-Engine saves next to a checkpoint, and decodes with."""
        assert self.loader is not None, "build() comes first"
        return Processing(str(_store_of(self.loader).template.tokenizer.path))

    def __iter__(self) -> Iterator[Any]:
        assert self._steps is not None, "build() comes first"
        return iter(self._steps)


class OneBatch:
    """A collate function for DataLoaders of `batch_size=1`, whose items are whole batches."""

    def __call__(self, items: Sequence[Any]) -> dict[str, Any]:
        """Return the arrays of the batch, one sample in each row."""
        if len(items) != 1:
            raise PlanError(
                f"the DataLoader joins {len(items)} batches: set per_device_train_batch_size to 1; the recipe's batch_size counts rows"
            )
        return sample_rows(items[0])


class Processing:
    """The tokenizer or processor in a folder, as LMMS-Engine keeps it."""

    def __init__(self, tokenizer_file: str) -> None:
        self._folder = tokenizer_file.rpartition("/")[0]

    @cached_property
    def processor(self) -> Any:
        from transformers import AutoProcessor

        return AutoProcessor.from_pretrained(self._folder)

    def save_pretrained(self, folder: str) -> None:
        """Save it next to a checkpoint."""
        self.processor.save_pretrained(folder)


def register(name: str = "penstock") -> None:
    """Let LMMS-Engine know `dataset_type: penstock`."""
    from lmms_engine.mapping_func import DATASET_MAPPING, register_dataset

    if DATASET_MAPPING.get(name) is not RecipeDataset:
        register_dataset(name)(RecipeDataset)


def sample_rows(batch: Batch) -> dict[str, Any]:
    """Return the arrays of a batch with a row for each sample: ids, labels at their own tokens, and a mask that is 0 at padding."""
    rows = batch.rows
    sizes = (rows.spans["stop"] - rows.spans["start"]).tolist()
    if _BY_ROW in batch and len(sizes) > rows.num_rows:
        raise PlanError(
            f"{_BY_ROW} holds the images of each packed row together; set packing: none for this model"
        )
    longest = max(sizes, default=1)
    shape = (max(len(sizes), 1), longest)
    ids = torch.as_tensor(batch["input_ids"])
    labels = torch.as_tensor(batch["labels"])
    made_ids = torch.full(shape, _padding_id(batch, ids), dtype=ids.dtype)
    made_labels = torch.full(shape, IGNORE, dtype=labels.dtype)
    mask = torch.zeros(shape, dtype=torch.long)
    number = 0
    for row, (first, last) in enumerate(zip(rows.starts[:-1], rows.starts[1:], strict=True)):
        start = 0
        for span in range(first, last):
            stop = start + sizes[span]
            made_ids[number, : sizes[span]] = ids[row, start:stop]
            made_labels[number, : sizes[span]] = labels[row, start:stop]
            mask[number, : sizes[span]] = 1
            start = stop
            number += 1
    others = {name: value for name, value in batch.items() if name not in _OF_ROWS}
    return {"input_ids": made_ids, "labels": made_labels, "attention_mask": mask, **others}


def _padding_id(batch: Batch, ids: Any) -> int:
    """Return the id that the batch is padded with, or 0 if nothing in it is padding: the mask says what counts."""
    is_padding = torch.as_tensor(batch["seq_idx"]) < 0
    return int(ids[is_padding][0]) if bool(is_padding.any()) else 0


def _rank() -> dict[str, Any]:
    """Return this process's rank among those that get different data; nothing outside of LMMS-Engine."""
    try:
        import lmms_engine.parallel.process_group_manager as groups
    except ImportError:
        return {}
    # the module has the name once LMMS-Engine has made its process groups
    manager = vars(groups).get("process_group_manager")
    if manager is None:
        return {}
    return {"rank": int(manager.dp_rank), "world_size": int(manager.dp_world_size)}


def _store_of(loader: Loader) -> Any:
    return loader.stores[0]


def _check(loader: Loader) -> None:
    require_tokens(loader, "LMMS-Engine", takes=(MEDIA.name,))
    form = loader.form
    if form.labels != "unshifted" or form.padding_free or form.pad_side != "right":
        raise PlanError(
            "LMMS-Engine's models shift labels themselves and remove padding themselves: leave out labels, padding_free and pad_side"
        )
    if loader.plan.settings.align != 1 or form.documents == "joined":
        raise PlanError(
            "each sample becomes a row of its own for LMMS-Engine: leave out align and documents: joined"
        )
