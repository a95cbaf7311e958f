"""A Ray cluster on this machine: a head without CPUs and two nodes, which are started once for all tests of this folder."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.ray)
            item.add_marker(
                pytest.mark.timeout(900)
            )  # on a busy machine it takes Ray a while to start processes


class Nodes:
    """The cluster.  Nodes may be added and killed."""

    def __init__(self, folder: Path) -> None:
        (folder / "ray").mkdir()
        self._work = folder / "work"  # the processes of Ray run in another folder than the tests
        self._work.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.client_port = free.getsockname()[1]
        self.environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(folder)}
        self.environment["RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S"] = (
            "120"  # 30 are too few on a busy machine
        )
        self._host = subprocess.Popen(
            [sys.executable, Path(__file__).parent / "host.py"],
            cwd=self._work,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = ""
        self.add(num_cpus=0, include_dashboard=False, ray_client_server_port=self.client_port)
        self.two = [
            self.add(),
            self.add(),
        ]  # those that are alive, among the nodes that all tests may use

    def add(self, **options: Any) -> int:
        return self._ask(add={"num_cpus": 1, **options})

    def end(self, node: int, *, kill: bool = False) -> None:
        """End a node; `kill`: as a power cut does."""
        self._ask(end=node, kill=kill)
        self.two = [each for each in self.two if each != node]

    def replace(self) -> None:
        """Start nodes until there are two again."""
        while len(self.two) < 2:
            self.two.append(self.add())

    def workers(self) -> list[str]:
        """Actors of the engine on this cluster, as `ps` shows them."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                text = path.read_bytes().decode(errors="replace")
                if (
                    text.startswith("ray::Worker")
                    and (path.parent / "cwd").readlink() == self._work
                ):
                    found.append(f"{path.parent.name} {text}")
        return found

    def _ask(self, **message: Any) -> int:
        assert self._host.stdin is not None and self._host.stdout is not None
        print(json.dumps(message), file=self._host.stdin, flush=True)
        answer = json.loads(self._host.stdout.readline() or "{}")
        assert answer, "the host of the cluster has ended; its error is above"
        self.address = answer["address"]
        return int(answer["number"])

    def close(self) -> None:
        self._host.communicate(timeout=120)


@pytest.fixture(scope="package")  # not longer: other tests count the processes of this one
def nodes() -> Iterator[Nodes]:
    with tempfile.TemporaryDirectory(
        prefix="r", ignore_cleanup_errors=True
    ) as name:  # short: sockets have long names
        found = Nodes(Path(name))
        try:
            yield found
        finally:
            ray.shutdown()
            found.close()


@pytest.fixture
def two_nodes(nodes: Nodes) -> Nodes:
    """The cluster with two nodes; this process is not connected to it."""
    ray.shutdown()
    nodes.replace()
    return nodes


@pytest.fixture
def connected(nodes: Nodes) -> Nodes:
    """The cluster with two nodes, to which this process is connected."""
    nodes.replace()
    if not ray.is_initialized():
        ray.init(nodes.address, log_to_driver=False, logging_level="ERROR")
    return nodes


def wait_until(condition: Callable[[], object], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not so after {seconds} s"
        time.sleep(0.05)
