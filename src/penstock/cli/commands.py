"""The commands about data and recipes.  Each imports what it needs when it runs, calls the library and prints."""

import json
import secrets
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click import FloatRange, UsageError, option
from click.exceptions import Exit

from penstock.cli import screen
from penstock.cli.answers import (
    answers,
    of_bench,
    of_check,
    of_plan,
    of_prepare,
    of_show,
    of_state,
    of_stats,
    of_trace,
)
from penstock.cli.request import COUNT, FROM_0, LOADER, RECIPE, CommandRequest, command
from penstock.words import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.loader import Loader
    from penstock.store import Store

_PATH = click.Path(path_type=Path)
_MOST_COMPARED = 200_000  # rows of each dataset that `check` looks for in the others


@answers(of_check)
@command(*RECIPE, "max_length")
@option(
    "--records",
    "--rows",
    "rows",
    type=FROM_0,
    default=2000,
    help="Number of records to check, spread over each dataset; 0 checks all of them.",
)
def check(request: CommandRequest, rows: int) -> None:
    """Check a recipe and its data for problems.

    Bad records, template, chat template, trained tokens, BOS and EOS, records without loss, records that are too long, duplicates,
    records that eval and training sets share, disk:
    each is ok, a warning or a failure; warnings and failures are printed.  Nothing is prepared.  Exit code 1 if anything fails.
    """
    recipe = request.recipe()
    from penstock.recipe.run import check_recipe
    from penstock.report import numbers, text
    from penstock.report.overlap import Overlaps

    found = []
    overlaps = Overlaps(at_most=_MOST_COMPARED if rows else sys.maxsize)
    for part in recipe.parts:
        for checked in check_recipe(recipe, part=part, rows=rows, overlaps=overlaps):
            found.append((part, checked))
            if not request.json:
                screen.show(text.checked(checked, verbose=request.verbose))
    answers = [verdict.answer for _, checked in found for verdict in checked.verdicts]
    if request.json:
        screen.as_json([{"part": part, **numbers.plain(checked)} for part, checked in found])
    else:
        passed = f"{plural(answers.count('ok'), 'check')} passed"
        listed = "" if request.verbose else " (-v lists them)"
        problems = f"{plural(answers.count('fail'), 'failure')}, {plural(answers.count('warn'), 'warning')}"
        screen.say(f"{problems}, {passed}{listed}")
    if "fail" in answers:
        raise Exit(1)


@answers(of_prepare)
@command(*RECIPE, "name", "engine")
@option("--refresh", is_flag=True, help="Prepare every shard again.")
@option(
    "--status",
    is_flag=True,
    help="Make nothing; show how far this and other processes on the same cache are.",
)
@option(
    "--megatron",
    type=_PATH,
    help="Folder: also write each dataset there as NAME.bin and NAME.idx.",
)
@option(
    "--drop-loss-mask", is_flag=True, help="With --megatron: also if some tokens are not trained."
)
def prepare(
    request: CommandRequest,
    refresh: bool,
    status: bool,
    megatron: Path | None,
    drop_loss_mask: bool,
) -> None:
    """Tokenize all datasets of a recipe into the cache.

    Eval sets too.  What the cache has is not made again; an interrupted run continues where it stopped.  The same command may run on many
    machines at once, on one cache: they share the work.
    """
    if status:
        _show_status(request)
        return
    recipe = request.recipe(
        **({"refresh": True} if refresh else {}), progress=screen.progress(as_json=request.json)
    )
    from penstock.recipe.run import prepare_recipe

    stores = []
    for part in recipe.parts:
        stores += [(part, name, store) for name, store in prepare_recipe(recipe, part=part).items()]
    written = []
    for part, name, store in stores if megatron else ():
        prefix = Path(str(megatron)) / (name if part == "train" else f"{name}_eval")
        written.append(store.to_megatron(prefix, drop_loss_mask=drop_loss_mask))
    if request.json:
        from penstock.store.inventory import summary

        found = [{"part": part, "data_set": name, **summary(store)} for part, name, store in stores]
        for each, files in zip(found, written, strict=False):
            each["megatron"] = files._asdict()
        if not recipe.file:
            del found[0]["part"], found[0]["data_set"]
        screen.as_json(found if recipe.file else found[0])
        _refuse_empty(stores)
        return
    for part, name, store in stores:
        called = store.name if not recipe.file else name if part == "train" else f"{name} (eval)"
        screen.say(f"{store.fingerprint[:8]}  {called}: {store.describe()}")
    for files in written:
        lost = f", {files.untrained:,} of them not trained by the recipe" if files.untrained else ""
        screen.say(
            f"{files.path}.bin and .idx: {plural(files.sequences, 'sequence')}, {plural(files.tokens, 'token')}{lost}"
        )
    screen.note(f"in {stores[0][2].cache.where}")
    _refuse_empty(stores)


def _refuse_empty(stores: "Sequence[tuple[str, str, Store]]") -> None:
    """Raise if a dataset has nothing to train on: whatever comes next would fail."""
    from penstock.errors import SourceError

    for part, name, store in stores:
        why = store.why_empty()
        if why is not None:
            called = name if part == "train" else f"{name} (eval)"
            raise SourceError(f"{called}: {why}; look at the data with penstock check")


def _show_status(request: CommandRequest) -> None:
    recipe = request.recipe()
    from penstock.recipe.run import recipe_status

    found = [
        (part, name, each)
        for part in recipe.parts
        for name, each in recipe_status(recipe, part=part).items()
    ]
    if request.json:
        screen.as_json(
            [{"part": part, "data_set": name, **asdict(each)} for part, name, each in found]
        )
        return
    for part, name, each in found:
        screen.say(f"{name if part == 'train' else f'{name} (eval)'}: {each}")


@answers(of_show)
@command(*RECIPE, *LOADER)
@option("--record", "--row", "row", type=int, help="Which record, counted from 0; -1 is the last.")
@option("--step", type=FROM_0, help="A step instead: its rows, drawn as segments.")
@option("--random", is_flag=True, help="A record chosen at random.")
@option("--source", help="Name of the dataset, if there are several.")
def show(
    request: CommandRequest, row: int | None, step: int | None, random: bool, source: str | None
) -> None:
    """Show one record as data, as tokens, and where it is trained.

    Trained tokens are coloured, or between ⟦ and ⟧.  Of a conversation, each turn begins with its number and role, headers are coloured,
    or between ‹ and ›, ends of turns coloured, or between « and ».  With --step, the rows of a step instead, drawn as segments.
    If the data is not prepared, one record is read and its position in training is not shown; --step prepares all of it first.
    """
    if sum((row is not None, step is not None, random)) > 1:
        raise UsageError("give one of --record, --step and --random")
    recipe = request.recipe()
    from penstock.recipe.run import open_recipe, opened_settings
    from penstock.report import numbers, text, trace

    opened = open_recipe(recipe, part=request.part, rows=1)
    names = [each.name for each in opened]
    if source is not None and source not in names:
        raise UsageError(f"unknown dataset {source!r}, expected one of {', '.join(names)}")
    number = 0 if source is None else names.index(source)
    loader = request.prepared_loader(recipe, opened)
    if step is not None:  # its rows depend on the length of every sample
        _show_step(request, loader or request.loader(recipe), step)
        return
    if random:
        row = secrets.randbelow(max(len(opened[number].rows), 1))
    if loader is None:
        chosen, store = opened[number].prepare_row(row or 0)
        settings = opened_settings(recipe, opened, part=request.part)
        found = trace.unprepared(store, settings, chosen, opened[number].name)
    else:
        found = trace.record(loader, row or 0, source=number)
    drawn = None
    if loader is not None and found.landings:
        position = found.landings[0]
        drawn = trace.row(loader, position.step, trace.place_of(loader, position))
    pieces = [] if drawn is None else text.row(drawn, width=screen.width())
    request.answer({**numbers.plain(found), "packed_row": drawn}, [*text.record(found), *pieces])


def _show_step(request: CommandRequest, loader: "Loader", step: int) -> None:
    from penstock.report import text, trace

    num_rows = loader.look_up(step).rows.num_rows
    rows = [trace.row(loader, step, place) for place in range(num_rows)]
    drawn = ((text.row(each, width=screen.width()), text.tokens(each.tokens)) for each in rows)
    request.answer(rows, (piece for pieces in drawn for each in pieces for piece in each))


@answers(of_stats)
@command(*RECIPE, *LOADER)
@option(
    "--compare-length", type=COUNT, multiple=True, help="A max_length to compare; can be repeated."
)
@option("--compare-packing", multiple=True, help="A packing to compare; can be repeated.")
def stats(
    request: CommandRequest, compare_length: tuple[int, ...], compare_packing: tuple[str, ...]
) -> None:
    """Show lengths, tokens, dropped samples, and other packings.

    Tokens and trained tokens of each dataset, a histogram of lengths, what is dropped and where, and the same data under
    other max_length and packings.
    """
    loader = request.loader(request.recipe())
    from penstock.report import numbers, text
    from penstock.report.columns import column_reports

    sources = numbers.sources(loader)
    lengths = numbers.lengths(numbers.stores(loader).values())
    settings = loader.plan.settings
    counters = numbers.counters(loader)
    fits = numbers.fits(
        loader,
        max_lengths=list(compare_length) or None,
        packings=list(compare_packing) or None,
        known=counters,
    )
    chosen = {"max_length": settings.max_length, "packing": settings.packing}
    found = {"sources": sources, "lengths": lengths, **chosen, "counters": counters, "fits": fits}
    column_tables = []
    for name, report in column_reports():
        counts = report.count(numbers.stores(loader))
        found[name] = counts
        column_tables += report.table(counts)
    said = f"max_length {settings.max_length:,}, on_overlong {settings.on_overlong}"
    histogram = text.histogram(lengths, width=screen.width(), max_length=settings.max_length)
    table = text.fits(fits, chosen=(settings.max_length, settings.packing))
    pieces = [*text.sources(sources), *column_tables, *histogram]
    request.answer(found, [*pieces, *text.dropped(sources, counters, settings=said), *table])


@answers(of_plan)
@command(*RECIPE, *LOADER)
@option("--epoch", type=FROM_0, default=0, help="Which epoch, counted from 0.")
@option("--compare", type=_PATH, help="A saved state, as JSON: does it fit?  Exit code 1 if not.")
@option(
    "--worst",
    is_flag=True,
    help="Also the steps of the run with the most tokens, the longest row and the most media: a dry run of them finds out-of-memory.",
)
def plan(request: CommandRequest, epoch: int, compare: Path | None, worst: bool) -> None:
    """Show steps, rows, tokens, shares and the order of an epoch."""
    recipe = request.recipe()
    loader = request.loader(recipe)
    from penstock.loader.losses import excessive_losses
    from penstock.recipe.keys import keys
    from penstock.report import numbers, text
    from penstock.report.trace import compare_state

    fit = None if compare is None else compare_state(loader, saved_state(compare))
    found = numbers.epoch(loader, epoch)
    allowed = recipe.loader_options(request.part).get("max_dropped", keys()["max_dropped"].default)
    names = [source.name for source in loader.plan.sources]
    excess = excessive_losses(names, loader.stores, loader.plan.settings, allowed)
    worst_step = loader.worst_step() if worst and found.has_step else None
    if request.json:
        more = {"state": fit, "worst": worst_step}
        given = {name: numbers.plain(value) for name, value in more.items() if value is not None}
        screen.as_json({**numbers.plain(found), **given})
    else:
        shown = [*text.epoch(found), *text.mixing(found)]
        screen.show(shown if worst_step is None else [*shown, *text.worst(worst_step)])
        if fit is not None:
            screen.say(f"{compare}: {fit.why}", style="green" if fit.fits else "red")
        if not found.has_step:
            why = text.no_step(found)
            if found.steps:  # an epoch has steps, so it is the budget that leaves none
                why = str(loader.run.why_empty(can_cut=loader.parts.can_be_cut)[1])
            screen.say(why, style="red")
        if excess is not None:
            screen.say(excess, style="red")
    if not found.has_step or excess is not None or (fit is not None and not fit.fits):
        raise Exit(1)


@answers(of_trace)
@command(*RECIPE, *LOADER)
@option("--step", type=FROM_0, required=True, help="Which step, counted from 0.")
@option("--rank", type=FROM_0, help="Which rank; else all of them.")
@option(
    "--state",
    type=_PATH,
    help="A saved state, as JSON: steps from there on, under another world size too.",
)
@option(
    "--journal",
    type=_PATH,
    help="A saved state of a run whose mixture changed: its steps from the first one on.",
)
def trace(
    request: CommandRequest, step: int, rank: int | None, state: Path | None, journal: Path | None
) -> None:
    """List the records of a step by file and line.

    Nothing is run: the plan knows them.  Data that is not prepared is prepared first: a position depends on the lengths of all samples.
    """
    loader = request.loader(request.recipe())
    from penstock.report import text
    from penstock.report.trace import piece_notes
    from penstock.report.trace import step as trace_step

    if state is not None:
        loader.load_state_dict(saved_state(state))
    if journal is not None:
        loader.load_journal(saved_state(journal))
    found = trace_step(loader, step, rank=rank)
    request.answer(found, text.step(found, piece_notes(loader)))


@answers(of_state)
@command(*RECIPE, *LOADER)
@option("--state", type=_PATH, required=True, help="A saved state, as JSON.")
@option(
    "--changes",
    is_flag=True,
    help="Change the mixture of the run to that of the recipe, from this state on.",
)
@option(
    "-o",
    "--output",
    type=_PATH,
    help="Where to write the new state; default: next to the old one, as NAME-changed.json.",
)
def state_(request: CommandRequest, state: Path, changes: bool, output: Path | None) -> None:
    """Show where a saved state continues, or change its mixture.

    A state of another mixture is refused.  With --changes the run goes on with the sources and weights of the recipe: each source
    continues where it was, and the new state, with the journal of all changes, is written.
    """
    loader = request.loader(request.recipe())
    from penstock.errors import PlanError

    saved = saved_state(state)
    loader.load_state_dict(saved, changes=changes)
    new = loader.state_dict()
    written = None
    step, rows, words = (
        (saved["step"], saved["rows"], [])
        if new["plan"] == saved["plan"]
        else loader.run.last_change()
    )
    if words:
        written = output or state.with_name(f"{state.stem}-changed.json")
        if written.exists():
            raise PlanError(f"{written}: exists already; choose another name with --output")
        written.write_text(json.dumps(new), encoding="utf-8")
    if request.json:
        screen.as_json(
            {
                "step": step,
                "rows": rows,
                "changes": words,
                "state": None if written is None else str(written),
            }
        )
        return
    screen.say(
        f"{state}: step {saved['step']:,}, {plural(saved['rows'], 'row')} delivered", style="bold"
    )
    for word in words:
        screen.say(f"  {word}")
    if written is None:
        screen.say("nothing changes: the state fits this recipe", style="green")
    else:
        screen.say(
            f"from step {step:,} on, after {plural(rows, 'row')}; wrote {written}", style="green"
        )


@answers(of_bench)
@command(*RECIPE, *LOADER)
@option(
    "--model-tokens-per-second",
    "model",
    type=FloatRange(min=0),
    help="Speed of the model; exit code 1 if the loader is slower.",
)
@option("--seconds", type=FloatRange(min=0.1), default=5.0, help="How long the loader is measured.")
@option(
    "--records",
    "--rows",
    "rows",
    type=COUNT,
    default=20_000,
    help="Number of records of each dataset to prepare, without the cache.",
)
def bench(request: CommandRequest, model: float | None, seconds: float, rows: int) -> None:
    """Measure preparation and loader, in tokens per second."""
    recipe = request.recipe(per_epoch=False, epochs=None, max_steps=None, max_tokens=None)
    loader = request.loader(recipe)
    from penstock.recipe.run import open_recipe
    from penstock.report import numbers, progress, text

    def prepare_some() -> list[Any]:
        options = {"num_proc": recipe.settings.get("num_proc"), "cache": False, "progress": "none"}
        return [
            each.prepare(first=rows, **options) for each in open_recipe(recipe, part=request.part)
        ]

    screen.quiet()  # epochs end while the loader is measured
    found = [
        progress.preparation_speed(prepare_some, model=model),
        progress.loading_speed(loader, seconds=seconds, model=model),
    ]
    values = [
        {
            **numbers.plain(each),
            "tokens_per_second": each.tokens_per_second,
            "headroom": each.headroom,
        }
        for each in found
    ]
    request.answer(values, text.speeds(found))
    if found[1].headroom is not None and found[1].headroom < 1:
        raise Exit(1)


def saved_state(path: Path) -> dict[str, Any]:
    """A loader's saved state, from a JSON file; also if a trainer wrapped it in another dict."""
    from penstock.errors import PlanError

    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = f"cannot be read as a saved state: {error}; expected JSON of loader.state_dict()"
        raise PlanError(f"{path}: {why}") from error
    found = _inner_state(value)
    if found is None:
        raise PlanError(
            f"{path}: contains no saved state, expected the JSON of loader.state_dict()"
        )
    return found


def _inner_state(value: Any, depth: int = 0) -> dict[str, Any] | None:
    if not isinstance(value, dict) or depth > 4:
        return None
    if "plan" in value and "block" in value:
        return value
    return next(
        (found for part in value.values() if (found := _inner_state(part, depth + 1))), None
    )
