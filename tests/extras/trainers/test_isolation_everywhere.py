"""The isolation check runs on models that are sharded or compiled, or the run stops with what to pass to accept the risk."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import NotIsolated

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from penstock.extras.trainers.isolation import check_at_first_step, check_isolation  # noqa: E402
from penstock.extras.trainers.wrapped import compute_types, wrapper_of  # noqa: E402

from .models import bloom, llama, qwen3_next, recurrent  # noqa: E402
from .test_launchers import run  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own

ACCEPT = "to accept that they may see each other, pass isolation_check=False"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    rng = np.random.default_rng(4)
    records = [{"input_ids": rng.integers(1, 300, rng.integers(4, 40)).tolist()} for _ in range(40)]
    folder = tmp_path_factory.mktemp("cache")
    return ps.prepare(
        records, template="pretokenized", vocab_size=400, cache_dir=folder, num_proc=1
    )


def loader(store: Any, **options: Any) -> ps.Loader:
    given = {"batch_size": 2, "max_length": 64, "rank": 0, "world_size": 1, **options}
    return ps.Loader(store, **given)


@pytest.fixture(scope="module")
def one_rank() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        place = f"file://{Path(folder) / 'meeting'}"
        torch.distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
        yield
        torch.distributed.destroy_process_group()


def compiled(model: Any) -> Any:
    return torch.compile(model, backend="eager")


def compiled_in_place(model: Any) -> Any:
    model.compile(backend="eager")
    return model


def sharded_in_place(model: Any) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (1,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    blocks = model.model.layers if hasattr(model, "model") else model.transformer.h
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    # the logits look as if they were computed in 32 bits
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def sharded(model: Any) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


WRAPPERS = {
    "compiled": compiled,
    "compiled in place": compiled_in_place,
    "FSDP2": sharded_in_place,
    "FSDP": sharded,
}


def train_step(module: Any, batch: Any) -> float:
    names = ("input_ids", "labels", "position_ids", "use_cache")
    loss = module[0](**{name: batch[name] for name in names}).loss
    loss.backward()
    return float(loss.detach())


@pytest.mark.parametrize("case", WRAPPERS)
def test_the_first_training_step_of_a_wrapped_model_is_checked(
    store: Any, one_rank: Any, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    batches = loader(store)
    batch = next(iter(batches))
    unchecked = train_step(torch.nn.Sequential(WRAPPERS[case](llama())).train(), batch)
    inside = torch.nn.Sequential(WRAPPERS[case](llama())).train()
    check_at_first_step(inside, batches)
    assert train_step(inside, batch) == unchecked
    assert train_step(inside, batch) == unchecked  # the check is gone, and has disturbed nothing
    assert "could not run" not in caplog.text
    leaking = torch.nn.Sequential(WRAPPERS[case](bloom())).train()
    check_at_first_step(leaking, batches)
    with pytest.raises(NotIsolated, match="does not keep the samples of a row apart"):
        leaking[0](input_ids=batch["input_ids"], use_cache=False)


def test_the_type_in_which_fsdp2_computes_decides_what_is_rounding(one_rank: Any) -> None:
    """Its weights and its logits have 32 bits here."""
    model = sharded_in_place(llama())
    assert {each.dtype for each in model.parameters()} == {torch.float32}
    assert compute_types(model) == {torch.bfloat16}
    assert compute_types(llama()) == set()
    assert wrapper_of(model) == "sharded by FSDP2"


def test_a_model_inside_a_compiled_module_is_refused(store: Any) -> None:
    whole = torch.compile(torch.nn.Sequential(llama()), backend="eager")
    with pytest.raises(NotIsolated, match=f"Sequential is compiled as a whole.*{ACCEPT}"):
        check_at_first_step(whole, loader(store))
    in_place = torch.nn.Sequential(llama())
    in_place.compile(backend="eager")
    with pytest.raises(NotIsolated, match="is compiled as a whole"):
        check_at_first_step(in_place, loader(store))
    check_at_first_step(whole, loader(store, packing="none"))  # there is nothing to keep apart


def test_a_wrapped_model_that_cannot_be_compared_stops_the_run(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a wrapper it is a warning, as before."""

    class Demanding(type(llama())):  # type: ignore[misc]
        def forward(self, pixels: Any, **inputs: Any) -> Any:
            return super().forward(**inputs)

    model = Demanding(llama().config)
    assert check_isolation(model, loader(store)) is False
    assert "could not run" in caplog.text
    with pytest.raises(NotIsolated, match=f"the model is compiled, and TypeError.*{ACCEPT}"):
        check_isolation(compiled(model), loader(store))


def test_rows_that_are_cut_for_context_parallelism_stop_the_run(store: Any) -> None:
    cut = loader(store, labels="shifted", context_split="zigzag", context_size=2, context_rank=0)
    with pytest.raises(NotIsolated, match=f"cuts rows for context parallelism.*{ACCEPT}"):
        check_isolation(llama(), cut)


def test_recurrent_layers_with_and_without_borders_are_told_apart(store: Any) -> None:
    """A model that resets its state where `seq_idx` changes passes with it, and is refused in a loop that leaves it out."""
    batches = loader(store)
    model = recurrent()
    assert check_isolation(model, batches) is True
    batch = next(iter(batches))
    without = {name: batch[name] for name in ("input_ids", "labels")}
    with pytest.raises(
        NotIsolated, match=r"DeltaNetLayer carry a state .* was not given seq_idx.*ModelInputs"
    ):
        check_isolation(model, batches, inputs=without)
    assert check_isolation(model, batches, inputs={**without, "seq_idx": batch["seq_idx"]}) is True


def test_recurrent_layers_without_their_kernels_are_refused(store: Any) -> None:
    """transformers' own computation of GatedDeltaNet, which runs without a GPU, does not read borders, and says so."""
    with pytest.raises(
        NotIsolated, match=f"its layers are Qwen3NextGatedDeltaNet.*causal_conv1d.*{ACCEPT}"
    ):
        check_isolation(qwen3_next(), loader(store))


@pytest.mark.soak
def test_ranks_that_share_a_model_check_it_together(tmp_path: Path) -> None:
    """FSDP2 over two processes: every rank has a part of the weights, and all take part in the check's forward passes."""
    command = [sys.executable, "-m", "tests.extras.trainers.meshes", "sharded_models", "2"]
    result = run(command, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    for rank in range(2):
        kept = json.loads((tmp_path / f"llama-{rank}.json").read_text())
        assert "refused" not in kept, kept
        mixed = json.loads((tmp_path / f"bloom-{rank}.json").read_text())
        assert "does not keep the samples of a row apart" in mixed["refused"]
