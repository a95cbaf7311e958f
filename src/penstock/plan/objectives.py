"""What a sample becomes on its way into a row: the setting `objective`, and the plugins of the group `objectives` that it names.

The core has no objective of its own.  A plugin says which settings it takes, and opens an `Objective` (types.py) for the stores of a run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Protocol

from penstock import plugins
from penstock.errors import PlanError
from penstock.types import Objective
from penstock.words import did_you_mean

_OWN = ("name", "version")


class MakeObjective(Protocol):
    """Opens an objective for the stores of a run."""

    def __call__(
        self, settings: Any, *, seed: int, names: Sequence[str], stores: Sequence[Any], run: Any
    ) -> Objective:
        """settings: of the objective.  names: of the stores, which seed its noise.  run: the `PlanSettings`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectivePlugin:
    """A plugin of the group `objectives`."""

    settings: type  # a frozen dataclass whose fields are made with `penstock.settings.setting`
    make: MakeObjective
    version: int = 1  # raise it when the same settings give other samples


def read_objective(value: Any) -> dict[str, Any] | None:
    """Return the objective with all its settings, as plain values: the name alone stands for its defaults."""
    if value is None:
        return None
    names = plugins.names("objectives")
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise PlanError(
            f"objective is {value!r}, expected the name of one ({', '.join(names)}), or a mapping of its name and settings, such as "
            f"{{'name': 'fim', 'rate': 0.5}}"
        )
    name = value["name"]
    if name not in names:
        hint = did_you_mean(name, names) or f"; there are {', '.join(names) or 'none'}"
        raise PlanError(
            f"objective {name!r} does not exist{hint}{plugins.not_installed('objectives', name)}"
        )
    plugin = _plugin(name)
    version = value.get("version", plugin.version)
    if version != plugin.version:
        raise PlanError(
            f"objective {name!r} has version {plugin.version} here, and version {version!r} is asked for: it would make other samples"
        )
    settings = _settings(name, plugin, {key: value[key] for key in value if key not in _OWN})
    plain = {key: list(each) if isinstance(each, tuple) else each for key, each in settings.items()}
    return {"name": name, "version": plugin.version, **plain}


def open_objective(run: Any, names: Sequence[str], stores: Sequence[Any]) -> Objective | None:
    """Return the objective that a run's settings name, for these stores; None if they name none."""
    if run.objective is None:
        return None
    options = {key: value for key, value in run.objective.items() if key not in _OWN}
    plugin = _plugin(run.objective["name"])
    settings = plugin.settings(**options)
    return plugin.make(settings, seed=run.seed, names=names, stores=stores, run=run)


def _plugin(name: str) -> ObjectivePlugin:
    plugin = plugins.load("objectives", name)
    assert isinstance(plugin, ObjectivePlugin), plugin
    return plugin


def _settings(name: str, plugin: ObjectivePlugin, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of an objective, checked."""
    declared = fields(plugin.settings)
    names = [setting.name for setting in declared]
    for key in options:
        if key not in names:
            hint = did_you_mean(str(key), names) or f"; it has {', '.join(names)}"
            raise PlanError(f"objective {name!r} has no setting {key!r}{hint}")
    for setting in declared:
        if setting.default is MISSING and setting.name not in options:
            raise PlanError(
                f"objective {name!r} needs its setting {setting.name!r}: {setting.metadata['doc']}"
            )
    return asdict(plugin.settings(**options))
