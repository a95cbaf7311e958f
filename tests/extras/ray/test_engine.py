"""Does `prepare` on a Ray cluster make the bytes of a local one, whatever dies, and does it refuse nodes that would make others?"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import ray

import penstock as ps
from penstock.engines import open_engine
from penstock.errors import PenstockError, StoreError, TemplateError
from penstock.extras.ray.engine import RayEngine
from penstock.testing import check_engine
from penstock.types import Samples

from .conftest import Nodes, wait_until


def shards(root: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in root.rglob("*")
        if path.suffix in (".arrow", ".lengths")
    }


def leftovers(root: Path) -> list[str]:
    """Claims, half-written files, and leases of other processes than this one."""
    found = [path for path in root.rglob("*") if path.is_file()]
    return [
        str(path)
        for path in found
        if path.parent.name == "claims"
        or path.suffix == ".tmp"
        or (path.parent.name == "leases" and f"-{os.getpid()}-" not in path.name)
    ]


@pytest.fixture
def data(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{file}.jsonl" for file in range(12)]
    for file, path in enumerate(paths):
        path.write_text(
            "".join(json.dumps({"text": f"the fox {file} {row}"}) + "\n" for row in range(40))
        )
    return paths


class Slow:
    """A template that takes its time, and tells which process encodes."""

    def __init__(self, inner: Any, folder: Path, seconds: float) -> None:
        self.inner, self.folder, self.seconds, self.vocab_size = (
            inner,
            folder,
            seconds,
            inner.vocab_size,
        )

    def identity(self) -> dict[str, Any]:
        return {"inner": self.inner.identity()}

    def encode(self, records: Any) -> Samples:
        (self.folder / f"{os.getpid()}").touch()
        time.sleep(self.seconds)
        made: Samples = self.inner.encode(records)
        return made

    def decode(self, input_ids: Any) -> str:
        return str(self.inner.decode(input_ids))


def where(task: Any) -> tuple[Any, str]:
    time.sleep(0.1)
    return task, ray.get_runtime_context().get_node_id()


def test_the_engine_keeps_the_contract(connected: Nodes) -> None:
    check_engine(RayEngine(num_proc=1))
    wait_until(lambda: not connected.workers())
    assert ray.is_initialized()  # it ends only what it has begun


def test_a_store_has_the_same_bytes_as_a_local_one(
    connected: Nodes, data: list[Path], tokenizer_path: Path
) -> None:
    folder = data[0].parent
    settings = {"tokenizer": tokenizer_path, "template": "text", "progress": "none"}
    source = ps.concat([ps.open(path, cache_dir=folder / "index") for path in data])
    large = [
        {"text": f"the quick brown fox {row} " * 20} for row in range(2000)
    ]  # more than fits into one call
    shown: list[Any] = []
    for number, place in enumerate((source, large)):
        local = ps.prepare(place, cache_dir=folder / f"local {number}", **settings)
        there = ps.prepare(
            place,
            cache_dir=folder / f"ray {number}",
            engine="ray",
            **{**settings, "progress": shown.append},
        )
        assert there.fingerprint == local.fingerprint
        assert shards(folder / f"ray {number}") == shards(folder / f"local {number}")
        assert leftovers(folder / f"ray {number}") == []
        assert shown[-1].is_done and shown[-1].rows == len(there)


@pytest.mark.soak
def test_a_node_is_killed(connected: Nodes, data: list[Path], tokenizer_path: Path) -> None:
    folder = data[0].parent
    (folder / "pids").mkdir()
    source = ps.concat([ps.open(path, cache_dir=folder / "index") for path in data])
    inner = ps.prepare(
        source, tokenizer=tokenizer_path, template="text", cache_dir=folder / "first"
    ).template
    template = Slow(inner, folder / "pids", 0.05)
    local = ps.prepare(source, template=template, cache_dir=folder / "local", progress="none")
    for path in (folder / "pids").iterdir():
        path.unlink()

    def kill_one(progress: Any) -> None:
        if progress.shards == 2 and len(connected.two) == 2:
            connected.end(connected.two[0], kill=True)

    there = ps.prepare(
        source, template=template, cache_dir=folder / "ray", engine="ray", progress=kill_one
    )
    assert len(connected.two) == 1
    assert there.fingerprint == local.fingerprint and shards(folder / "ray") == shards(
        folder / "local"
    )
    assert leftovers(folder / "ray") == []


class Hog:
    def here(self) -> bool:
        return True


@pytest.mark.soak
def test_a_run_waits_for_a_node_that_joins_and_gives_up_when_the_last_one_is_gone(
    connected: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    hogs = [ray.remote(num_cpus=1)(Hog).remote() for _ in connected.two]  # they leave no CPU
    assert all(ray.get([hog.here.remote() for hog in hogs]))
    results = RayEngine().run(where, iter(range(1_000_000)))
    late: list[int] = []
    join = threading.Timer(1, lambda: late.append(connected.add()))
    join.start()
    try:
        assert next(results)[0] == 0
        join.join()
        monkeypatch.setattr("penstock.extras.ray.engine._PATIENCE", 5.0)
        connected.end(late.pop(), kill=True)
        with pytest.raises(
            StoreError,
            match=r"Ray has had no worker for \d+ s: .* 0 free; add nodes, or end what uses them",
        ):
            list(results)
    finally:
        join.join()
        for node in late:
            connected.end(node)
        for hog in hogs:
            ray.kill(hog)
    wait_until(lambda: not connected.workers())


@pytest.mark.soak
def test_engines_share_a_connection_that_ends_with_the_last_and_leave_the_user_his(
    two_nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", place)
        with pytest.raises(
            StoreError, match=f"engine 'ray' cannot connect to Ray: nothing answers at {place}"
        ):
            open_engine("ray").run(abs, [1])
    monkeypatch.setenv("RAY_ADDRESS", two_nodes.address)
    first, second = RayEngine(num_proc=1), RayEngine(num_proc=1)
    unread: Any = first.run(abs, [1])
    results = second.run(abs, [-2])
    unread.close()
    del first
    assert list(results) == [2]
    assert ray.is_initialized()
    del second
    assert not ray.is_initialized()
    third = RayEngine()
    third.run(abs, [1])
    ray.shutdown()
    ray.init(log_to_driver=False, logging_level="ERROR")
    del third
    assert ray.is_initialized()  # the user's


NAMED_BY_NONE = """
import logging, sys
import ray
logging.basicConfig(level=logging.WARNING)
from penstock.extras.ray.engine import RayEngine
engine = RayEngine(num_proc=1)
results = list(engine.run(abs, [-2]))
print(ray.get_runtime_context().gcs_address, results)
"""


@pytest.mark.soak
def test_a_cluster_that_nothing_names_is_not_joined(two_nodes: Nodes) -> None:
    """T12: the engine joined any cluster that it found on the machine; now only one that RAY_ADDRESS or the program names."""
    asked = {name: value for name, value in two_nodes.environment.items() if name != "RAY_ADDRESS"}
    asked["RAY_AUTH_MODE"] = "disabled"  # else a new cluster writes a token to the home folder
    joined = []
    for environment in (asked, {**asked, "RAY_ADDRESS": "auto"}):
        done = subprocess.run(
            [sys.executable, "-c", NAMED_BY_NONE], env=environment, capture_output=True, text=True
        )
        assert done.stdout.endswith(" [2]\n"), done.stdout + done.stderr
        joined.append(done.stdout.split()[-2] == two_nodes.address)
        if environment is asked:
            assert f"a Ray cluster runs at {two_nodes.address}" in done.stderr
    assert joined == [False, True]


class Fatal:
    """Work that notes its process, and kills it at one task."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, task: int) -> Generator[str, None, int]:
        yield "begun"
        (self.folder / f"{task} {os.getpid()}").touch()
        if task == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return task

    def describe(self, task: int, note: Any) -> str:
        return f"shard {task} ({note})"


@pytest.mark.soak
def test_a_task_that_always_kills_its_worker_is_an_error_that_names_it(
    connected: Nodes, tmp_path: Path
) -> None:
    words = r"3 workers died, one after another, while they worked on shard 3 \(.*\); .*the last one on node .*died"
    with pytest.raises(StoreError, match=words):
        list(RayEngine(num_proc=2).run(Fatal(tmp_path), range(6)))
    assert len(list(tmp_path.glob("3 *"))) == 3
    wait_until(lambda: not connected.workers())


@pytest.mark.soak
def test_a_worker_with_other_versions_is_refused_by_name(connected: Nodes, tmp_path: Path) -> None:
    metadata = tmp_path / "tokenizers-0.0.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: tokenizers\nVersion: 0.0.1\n")
    other = connected.add(env_vars={"PYTHONPATH": str(tmp_path)})
    try:
        with pytest.raises(
            StoreError,
            match=r"node .*: its workers have tokenizers 0.0.1 \(here .*install the same",
        ):
            list(RayEngine().run(where, range(1000)))
    finally:
        connected.end(other)


@pytest.mark.soak
@pytest.mark.parametrize("what", ["cache", "data", "tokenizer"])
def test_a_node_that_does_not_see_the_files_is_refused_by_name(
    connected: Nodes,
    data: list[Path],
    tokenizer_path: Path,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The folder in which a process runs differs between this process and those of Ray."""
    folder = data[0].parent
    monkeypatch.chdir(folder)
    (folder / "tokenizer").symlink_to(tokenizer_path)
    here = Path("/proc/self/cwd")
    places = {"cache": folder / "cache", "data": data[0], "tokenizer": folder / "tokenizer"}
    places[what] = here / places[what].name
    words = {
        "cache": f"node .*: StoreError: it does not see the cache folder {here}/cache of the process that started it",
        "data": f"node .*: SourceError: {here}/0.jsonl.*all nodes must see the same data",
        "tokenizer": rf"{here}/tokenizer/tokenizer.json: No such file .*\(on node ",
    }
    with pytest.raises(PenstockError, match=words[what]):
        ps.prepare(
            places["data"],
            tokenizer=places["tokenizer"],
            template="text",
            cache_dir=places["cache"],
            engine="ray",
            progress="none",
        )


def fail(task: int) -> int:
    raise TemplateError(f"task {task} is bad", record=task)


def test_an_error_of_a_task_names_its_node(connected: Nodes) -> None:
    with pytest.raises(TemplateError, match=r"task 0 is bad \(on node .*\)") as caught:
        list(RayEngine(num_proc=1).run(fail, range(3)))
    assert caught.value.record == 0 and "in fail" in caught.value.__notes__[0]
    assert re.fullmatch(r"on node .*, at work on task 0", caught.value.__notes__[-1])
    with pytest.raises(StoreError, match=r"a result cannot be sent from its worker: .*lock"):
        list(RayEngine(num_proc=1).run(_lock, [1]))
    with pytest.raises(StoreError, match=r"the work cannot be sent to a worker: TypeError: .*lock"):
        list(RayEngine(num_proc=1).run(_Locked(), [1]))


def _lock(task: int) -> Any:
    return threading.Lock()


class _Locked:
    def __init__(self) -> None:
        self.lock = _lock(0)

    def __call__(self, task: int) -> int:
        return task


def recipe(data: list[Path], tokenizer_path: Path, **keys: Any) -> Path:
    path = data[0].parent / "recipe.yaml"
    settings = {
        "tokenizer": str(tokenizer_path),
        "template": "text",
        "batch_size": 2,
        "max_length": 64,
        **keys,
    }
    settings["data"] = {path.stem: str(path) for path in data[:3]}
    path.write_text(json.dumps(settings))
    return path


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["ray", "ray://"])
def test_the_command_prepares_on_a_cluster(
    two_nodes: Nodes, data: list[Path], tokenizer_path: Path, engine: str
) -> None:
    folder = data[0].parent
    path = recipe(data, tokenizer_path)
    local = ps.load(path, cache_dir=folder / "local", output="numpy")
    name = engine if engine == "ray" else f"ray://127.0.0.1:{two_nodes.client_port}"
    command = [sys.executable, "-m", "penstock", "prepare", str(path), "--engine", name]
    command += ["--cache-dir", str(folder / "ray"), "--num-proc", "2"]
    env = {
        **two_nodes.environment,
        **({"RAY_ADDRESS": two_nodes.address} if engine == "ray" else {}),
    }
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(store.fingerprint[:8] in done.stdout for store in local.stores)
    assert shards(folder / "ray") == shards(folder / "local")


JOB = """
import sys, time
from pathlib import Path
import ray
import penstock as ps
from tests.extras.ray.test_engine import Slow

source = ps.concat([ps.open(path, cache_dir=sys.argv[1] + "/index") for path in sorted(Path(sys.argv[1]).glob("*.jsonl"))])
inner = ps.prepare(source, tokenizer=sys.argv[2], template="text", cache_dir=sys.argv[1] + "/first", progress="none").template
template = Slow(inner, Path(sys.argv[1]) / "pids", float(sys.argv[3]))
ps.prepare(source, template=template, cache_dir=sys.argv[1] + "/ray", engine="ray", num_proc=2, progress="none")
"""


@pytest.mark.soak
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_driver_that_is_killed_or_interrupted_leaves_no_actors_and_the_next_run_completes(
    two_nodes: Nodes, data: list[Path], tokenizer_path: Path, how: signal.Signals
) -> None:
    folder = data[0].parent
    (folder / "pids").mkdir()
    root = Path(__file__).parents[3]
    env = {**two_nodes.environment, "RAY_ADDRESS": two_nodes.address, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", JOB, str(folder), str(tokenizer_path)]
    driver = subprocess.Popen(
        [*command, "0.5"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: list((folder / "pids").iterdir()))
    assert two_nodes.workers()
    driver.send_signal(how)
    _, errors = driver.communicate(timeout=120)
    assert driver.returncode != 0
    if how == signal.SIGINT:
        assert "shards are finished and kept: run the same again to continue" in errors
        assert [path for path in leftovers(folder / "ray") if "/leases/" not in path] == []
    wait_until(lambda: not two_nodes.workers())
    done = subprocess.run([*command, "0"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    inner = ps.prepare(
        data[0], tokenizer=tokenizer_path, template="text", cache_dir=folder / "one"
    ).template
    source = ps.concat(
        [ps.open(path, cache_dir=folder / "index") for path in sorted(folder.glob("*.jsonl"))]
    )
    ps.prepare(
        source,
        template=Slow(inner, folder / "pids", 0),
        cache_dir=folder / "local",
        progress="none",
    )
    assert shards(folder / "ray") == shards(folder / "local")


def test_settings_and_a_missing_ray_are_errors_that_say_what_to_do(
    connected: Nodes, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="num_proc is 0, expected a whole number of at least 1"):
        open_engine("ray", num_proc=0)
    with pytest.raises(
        StoreError, match=r"engine is 'rey', expected 'local', 'ray' .*did you mean 'ray'\?"
    ):
        open_engine("rey")
    with pytest.raises(
        StoreError, match="but this process has a connection to Ray already; write engine: ray"
    ):
        open_engine("ray://127.0.0.1:9").run(abs, [1])
    script = "import sys; sys.modules['ray'] = None\nfrom penstock.engines import open_engine\nopen_engine('ray')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (
        "StoreError: engine 'ray' needs Ray" in done.stderr
        and "pip install 'penstock[ray]'" in done.stderr
    )
