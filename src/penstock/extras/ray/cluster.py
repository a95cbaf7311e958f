"""Which Ray cluster a process joins: one that the user has named, never one that happens to run on this machine."""

import contextlib
import logging
import os
from typing import Any

import ray

_log = logging.getLogger("penstock")


def options_of_init() -> dict[str, Any]:
    """Return the arguments of ray.init(): for the cluster that RAY_ADDRESS names, else for a new one on this machine.

    Without an address, ray.init() joins the cluster that was started last on this machine, which may be of another user, or of other
    work.  RAY_ADDRESS=auto asks for that.
    """
    if os.environ.get("RAY_ADDRESS"):
        return {"include_dashboard": False}
    running = _started_here()
    if running:
        _log.warning(
            "a Ray cluster runs at %s, and nothing says that this run is to join it: Ray starts on this machine alone; to join it, set "
            "RAY_ADDRESS=%s, or call ray.init() before",
            running,
            running,
        )
    return {"address": "local", "include_dashboard": False}


def _started_here() -> str | None:
    """Return the address of the cluster that ray.init() would find on this machine, for a message; None where Ray cannot say."""
    with contextlib.suppress(Exception):  # not part of Ray's public interface
        return ray._private.utils.read_ray_address() or None
    return None
