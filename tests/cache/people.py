"""Who else is on this machine?  Children that run as another user, or under a tracer, for tests that need one."""

import os
import shutil
import subprocess
import sys

import pytest

NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
with_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


# Everything is imported first: the other user may have no right to read the interpreter's own folder.
BECOME = """
import contextlib, encodings.idna, os, sys, traceback
import numpy, pyarrow
import penstock.api, penstock.cli.stores, penstock.engines, penstock.loader, penstock.recipe, penstock.report.progress
import penstock.store.inventory, penstock.store.verify, penstock.store.miss, penstock.templates
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
"""


def run(
    script: str, *, uid: int | None = None, before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """A Python process of its own, as this user or another."""
    return subprocess.run(
        command(script, uid=uid, before=before),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def command(script: str, *, uid: int | None = None, before: tuple[str, ...] = ()) -> list[str]:
    become = "" if uid is None else BECOME.format(uid=uid)
    return [*before, sys.executable, "-c", become + script]
