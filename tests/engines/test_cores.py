"""Are cores counted as this process may use them: affinity, cgroups of both versions, other ranks on the machine?"""

import os
from pathlib import Path

import pytest

from penstock.engines.local import cgroup_cores, num_cores


def machine(root: Path, groups: str, **files: str) -> Path:
    """A root with a `proc` and a `sys`; file names give folders with `__`."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("-", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_version_two_takes_the_tightest_limit_on_the_way_up(tmp_path: Path) -> None:
    files = {
        "a__b__cpu.max": "max 100000\n",
        "a__cpu.max": "350000 100000\n",
        "cpu.max": "900000 100000\n",
    }
    assert cgroup_cores(machine(tmp_path, "0::/a/b\n", **files)) == 3


def test_version_one_has_a_quota_and_a_period(tmp_path: Path) -> None:
    files = {"cpu__cpu.cfs_quota_us": "-1\n", "cpu__cpu.cfs_period_us": "100000\n"}
    files |= {"cpu__job__cpu.cfs_quota_us": "50000\n", "cpu__job__cpu.cfs_period_us": "100000\n"}
    assert (
        cgroup_cores(machine(tmp_path, "4:memory:/x\n3:cpu,cpuacct:/job\n0::/\n", **files)) == 1
    )  # never none


def test_a_path_of_the_host_does_not_hide_the_limit_of_a_container(tmp_path: Path) -> None:
    groups = "2:cpu,cpuacct:/docker/abcdef\n"
    files = {
        "cpu,cpuacct__cpu.cfs_quota_us": "200000\n",
        "cpu,cpuacct__cpu.cfs_period_us": "100000\n",
    }
    assert cgroup_cores(machine(tmp_path, groups, **files)) == 2


@pytest.mark.parametrize("text", ["max 100000\n", "", "nonsense\n", "0 0\n"])
def test_no_limit_is_none(tmp_path: Path, text: str) -> None:
    assert cgroup_cores(machine(tmp_path, "0::/\n", **{"cpu.max": text})) is None
    assert cgroup_cores(tmp_path / "nothing here") is None


def test_cores_are_those_of_affinity_and_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    allowed = os.sched_getaffinity(0)
    assert num_cores(root=tmp_path) == len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert num_cores(root=tmp_path) == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert num_cores(root=machine(tmp_path, "0::/\n", **{"cpu.max": "100000 100000\n"})) == 1


def test_ranks_share_the_cores_unless_they_are_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    for ranks, cores in (("1", 64), ("8", 8), ("64", 1), ("100", 1), ("", 64), ("many", 64)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        assert num_cores(root=tmp_path) == cores
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert num_cores(root=tmp_path) == 8
