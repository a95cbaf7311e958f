"""Memory is used again when no array holds it, and not before."""

import gc

import numpy as np
import pytest

import penstock as ps
from penstock.loader.collate import Buffers


@pytest.fixture(scope="module")
def store(tokenizer_path, tmp_path_factory):
    rng = np.random.default_rng(6)
    records = [
        {"prompt": "fox " * rng.integers(1, 20), "completion": " dog" * rng.integers(1, 20)}
        for _ in range(200)
    ]
    cache_dir = tmp_path_factory.mktemp("cache")
    return ps.prepare(
        records,
        tokenizer=tokenizer_path,
        template="prompt_completion",
        cache_dir=cache_dir,
        num_proc=1,
    )


def test_what_is_let_go_of_is_used_again():
    buffers = Buffers()
    first = buffers.take("ids", 100, np.int64)
    where = first.ctypes.data
    second = buffers.take("ids", 100, np.int64)
    assert not np.shares_memory(first, second)
    del first
    third = buffers.take("ids", 60, np.int64)
    assert third.ctypes.data == where and third.size == 60
    assert not np.shares_memory(buffers.take("labels", 60, np.int64), third)


@pytest.mark.parametrize(
    "hold",
    [
        lambda a: a[::2],
        lambda a: a.reshape(4, -1)[1],
        memoryview,
        lambda a: {"deep": [a.T]},
        np.asarray,
    ],
    ids=["slice", "row", "memoryview", "nested", "same"],
)
def test_whatever_looks_into_memory_keeps_it(hold):
    buffers = Buffers()
    array = buffers.take("ids", 64, np.int64)
    array[:] = np.arange(64)
    held, where = hold(array), array.ctypes.data
    del array
    for _ in range(40):
        assert buffers.take("ids", 64, np.int64).ctypes.data != where
    del held
    gc.collect()
    assert buffers.take("ids", 64, np.int64).ctypes.data == where


@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize(
    "form", [{}, {"padding_free": True}, {"packing": "none"}, {"labels": "shifted", "align": 4}]
)
def test_batches_that_are_held_do_not_change(store, output, prefetch, form):
    if output == "torch":
        pytest.importorskip("torch", reason="tensors need torch")
    options = {"batch_size": 2, "max_length": 64, "output": output, **form}
    names = ("input_ids", "labels", "position_ids", "seq_idx")
    held, copies = [], []
    for batch in ps.Loader(store, **options, prefetch=prefetch):
        held.append(
            batch[names[batch.step % 4]]
        )  # of each batch one array: the memory of the others is free
        copies.append(held[-1].tolist())
    assert len(held) > 20
    assert [array.tolist() for array in held] == copies
    alone = [
        batch[names[batch.step % 4]].tolist() for batch in ps.Loader(store, **options, prefetch=0)
    ]
    assert alone == copies


def test_two_iterations_side_by_side_do_not_write_into_each_other(store):
    loader = ps.Loader(store, batch_size=2, max_length=64, output="numpy", prefetch=4)
    expected = [
        batch["labels"].tolist()
        for batch in ps.Loader(store, batch_size=2, max_length=64, output="numpy")
    ]
    older = iter(loader)
    assert (
        next(older)["labels"].tolist() == expected[0]
    )  # its thread is ahead, and goes on while the newer begins
    assert [batch["labels"].tolist() for batch in loader] == expected[1:]
    older.close()
