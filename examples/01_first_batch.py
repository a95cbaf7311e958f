"""From a JSONL file to the first batch.  Makes its own data and tokenizer in a folder that goes away again."""

import json
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import penstock as ps

TEXTS = [
    f"Gate {number} lets {number % 13} cubic metres of water through." * (1 + number % 5)
    for number in range(200)
]


def first_batch(folder: Path) -> None:
    data = folder / "gates.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))

    store = ps.prepare(
        data, tokenizer=folder / "tokenizer.json", template="text", cache_dir=folder / "cache"
    )
    print(store)

    loader = ps.Loader(
        store, batch_size=4, max_length=128, packing="best_fit", seed=7, output="numpy"
    )
    batch = next(iter(loader))
    for name in ("input_ids", "labels", "position_ids"):
        print(f"{name:13} {batch[name].shape} {batch[name].dtype}")
    print(f"steps in the epoch: {len(loader)}; to go on later, save {loader.state_dict()}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        first_batch(Path(name))
