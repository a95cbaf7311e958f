"""`penstock losses`: what `LossBySource` has recorded, and which records stand out.  And what `penstock trace` says of each piece."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click import IntRange, option

from penstock.cli import screen
from penstock.cli.answers import Schema, answers, listed, record
from penstock.cli.request import LOADER, RECIPE, CommandRequest, command
from penstock.errors import PlanError

if TYPE_CHECKING:
    from penstock.extras.losses.table import RunLosses, SampleLosses
    from penstock.loader import Loader
    from penstock.report.text import TextBlock

_MOST_STEPS = 4  # of a sample, in a table


def _answer() -> Schema:
    from penstock.extras.losses.table import SampleLoss

    number = float | None  # a loss that is not a number is null
    sample = record(
        SampleLoss, where=str, loss=number, first_loss=number, excess=number, fall=number
    )
    by_source = record(loss=number, targets=int)
    bucket = tuple[int, number, int]
    return record(
        run_id=str,
        steps=list[int],
        missing_steps=int,
        by_source={"type": "object", "additionalProperties": by_source},
        by_position={"type": "object", "additionalProperties": listed(bucket)},
        highest=listed(sample),
        fastest_falling=listed(sample),
    )


@answers(_answer)
@command(*RECIPE, *LOADER)
@option("--run-id", help="The run whose losses are shown; else the recipe's run_id.")
@option("--count", type=IntRange(0, 100_000), default=10, help="Samples in each of the two lists.")
@option("--source", help="Only samples of this dataset.")
def losses(request: CommandRequest, run_id: str | None, count: int, source: str | None) -> None:
    """Show the losses of a run by dataset and position, and the records that stand out.

    LossBySource records them while a model trains.  Two lists name records by file and line: those whose loss is highest above the mean of
    their dataset at that time, and those whose loss falls fastest.
    """
    from penstock.extras.losses.table import read_losses
    from penstock.report.numbers import plain

    loader = request.loader(request.recipe())
    name = run_id or loader.settings.run_id
    if name is None:
        raise click.UsageError("which run? Pass --run-id, or write run_id: into the recipe")
    found = read_losses(name, root=_root(loader))
    highest = found.highest(count, source=source)
    falling = found.fastest_falling(count, source=source)
    if request.json:
        screen.as_json(
            {
                "run_id": name,
                "steps": list(found.steps),
                "missing_steps": found.num_missing,
                "by_source": {
                    each: {"loss": total / targets if targets else None, "targets": targets}
                    for each, (total, targets) in found.totals().items()
                },
                "by_position": found.by_position(),
                "highest": _as_json(loader, highest, plain),
                "fastest_falling": _as_json(loader, falling, plain),
            }
        )
    else:
        screen.show(_pieces(loader, name, found, highest, falling))


def _root(loader: "Loader") -> Any:
    from penstock.cache import open_cache

    return (loader.stores[0].cache or open_cache()).root


def _where(loader: "Loader", source: str, sample: int) -> str:
    stores = dict(zip(loader.run.names, loader.stores, strict=True))
    if source not in stores:
        return f"record {sample:,} of {source}, which the recipe does not have"
    return str(stores[source].source.locate(sample))


def _as_json(
    loader: "Loader", samples: "SampleLosses", plain: Callable[[Any], Any]
) -> list[dict[str, Any]]:
    return [
        {**plain(sample), "where": _where(loader, sample.source, sample.sample)}
        for sample in samples
    ]


def _pieces(
    loader: "Loader",
    name: str,
    found: "RunLosses",
    highest: "SampleLosses",
    falling: "SampleLosses",
) -> "list[TextBlock]":
    from penstock.report import text
    from penstock.words import plural

    first, last = found.steps
    head = (
        f"run {name}: losses of steps {first:,}–{last - 1:,}, {plural(len(found), 'trained piece')}"
    )
    pieces = [text.title(head)]
    if found.num_missing:
        sentence = f"{plural(found.num_missing, 'step')} in between have no losses: they were skipped, or not recorded"
        pieces.append(text.line(sentence, "warn"))
    rows: list[list[object]] = [
        [source, f"{total / targets:.4f}" if targets else "–", f"{targets:,}"]
        for source, (total, targets) in found.totals().items()
    ]
    pieces.append(text.table(["dataset", "#loss", "#targets"], rows))
    pieces.append(text.title("Loss by position in the sample"))
    by_position: list[list[object]] = [
        [source, f"from {begin:,}", f"{loss:.4f}", f"{targets:,}"]
        for source, buckets in found.by_position().items()
        for begin, loss, targets in buckets
    ]
    pieces.append(text.table(["dataset", "token", "#loss", "#targets"], by_position))
    pieces.append(text.title("Highest above the mean of their dataset"))
    pieces.append(_samples(loader, highest))
    if len(falling):
        pieces.append(text.title("Falling fastest, compared with their dataset"))
        pieces.append(_samples(loader, falling))
    return pieces


def _samples(loader: "Loader", samples: "SampleLosses") -> "TextBlock":
    from penstock.report import text

    rows: list[list[object]] = []
    for sample in samples:
        shown = ", ".join(f"{step}" for step in sample.steps[:_MOST_STEPS])
        more = ", …" if len(sample.steps) > _MOST_STEPS else ""
        rows.append(
            [
                _where(loader, sample.source, sample.sample),
                sample.source,
                f"{sample.loss:.3f}",
                f"{sample.excess:+.3f}",
                f"{sample.first_loss:.3f}",
                f"{sample.times:,}",
                f"{shown}{more}",
            ]
        )
    columns = ["record", "dataset", "#loss", "#above mean", "#first loss", "#times", "steps"]
    return text.table(columns, rows)


def notes_of_pieces(loader: "Loader") -> Callable[[str, int], str] | None:
    """Return what says in words what a sample's losses were; None if the run has recorded none.  For `penstock trace`."""
    from penstock.extras.losses.files import losses_folder
    from penstock.extras.losses.table import read_losses

    if loader.settings.run_id is None:
        return None
    root = _root(loader)
    if not losses_folder(root, loader.settings.run_id).is_dir():
        return None
    try:
        found = read_losses(loader.settings.run_id, root=root, plan=loader.plan.fingerprint)
    except PlanError:  # of another plan
        return None

    def note(source: str, sample: int) -> str:
        losses = found.of_sample(source, sample) if source in found.names else None
        return "" if losses is None else f"loss {losses.loss:.3f} ({losses.excess:+.3f})"

    return note
