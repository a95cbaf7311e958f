"""Stages that the user asks for with a setting: a plugin declares the settings, and changes the arrays of batches.

They come after the stages of columns, and before the user's collate.  A plugin is imported only when a Loader is given one of its settings,
so a Loader without them pays nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Protocol

from penstock import plugins
from penstock.loader.column_stages import OpenStage
from penstock.loader.kind import SampleKind
from penstock.plan.settings import PlanSettings
from penstock.settings import taken
from penstock.types import Column


class BatchStage(Protocol):
    """A plugin of the group `batch_stages`."""

    settings: type  # a dataclass of settings, which the group `settings` has, too, for the function Loader

    def open(
        self,
        settings: Any,
        *,
        kind: SampleKind,
        columns: Iterable[Column],
        order: PlanSettings,
        of_loader: Mapping[str, Any],
    ) -> OpenStage | None:
        """Return the stage that these settings ask for, or None; refuse a Loader whose batches it cannot change.

        of_loader: the settings of the Loader and of the layout, by name.
        """


AskedStages = Mapping[str, tuple[BatchStage, Any]]  # name → the plugin, its settings


def take_settings(options: dict[str, Any], core_settings: Iterable[type]) -> AskedStages:
    """Remove from `options` what plugins declare, and return these plugins with their settings, by name.

    core_settings: dataclasses of the core's own settings.
    """
    own_names = {each.name for owner in core_settings for each in fields(owner)}
    if options.keys() <= own_names:
        return {}
    asked: dict[str, tuple[BatchStage, Any]] = {}
    for name, plugin in plugins.every("batch_stages"):
        of_plugin = taken(options, plugin.settings)
        if of_plugin:
            asked[name] = plugin, plugin.settings(**of_plugin)
    return asked
