"""What people try first with a Loader: each mistake is an error that names the way that works."""

import subprocess
import sys

import pytest

import penstock as ps
from penstock.errors import PlanError

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402

from tests.policy import first_in_short_runs  # noqa: E402


@pytest.fixture(scope="module")
def store(tokenizer_path, tmp_path_factory):
    records = [{"text": "fox dog runs over " * (1 + number % 7)} for number in range(60)]
    cache_dir = tmp_path_factory.mktemp("cache")
    return ps.prepare(
        records, tokenizer=tokenizer_path, template="text", cache_dir=cache_dir, num_proc=1
    )


@pytest.fixture
def loader(store):
    return ps.Loader(store, batch_size=2, max_length=64)


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2}, {"batch_size": None}, {"shuffle": True}], ids=str
)
def test_a_dataloader_over_a_loader_names_as_dataset(loader, options):
    with pytest.raises(TypeError, match=r"DataLoader\(loader\.as_dataset\(\), batch_size=None\)"):
        list(DataLoader(loader, **options))


def test_an_item_of_a_loader_names_what_to_do(loader):
    with pytest.raises(
        TypeError, match=r"iterate over it; for the Trainers use LoaderTrainer\(loader=loader\)"
    ):
        loader[0]


def test_next_of_a_loader_names_stream(loader):
    with pytest.raises(TypeError, match=r"batches = loader\.stream\(\), and call next\(batches\)"):
        next(loader)
    assert next(loader.stream()).step == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_that_would_stack_batches_is_refused(loader, workers):
    with pytest.raises(PlanError, match="would stack 4 batches into one: pass batch_size=None"):
        list(DataLoader(loader.as_dataset(), batch_size=4, num_workers=workers))
    with pytest.raises(PlanError, match="would stack 1 batches"):
        list(DataLoader(loader.as_dataset(), num_workers=workers))  # its own batch_size is 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_of_a_data_set_has_a_length(store, workers):
    loader = ps.Loader(store, batch_size=2, max_length=64)
    for skip in ((), [1, 3]):
        loader = ps.Loader(store, batch_size=2, max_length=64, skip_steps=skip)
        own = DataLoader(loader.as_dataset(), batch_size=None, num_workers=workers)
        assert len(own) == len(loader) - len(skip) == sum(1 for _ in own)
    loader.seek(2)
    own = DataLoader(loader.as_dataset(), batch_size=None, num_workers=workers)
    assert len(own) == sum(1 for _ in own) == len(loader) - 3
    with pytest.raises(TypeError, match="endless"):
        len(
            DataLoader(
                ps.Loader(store, batch_size=2, max_length=64, epochs=None).as_dataset(),
                batch_size=None,
            )
        )


TRAINERS = {
    "transformers": """
        from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
        model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                             num_attention_heads=2, num_key_value_heads=2))
        args = TrainingArguments(sys.argv[1], use_cpu=True, report_to=[], max_steps=1)
        Trainer(model=model, args=args, train_dataset=loader).train()
    """,
    "lightning": """
        from lightning.pytorch import LightningModule, Trainer
        from torch.utils.data import DataLoader
        class Module(LightningModule):
            def training_step(self, batch, index): ...
            def configure_optimizers(self): ...
        Trainer(max_epochs=1, logger=False, enable_checkpointing=False, accelerator="cpu").fit(Module(), DataLoader(loader))
    """,
}


@pytest.mark.parametrize("name", first_in_short_runs(TRAINERS))
def test_a_trainer_that_is_given_a_loader_as_data_set_says_what_to_use(name, tmp_path):
    """In a process of its own, as these libraries change what they are imported into."""
    pytest.importorskip(name)
    code = f"""
        import sys
        import penstock as ps
        loader = ps.Loader(ps.open([{{"n": n}} for n in range(9)]), batch_size=2, rank=0, world_size=1)
        {TRAINERS[name]}
    """
    lines = [line.removeprefix("        ") for line in code.splitlines()]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines), str(tmp_path)], capture_output=True, text=True
    )
    [said] = [line for line in done.stderr.splitlines() if line.startswith("TypeError: ")]
    assert (
        done.returncode == 1 and "LoaderTrainer(loader=loader)" in said and "as_dataset()" in said
    ), done.stderr
