"""Does a run go on exactly where it stopped?  Cut at many places, resumed under other numbers of ranks, as from a file."""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

Row = tuple[tuple[int, ...], ...]  # spans: source, sample, start, stop
RankLoader = Callable[[int, int], Any]

_ELASTIC = ("pad", "wrap")  # tails under which the rows of a run do not depend on the size of a step


def check_resume(
    make: RankLoader,
    *,
    world_sizes: Sequence[int] = (1, 2, 3),
    cuts: int = 12,
    max_steps: int = 200,
    passes: int = 1,
    rows: Callable[[Any], list[Any]] | None = None,
) -> None:
    """What comes after a cut is what would have come, wherever the cut is and on however many ranks the run goes on.

    make: `make(rank, world_size)` gives the loader of one rank, at its start.
    cuts: how many places to cut at, for each world size; the first and the last step are among them.
    max_steps: of a longer run, only so many steps are looked at.
    passes: cut in so many passes over the loader, each after those before it were taken whole.
    rows: what a batch holds, as a list of comparable rows, an empty one for padding; needed for batches that are not Penstock's.

    A tail that drops or repeats rows makes the end of an epoch depend on the size of a step; then each run is resumed on as
    many ranks as it had.
    """
    look = rows or _rows
    for number in range(passes):
        _check_pass(_after(make, number), make, look, world_sizes, cuts, max_steps)


def _after(make: RankLoader, passes: int) -> RankLoader:
    """Loaders that have finished so many passes."""

    def made(rank: int, world_size: int) -> Any:
        loader = make(rank, world_size)
        for _ in range(passes):
            for _ in loader:
                pass
        return loader

    return made if passes else make


def _check_pass(
    make: RankLoader, new: RankLoader, look: Any, world_sizes: Sequence[int], cuts: int, max_steps: int
) -> None:
    """Cut loaders of `make`, which may have passes behind them, and go on with loaders of `new`, which have none."""
    whole = {size: _steps(_ranks(make, size), look, max_steps) for size in world_sizes}
    elastic = _is_elastic(make(0, world_sizes[0]))
    if elastic:
        _check_one_order(whole)
    for before in world_sizes:
        for cut in _spread(len(whole[before]), cuts):
            if not cut and make is not new:
                continue  # the state is that of the end of the pass before, of which nothing is left
            state = _state_at(make, before, cut)
            done = [row for step in whole[before][:cut] for row in step]
            for after in world_sizes if elastic else (before,):
                case = f"cut after step {cut} of {before} ranks, resumed on {after}"
                _check_goes_on(new, look, state, done, whole[after], (after, max_steps), case)


def _check_goes_on(
    make: RankLoader, look: Any, state: Any, done: list[Row], whole: list[list[Row]], world: tuple[int, int], case: str
) -> None:
    size, max_steps = world
    ranks = _ranks(make, size)
    for rank in ranks:
        rank.load_state_dict(state)
        again = _plain(rank.state_dict(), case)
        assert again == state, (
            f"{case}: a state that was just loaded is saved as another one: {again} instead of {state}"
        )
    found = done + [row for step in _steps(ranks, look, max_steps) for row in step]
    expected = [row for step in whole for row in step]
    common = min(len(found), len(expected))
    for number in range(common):
        assert found[number] == expected[number], (
            f"{case}: row {number} is {found[number]}, expected {expected[number]}; {len(done)} rows came before the cut"
        )
    is_whole = len(whole) < max_steps
    assert not is_whole or len(found) == len(expected), (
        f"{case}: {len(found)} rows in all, expected {len(expected)}; {len(done)} came before the cut"
    )
    assert common > len(done) or len(expected) <= len(done), f"{case}: nothing came after the cut"


def _check_one_order(whole: dict[int, list[list[Row]]]) -> None:
    """Ranks do not change the order."""
    flat = {size: [row for step in steps for row in step] for size, steps in whole.items()}
    (first, expected), *others = flat.items()
    for size, found in others:
        for number in range(min(len(found), len(expected))):
            assert found[number] == expected[number], (
                f"on {size} ranks row {number} is {found[number]}, on {first} ranks {expected[number]}: the order depends on the ranks"
            )


def _state_at(make: RankLoader, size: int, cut: int) -> Any:
    """What every rank saves after so many steps: the same, and plain JSON."""
    ranks = _ranks(make, size)
    for batches in [iter(rank) for rank in ranks] if cut else []:
        taken = sum(1 for _ in islice(batches, cut))
        assert taken == cut, f"a rank of {size} ended after {taken} steps, the others go on to {cut}"
    case = f"after step {cut} of {size} ranks"
    states = [_plain(rank.state_dict(), case) for rank in ranks]
    for number, state in enumerate(states):
        assert state == states[0], f"{case}, rank {number} saves {state}, rank 0 saves {states[0]}"
    return states[0]


def _ranks(make: RankLoader, size: int) -> list[Any]:
    return [make(rank, size) for rank in range(size)]


def _steps(ranks: list[Any], look: Callable[[Any], list[Any]], max_steps: int) -> list[list[Any]]:
    """Rows of each step in the global order: row i of a step goes to rank i modulo world size.  Without padding."""
    steps = []
    for batches in islice(_together(ranks), max_steps):
        parts = [look(batch) for batch in batches]
        sizes = {len(part) for part in parts}
        assert len(sizes) == 1, f"ranks were handed different numbers of rows in one step: {sorted(sizes)}"
        steps.append([row for place in zip(*parts, strict=True) for row in place if row])
    return steps


def _together(ranks: list[Any]) -> Iterator[list[Any]]:
    walks = [iter(rank) for rank in ranks]
    while True:
        batches = [next(walk, None) for walk in walks]
        ended = [batch is None for batch in batches]
        if all(ended):
            return
        assert not any(ended), f"rank {ended.index(True)} of {len(ranks)} has no more steps, and others have"
        yield batches


def _rows(batch: Any) -> list[Row]:
    return [tuple(tuple(span) for span in batch.rows[row].tolist()) for row in range(batch.rows.num_rows)]


def _is_elastic(loader: Any) -> bool:
    settings = getattr(getattr(loader, "plan", None), "settings", None)
    return settings is None or settings.tail in _ELASTIC


def _plain(state: Any, case: str) -> Any:
    try:
        plain = json.loads(json.dumps(state))
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{case}, the state is no plain JSON: {error}") from error
    assert plain == state, f"{case}, the state changes on its way through JSON: {plain}"
    return plain


def _spread(num_steps: int, cuts: int) -> list[int]:
    """Places to cut at: before the first step, after the last, and between."""
    return sorted({round(place * num_steps / max(cuts - 1, 1)) for place in range(cuts)})
