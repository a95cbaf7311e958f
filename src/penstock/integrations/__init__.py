"""Former import paths: `penstock.extras.trainers.trl` is `penstock.trainers.trl` now.

Python asks a finder on `sys.meta_path` for a module that it does not know.  The finder here answers for modules of this package: it
imports the module under its present name and returns that module itself, so that there is one class of each name.
"""

import importlib
import logging
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_RL = ("grpo", "skyrl", "slime", "verl")

_log = logging.getLogger("penstock")


def present_name(former: str) -> str:
    """Return the present name of a module of `penstock.integrations`."""
    module = former.removeprefix(f"{__name__}.")
    package = "rl" if module in _RL else "trainers"
    return f"penstock.{package}.{module}"


class _Forward(MetaPathFinder, Loader):
    """Import a former module under its present name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{__name__}."):
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        present = present_name(spec.name)
        module = importlib.import_module(present)
        _log.warning("%s is called %s now; import it from there", spec.name, present)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module was executed under its present name."""


sys.meta_path.append(_Forward())
