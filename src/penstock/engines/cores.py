"""How many processes may work at once?  What affinity and cgroup leave to this process, shared with the other ranks here."""

import os
from pathlib import Path

# How many ranks a launcher has put on this machine: torchrun and accelerate, Open MPI, MPICH, MVAPICH.
_RANKS_HERE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE")


def num_cores(*, root: Path = Path("/")) -> int:
    """Cores that this process may use.  `root` is where `proc` and `sys` lie."""
    whole = os.cpu_count() or 1
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else whole
    limit = cgroup_cores(root)
    if limit is not None:
        whole, mine = min(whole, limit), min(mine, limit)
    # A launcher may have pinned each rank to cores of its own, and then they are shared out already.
    return max(1, min(mine, whole // _ranks_here()))


def _ranks_here() -> int:
    for name in _RANKS_HERE:
        if (text := os.environ.get(name, "")).isdecimal():
            return max(1, int(text))
    return 1


def cgroup_cores(root: Path) -> int | None:
    """Whole cores of the tightest cpu limit from this process's cgroup up to the root; None where there is none."""
    limits = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        folders = ("", "unified") if not controllers else (controllers, *controllers.split(","))
        if controllers and "cpu" not in controllers.split(","):
            continue
        for folder in folders:
            mount = root / "sys/fs/cgroup" / folder
            # Inside a container the path may be the host's, which is not to be seen here: the mount itself always is.
            places = [Path(path.lstrip("/")), *Path(path.lstrip("/")).parents]
            limits += [limit for place in places if (limit := _limit(mount / place)) is not None]
    return max(1, int(min(limits))) if limits else None


def _limit(group: Path) -> float | None:
    """Cores that one cgroup grants: version 2 says "quota period" in one file, version 1 uses two."""
    words = _read(group / "cpu.max").split()
    if not words:
        words = [_read(group / "cpu.cfs_quota_us").strip(), _read(group / "cpu.cfs_period_us").strip()]
    try:
        quota, period = int(words[0]), int(words[1])
    except (ValueError, IndexError):  # "max", or no such file
        return None
    return quota / period if quota > 0 and period > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
