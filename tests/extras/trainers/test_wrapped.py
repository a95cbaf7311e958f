"""A wrapped model is asked for its config and its arguments as the bare one is (T3): DDP, FSDP, torch.compile, PEFT, Accelerate, Fabric."""

import tempfile
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.errors import NotIsolated

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from penstock.extras.trainers.isolation import check_isolation  # noqa: E402
from penstock.extras.trainers.model_inputs import ModelInputs  # noqa: E402
from penstock.extras.trainers.wrapped import bare_model, runnable_model  # noqa: E402

from .models import bloom, qwen2_5_vl  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's and Lightning's own

WORDS = ["fox", "dog", "runs", "over", "away", "lazy", "home", "and"]


@pytest.fixture(scope="module")
def loader(tokenizer_path, tmp_path_factory):
    rng = np.random.default_rng(4)
    records = [
        {"text": " ".join(rng.choice(WORDS, rng.integers(2, 60)).tolist())} for _ in range(40)
    ]
    cache_dir = tmp_path_factory.mktemp("cache")
    store = ps.prepare(
        records, tokenizer=tokenizer_path, template="text", cache_dir=cache_dir, num_proc=1
    )
    return ps.Loader(store, batch_size=2, max_length=128, rank=0, world_size=1)


@pytest.fixture(scope="module")
def one_rank():
    with tempfile.TemporaryDirectory() as folder:
        place = f"file://{Path(folder) / 'meeting'}"
        torch.distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
        yield
        torch.distributed.destroy_process_group()


def with_adapter(model):
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))


def by_accelerate(model):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # of other tests in this process
    try:
        return Accelerator(cpu=True, mixed_precision="bf16").prepare(model)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def by_fabric(model):
    from lightning.fabric import Fabric

    return Fabric(accelerator="cpu", devices=1).setup_module(model)


def sharded(model):
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def sharded_in_place(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return model


DDP = torch.nn.parallel.DistributedDataParallel
WRAPPED = {
    "DDP": DDP,
    "compiled": torch.compile,
    "DDP of a compiled model": lambda model: DDP(torch.compile(model)),
    "a compiled DDP": lambda model: torch.compile(DDP(model)),
    "PEFT": with_adapter,
    "DDP of PEFT": lambda model: DDP(with_adapter(model)),
    "Accelerate with mixed precision": by_accelerate,
    "Fabric": by_fabric,
    "FSDP": sharded,
    "FSDP2": sharded_in_place,
}


@pytest.mark.parametrize("case", WRAPPED)
def test_a_wrapped_model_gets_the_inputs_of_the_bare_one(loader, one_rank, case):
    """T3: DDP hid the config, so Qwen2.5-VL got positions of two dimensions and let packed samples see each other."""
    bare = qwen2_5_vl()
    batch = next(iter(loader))
    expected = ModelInputs(bare)(batch)
    assert expected["position_ids"].shape[0] == 4
    wrapped = WRAPPED[case](qwen2_5_vl())
    inputs = ModelInputs(wrapped)(batch)
    assert inputs.keys() == expected.keys()
    for name, value in expected.items():
        same = torch.equal(inputs[name], value) if torch.is_tensor(value) else inputs[name] == value
        assert same, name
    assert bare_model(wrapped).config.model_type == "qwen2_5_vl"


@pytest.mark.parametrize("case", ["DDP", "compiled", "DDP of PEFT", "Fabric", "FSDP", "FSDP2"])
def test_the_isolation_check_runs_on_a_wrapped_model(loader, one_rank, case, caplog):
    """T3: and names the model, not its wrapper."""
    assert check_isolation(WRAPPED[case](qwen2_5_vl()), loader) is True
    assert caplog.text == ""
    leaking = DDP(bloom()) if case == "DDP" else torch.compile(bloom())
    with pytest.raises(NotIsolated, match=r"^BloomForCausalLM \(attn_implementation="):
        check_isolation(leaking, loader)


def test_adapters_and_shards_stay_for_a_forward(one_rank):
    adapted = with_adapter(qwen2_5_vl())
    assert runnable_model(DDP(adapted)) is adapted
    shards = sharded(qwen2_5_vl())
    assert runnable_model(shards) is shards
