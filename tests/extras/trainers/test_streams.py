"""Trainers that pull batches: `next` and a state; Megatron, torchtitan and Composer; jax."""

import io
import json
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import penstock as ps
from penstock.errors import PlanError
from penstock.extras.trainers.composer import composer_dataloader
from penstock.extras.trainers.megatron import MegatronBatches

from .runs import open_loader

SHIFTED = {"output": "torch", "labels": "shifted"}


def ids(batch: Any) -> list[list[int]]:
    return np.asarray(batch["input_ids"]).tolist()


def test_a_stream_ends_with_its_pass_and_iter_begins_the_next(folder: Path) -> None:
    whole = [ids(batch) for _ in range(2) for batch in open_loader(folder, output="numpy")]
    stream = open_loader(folder, output="numpy").stream()
    first = [ids(batch) for batch in stream]
    assert len(first) == len(stream) and first == whole[: len(first)]
    with pytest.raises(StopIteration):
        next(stream)
    second = [ids(next(iter(stream))) for _ in range(2)]
    loader = open_loader(folder, output="numpy")
    list(loader)
    assert second == [ids(batch) for batch in loader][:2] != first[:2], (
        "the second pass has an order of its own"
    )


def test_a_stream_counts_what_next_returned_whatever_was_made_ahead(folder: Path) -> None:
    whole = [ids(batch) for batch in open_loader(folder, output="numpy")]
    stream = open_loader(folder, output="numpy", prefetch=8).stream()
    taken = [ids(next(stream)) for _ in range(3)]
    state = json.loads(json.dumps(stream.state_dict()))
    ranks = [
        open_loader(folder, output="numpy", rank=rank, world_size=2, batch_size=1).stream()
        for rank in range(2)
    ]
    for each in ranks:
        each.load_state_dict(state)
    rest = [{tuple(row) for rank in step for row in ids(rank)} for step in zip(*ranks, strict=True)]
    assert taken == whole[:3] and rest == [{tuple(row) for row in batch} for batch in whole[3:]]
    stream.load_state_dict(state)
    assert ids(next(stream)) == whole[3]


def test_megatron_s_own_iterator_wraps_the_batches_and_saves_their_state(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says which accelerators are missing
        from megatron.core.rerun_state_machine import RerunDataIterator
    plain = list(open_loader(folder, **SHIFTED))
    batches = RerunDataIterator(MegatronBatches(open_loader(folder, **SHIFTED)))
    for expected in plain[:3]:
        batch = next(batches)
        trained = expected["labels"] != -100
        assert torch.equal(batch["tokens"], expected["input_ids"])
        assert torch.equal(batch["position_ids"], expected["position_ids"])
        assert torch.equal(batch["loss_mask"], trained.float()) and batch["loss_mask"].sum() > 0
        assert (
            torch.equal(batch["labels"][trained], expected["labels"][trained])
            and batch["labels"].min() >= 0
        )
    file = io.BytesIO()
    torch.save(
        {"dataloader_state_dict": batches.iterable.save_state()}, file
    )  # as Megatron's checkpointing does
    file.seek(0)
    again = MegatronBatches(open_loader(folder, **SHIFTED))
    again.load_state_dict(torch.load(file)["dataloader_state_dict"])
    assert torch.equal(next(again)["tokens"], plain[3]["input_ids"])


def test_megatron_refuses_labels_that_it_would_not_shift(folder: Path) -> None:
    with pytest.raises(
        PlanError, match="labels='unshifted', but Megatron takes tensors and does not shift"
    ):
        MegatronBatches(open_loader(folder))


def weighted_loader(folder: Path, **options: Any) -> ps.Loader:
    says = [
        {"role": "user", "content": "the fox?"},
        {"role": "assistant", "content": "dog runs over", "weight": 0.5},
    ]
    store = ps.prepare(
        [{"messages": says}] * 6,
        tokenizer=folder / "tokenizer",
        cache_dir=folder / "cache",
        message_weights=True,
        num_proc=1,
    )
    return ps.Loader(store, batch_size=2, max_length=64, **options)


def test_weights_of_tokens_reach_megatron_s_loss_and_are_refused_where_a_loss_does_not_take_them(
    folder: Path,
) -> None:
    from penstock.extras.trainers.torchtitan import PenstockDataLoader

    batch = next(MegatronBatches(weighted_loader(folder, **SHIFTED)))
    assert (
        set(batch["loss_mask"].unique().tolist()) == {0.0, 0.5}
        and batch["loss_mask"].dtype == torch.float32
    )
    config = PenstockDataLoader.Config(load=lambda **_: weighted_loader(folder, **SHIFTED))
    with pytest.raises(PlanError, match="torchtitan's loss does not take them"):
        config.build(dp_rank=0, dp_world_size=1, local_batch_size=2, seq_len=64)


def test_rows_that_are_not_tokens_alone_are_refused(folder: Path) -> None:
    records = ps.Loader(ps.open([{"text": "a"}]), batch_size=1, labels="shifted")
    with pytest.raises(
        PlanError, match="Megatron takes rows of tokens, and this Loader has plain records"
    ):
        MegatronBatches(records)
    pairs = ps.prepare(
        [{"prompt": "the fox", "chosen": " runs", "rejected": " dog"}] * 4,
        tokenizer=folder / "tokenizer",
        template="preference",
        cache_dir=folder / "cache",
        num_proc=1,
    )
    loader = ps.Loader(pairs, batch_size=2, max_length=64, packing="none")
    for serve in (MegatronBatches, ps.Loader.as_map_dataset):
        with pytest.raises(
            PlanError,
            match="takes rows of tokens, and this Loader has pairs; iterate over the Loader",
        ):
            serve(loader)


def test_torchtitan_builds_the_loader_and_its_checkpoint_resumes_on_other_ranks(
    folder: Path,
) -> None:
    from torch.distributed.checkpoint import load, save

    from penstock.extras.trainers.torchtitan import PenstockDataLoader

    recipe = folder / "recipe.yaml"
    recipe.write_text(
        f"data: data.jsonl\ntemplate: text\ntokenizer: tokenizer\nmax_length: 64\ncache_dir: {folder / 'cache'}\n"
    )

    def build(rank: int, size: int, batch_size: int, seq_len: int = 64) -> Any:
        config = PenstockDataLoader.Config(load=partial(ps.load, recipe, epochs=2))
        given = {"tokenizer": None, "snapshot_every_n_steps": None}
        return config.build(
            dp_rank=rank, dp_world_size=size, local_batch_size=batch_size, seq_len=seq_len, **given
        )

    whole = list(build(0, 1, 4))
    loader = build(0, 1, 4)
    batches = iter(loader)
    for inputs, labels in whole[:2]:
        found, targets = next(batches)
        assert torch.equal(found["input"], inputs["input"]) and torch.equal(targets, labels)
        assert found["positions"].shape == labels.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no process group
        save({"dataloader": loader}, checkpoint_id=folder / "saved")
        ranks = [build(rank, 2, 2) for rank in range(2)]
        for each in ranks:
            load({"dataloader": each}, checkpoint_id=folder / "saved")
    for (expected, _), pieces in zip(whole[2:], zip(*ranks, strict=True), strict=True):
        rows = {tuple(row) for inputs, _ in pieces for row in inputs["input"].tolist()}
        assert rows == {tuple(row) for row in expected["input"].tolist()}
    with pytest.raises(PlanError, match=r"max_length=64, training\.seq_len is 128"):
        build(0, 1, 4, seq_len=128)
    build(0, 1, 4).load_state_dict({})


def test_composer_saves_and_loads_the_state_of_the_dataset_of_its_dataloader(folder: Path) -> None:
    """Composer calls dataset.state_dict(samples in the epoch, True) and dataset.load_state_dict, of a DataLoader only."""
    whole = list(open_loader(folder))
    dataloader = composer_dataloader(open_loader(folder))
    assert isinstance(dataloader, DataLoader) and len(dataloader) == len(whole)
    batches = iter(dataloader)
    for expected in whole[:3]:
        batch = next(batches)
        assert (
            torch.equal(batch["input_ids"], expected["input_ids"]) and batch.step == expected.step
        )
    state = dataloader.dataset.state_dict(3 * len(whole[0]["input_ids"]), True)
    again = composer_dataloader(open_loader(folder))
    again.dataset.load_state_dict(state)
    assert [batch.step for batch in again] == [batch.step for batch in whole[3:]]
    assert next(batch.step for batch in again) == len(whole), "the next pass"


def test_arrays_of_jax_in_a_process_of_their_own(folder: Path) -> None:
    """jax starts threads, next to which no other test may fork."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.extras.trainers.jax_arrays", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "shapes, refusals\n"


def test_more_segments_than_allowed_are_refused(folder: Path) -> None:
    with pytest.raises(PlanError, match=r"a batch has \d+ segments .* max_segments is 2; raise it"):
        list(open_loader(folder, output="numpy", max_segments=2))


def test_max_segments_without_cu_seqlens_is_refused(folder: Path) -> None:
    with pytest.raises(PlanError, match="max_segments=9 has no effect with packing='none'"):
        open_loader(folder, packing="none", max_segments=9)


RANKS = """
import sys, jax
jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", num_processes=2, process_id=int(sys.argv[2]))
import penstock as ps
loader = ps.load(sys.argv[3], output="jax", batch_size=1)
print(loader.world.rank, loader.world.size, [batch["input_ids"].tolist() for batch in loader])
jax.distributed.shutdown()
"""


def test_jax_says_which_process_this_is(folder: Path, tmp_path: Path) -> None:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        f"data: data.jsonl\ntemplate: text\ntokenizer: tokenizer\nmax_length: 64\ncache_dir: {folder / 'cache'}\n"
    )
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANKS, str(port), str(rank), str(recipe)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=240)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0]
    assert [line.split(maxsplit=2)[:2] for line in said] == [["0", "2"], ["1", "2"]]
    rows = [
        row for line in said for batch in json.loads(line.split(maxsplit=2)[2]) for row in batch
    ]
    alone = ps.load(str(recipe), output="numpy", batch_size=2, rank=0, world_size=1)
    assert sorted(rows) == sorted(row for batch in alone for row in ids(batch))
