"""How the files next to this script were made, by sequifier 3.1.1.0 from the package index: python make.py FOLDER.

It writes items.csv, the folders `pt` and `parquet` as `sequifier preprocess` writes them, and batch.json: one batch of all windows, in
the order of the file, as sequifier's own dataset for training gives it.  Copy them here.
"""

import csv
import json
import os
import random
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import yaml
from sequifier.config.depth_layout import DepthLayoutRegistryModel
from sequifier.helpers import ModelWindowView
from sequifier.io.sequifier_dataset_from_folder_pt_lazy import SequifierDatasetFromFolderPtLazy
from sequifier.preprocess import preprocess


def write_items(path: Path) -> None:
    random.seed(1)
    with path.open("w") as file:
        rows = csv.writer(file)
        rows.writerow(["sequenceId", "itemPosition", "item", "price", "level"])
        for sequence in range(12):
            for position in range(9 + sequence % 5):
                item = random.choice("abcd")
                price = round(random.random() * 10, 3)
                rows.writerow([sequence, position, item, price, sequence % 3])


def preprocess_as(form: str, root: Path) -> Path:
    config = {
        "project_root": str(root),
        "preprocessing_data_path": str(root / "items.csv"),
        "read_format": "csv",
        "write_format": form,
        "merge_output": False,
        "selected_columns": ["item", "price"],
        "split_ratios": [0.7, 0.3],
        "window_length": 5,
        "window_stride": 2,
        "max_target_offset": 1,
        "seed": 1,
        "n_cores": 1,
        "batches_per_file": 16,
        "curriculum_column": ["level"],
    }
    file = root / f"{form}.yaml"
    file.write_text(yaml.safe_dump(config))
    arguments = {"randomize": False, "data_path": None, "skip_metadata": False}
    arguments |= {"input_columns": None, "selected_columns": None}
    preprocess(SimpleNamespace(config_path=str(file), **arguments), {})
    folder = root / form
    shutil.move(root / "data" / "items-split0", folder)
    shutil.rmtree(root / "data")
    return folder


def write_batch(folder: Path, path: Path) -> None:
    training = SimpleNamespace(batch_size=28, num_workers=0, sampling_strategy="exact")
    config = SimpleNamespace(
        project_root=".",
        input_columns=["item", "price"],
        target_columns=["item"],
        n_classes={"item": 7},
        seed=1,
        window_view=ModelWindowView(context_length=4, target_offset=1, objective="causal"),
        window_stride=None,
        training_spec=training,
        global_training=training,
        depth_layouts=DepthLayoutRegistryModel(),
    )
    (batch,) = SequifierDatasetFromFolderPtLazy(str(folder), config, shuffle=False)
    parts = ("inputs", "targets", "metadata")
    values = {
        part: {name: tensor.tolist() for name, tensor in getattr(batch, part).items()}
        for part in parts
    }
    path.write_text(json.dumps(values))


def main() -> None:
    root = Path(sys.argv[1]).absolute()
    root.mkdir(parents=True)
    os.chdir(root)
    write_items(root / "items.csv")
    preprocess_as("parquet", root)
    write_batch(preprocess_as("pt", root), root / "batch.json")


if __name__ == "__main__":
    main()
