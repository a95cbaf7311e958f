"""What tests are made of: a small tokenizer, a cache of one's own, and files written on the spot."""

import gc
import itertools
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from penstock.cache import Cache
from tests.policy import RANDOM_EXAMPLES, TOGETHER, fail_unlisted_skip, in_soak_only

# A shell that runs the tests in its background has them ignore Ctrl-C, and the processes that they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test leaves this machine: a bucket or a dataset of the hub that a test forgot to serve is looked for on a closed port.  With keys, as
# without them a metadata service would be asked for some.
_CLOSED = "http://127.0.0.1:9"
os.environ |= {
    "AWS_ENDPOINT_URL": _CLOSED,
    "AWS_ACCESS_KEY_ID": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_REGION": "us-east-1",
}
os.environ |= {"HF_ENDPOINT": _CLOSED, "AWS_EC2_METADATA_DISABLED": "true"}

WORDS = "the quick brown fox jumps over a lazy dog and runs far away from home 0 1 2 3"


# No deadline: a busy machine is not a fault of the code.  Examples are fixed, except in a soak and in `make property`.
settings.register_profile(
    "penstock",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not RANDOM_EXAMPLES,
    database=None,
    phases=[Phase.explicit, Phase.generate]
    if os.environ.get("PENSTOCK_MUTANT")
    else list(Phase),  # a known mistake is not explained
)
settings.load_profile("penstock")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests of a soak out, unless they are asked for: PENSTOCK_SOAK=1, or `-m soak`."""
    if "soak" in (config.option.markexpr or ""):
        return
    left_out = [item for item in items if in_soak_only(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not in_soak_only(item)]


@pytest.hookimpl(optionalhook=True)  # there is no such hook without xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run tests that share a costly fixture in one process.  pytest 9.2 ignores the groups of xdist 3.8."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((name for name in TOGETHER if nodeid.startswith(name)), nodeid)

    return Scheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return fail_unlisted_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return fail_unlisted_skip((yield))


def pytest_collection_finish() -> None:
    """What is imported stays: the garbage collection after each module need not look at it (half a second each)."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _collected() -> Iterator[None]:
    """Free what a module's tests have left, so that an unclosed file or socket fails this module, not a later one."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a byte-level BPE of a few hundred ids and a config that names its EOS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS] * 50, trainer)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])  # of the built-in chat template
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def public_path() -> Iterator[Path]:
    """A folder that other users can walk to; pytest's own are private, and made so again by every run next to this one."""
    with tempfile.TemporaryDirectory(prefix="penstock-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., Path]:
    def write(records: Iterable[Any], name: str = "data.jsonl") -> Path:
        path = tmp_path / name
        path.write_text(
            "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        )
        return path

    return write


@pytest.fixture
def new_folder() -> Iterator[Callable[[], Path]]:
    """Folders for hundreds of small files: in memory where the machine has that, as every publish waits for the disk."""
    memory = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="penstock-test-", dir=memory if memory.is_dir() else None))
    numbers = itertools.count()

    def new() -> Path:
        folder = root / str(next(numbers))
        folder.mkdir()
        return folder

    yield new
    shutil.rmtree(root)
