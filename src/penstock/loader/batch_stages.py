"""Options of a Loader that plugins declare, and the stages that users ask for with them: they change the arrays of batches.

Such stages come after those of columns, and before the user's collate.  A plugin is imported only when a Loader is given an option that
the core does not have, so a Loader without one pays nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginOptions:
    """The options of a Loader that plugins declare."""

    stages: Mapping[str, tuple[BatchStage, Any]]  # name → the stage's plugin, its settings
    others: Mapping[str, Any]  # those that stages of columns and supplies read, by name


def take_plugin_options(options: dict[str, Any], core_settings: Iterable[type]) -> PluginOptions:
    """Remove from `options` what plugins declare, and return it; refuse values that are not allowed.

    core_settings: dataclasses of the core's own settings.
    """
    own_names = {each.name for owner in core_settings for each in fields(owner)}
    if options.keys() <= own_names:
        return PluginOptions(stages={}, others={})
    stages: dict[str, tuple[BatchStage, Any]] = {}
    for name, plugin in plugins.every("batch_stages"):
        of_plugin = taken(options, plugin.settings)
        if of_plugin:
            stages[name] = plugin, plugin.settings(**of_plugin)
    others: dict[str, Any] = {}
    for _, declaration in plugins.every("settings"):
        if declaration.function != "Loader":
            continue
        of_plugin = taken(options, declaration.settings)
        if of_plugin:
            declaration.settings(**of_plugin)  # refuses values that are not allowed
            others |= of_plugin
    return PluginOptions(stages=stages, others=others)
