"""The contract of resuming: a run continues exactly where it stopped, on any number of ranks."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any

from penstock.loader.batch import Batch
from penstock.testing.same import plain
from penstock.words import spread

Row = tuple[tuple[int, ...], ...]  # spans: source, sample, start, stop
RankLoader = Callable[[int, int], Any]

_ELASTIC = (
    "pad",
    "wrap",
)  # tails under which the rows of a run do not depend on the size of a step


def check_resume(
    make: RankLoader,
    *,
    world_sizes: Sequence[int] = (1, 2, 3),
    cuts: int = 12,
    max_steps: int = 200,
    passes: int = 1,
    rows: Callable[[Any], list[Any]] | None = None,
) -> None:
    """Stop a run at many steps, resume it on other numbers of ranks, and compare the rows with those of a run without a stop.

    make: `make(rank, world_size)` returns the loader of one rank, at its start.
    cuts: how many steps to stop after, for each world size; the first and the last step are among them.
    max_steps: compare only so many steps of a longer run.
    passes: stop in so many passes over the loader, each after the passes before it were read to the end.
    rows: the rows of a batch as a list of comparable values, an empty one for padding; needed for batches that are not Penstock's.

    With a last step that drops or repeats rows, the end of an epoch depends on the size of a step; then each run is resumed on as
    many ranks as it had.
    """
    for number in range(passes):
        _ResumeCheck(make=make, passes=number, rows=rows or _rows, max_steps=max_steps).run(
            world_sizes, cuts
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResumeCheck:
    """One check: stop loaders after `passes` passes and some steps, and resume with new loaders."""

    make: RankLoader
    passes: int
    rows: Callable[[Any], list[Any]]
    max_steps: int

    def run(self, world_sizes: Sequence[int], cuts: int) -> None:
        whole = {size: self.steps(self.started(size)) for size in world_sizes}
        is_elastic = self.is_elastic(world_sizes[0])
        if is_elastic:
            check_same_order(whole)
        for size in world_sizes:
            resumed_on = world_sizes if is_elastic else (size,)
            self.check_every_cut(size, resumed_on, whole, cuts)

    def is_elastic(self, world_size: int) -> bool:
        """Return whether the rows of a run do not depend on the number of ranks; assumed of other libraries' loaders."""
        settings = getattr(getattr(self.make(0, world_size), "plan", None), "settings", None)
        return settings is None or settings.last_step in _ELASTIC

    def check_every_cut(
        self,
        size: int,
        resumed_on: Sequence[int],
        whole: Mapping[int, list[list[Any]]],
        cuts: int,
    ) -> None:
        """Stop runs on `size` ranks after some of their steps, and resume each on other numbers of ranks."""
        steps = whole[size]
        for cut in sorted({*spread(len(steps), max(cuts - 1, 1)), len(steps)}):
            if not cut and self.passes:
                continue  # the state after the pass before, which has nothing left
            state = self.state_at(size, cut)
            done = _flat(steps[:cut])
            for new_size in resumed_on:
                case = f"cut after step {cut} of {size} ranks, resumed on {new_size}"
                self.check_resumed(state, done, whole[new_size], new_size, case)

    def started(self, size: int) -> list[Any]:
        """Return loaders of all ranks after `passes` passes."""
        ranks = [self.make(rank, size) for rank in range(size)]
        for loader in ranks:
            for _ in range(self.passes):
                deque(loader, maxlen=0)
        return ranks

    def steps(self, ranks: list[Any]) -> list[list[Any]]:
        """Return the rows of each step in the global order, without padding."""
        steps = []
        for batches in islice(zip_longest(*ranks), self.max_steps):
            ended = [rank for rank, batch in enumerate(batches) if batch is None]
            assert not ended, f"rank {ended[0]} of {len(ranks)} has no more steps, and others have"
            steps.append(self.rows_of_step(batches))
        return steps

    def rows_of_step(self, batches: Sequence[Any]) -> list[Any]:
        """Return the rows of one step in the global order, without padding.  batches: one of each rank."""
        rows_of_ranks = [self.rows(batch) for batch in batches]
        sizes = {len(rows) for rows in rows_of_ranks}
        assert len(sizes) == 1, (
            f"ranks were given different numbers of rows in one step: {sorted(sizes)}"
        )
        places_of_ranks = _places(batches, sizes.pop())
        row_at: dict[int, Any] = {}  # by its place in the global order
        for rows, places in zip(rows_of_ranks, places_of_ranks, strict=True):
            row_at.update(zip(places, rows, strict=False))  # rows without a place: see below
        assert len(row_at) == sum(map(len, rows_of_ranks)), (
            "a batch has more rows than its rank was assigned; pass other rows="
        )
        in_order = [row_at[place] for place in sorted(row_at)]
        return [row for row in in_order if row]  # an empty row is padding

    def state_at(self, size: int, cut: int) -> Any:
        """Return what every rank saves after `cut` steps: the same state, as plain JSON."""
        ranks = self.started(size)
        for batches in [iter(rank) for rank in ranks] if cut else []:
            taken = sum(1 for _ in islice(batches, cut))
            assert taken == cut, (
                f"a rank of {size} ended after {taken} steps, the others go on to {cut}"
            )
        case = f"after step {cut} of {size} ranks"
        states = [plain(rank.state_dict(), f"{case}, the state") for rank in ranks]
        for number, state in enumerate(states):
            assert state == states[0], (
                f"{case}, rank {number} saves {state}, rank 0 saves {states[0]}"
            )
        return states[0]

    def check_resumed(
        self, state: Any, done: list[Row], whole: list[list[Row]], size: int, case: str
    ) -> None:
        ranks = [self.make(rank, size) for rank in range(size)]
        for rank in ranks:
            rank.load_state_dict(state)
            again = plain(rank.state_dict(), f"{case}, the state")
            assert again == state, (
                f"{case}: a state that was just loaded is saved as another one: {again}, not {state}"
            )
        found = done + _flat(self.steps(ranks))
        expected = _flat(whole)
        for number, (one, other) in enumerate(zip(found, expected, strict=False)):
            come = f"{len(done)} rows came before the cut"
            assert one == other, f"{case}: row {number} is {one}, expected {other}; {come}"
        is_whole = len(whole) < self.max_steps
        counted = (
            f"{len(found)} rows in all, expected {len(expected)}; {len(done)} came before the cut"
        )
        assert not is_whole or len(found) == len(expected), f"{case}: {counted}"
        assert len(found) > len(done) or len(expected) <= len(done), (
            f"{case}: nothing came after the cut"
        )


def check_same_order(whole: Mapping[int, list[list[Any]]]) -> None:
    """Check that runs on every number of ranks have the same rows in the same order."""
    (first_size, first_steps), *others = whole.items()
    first_rows = _flat(first_steps)
    for size, steps in others:
        for number, (row, expected) in enumerate(zip(_flat(steps), first_rows, strict=False)):
            case = f"on {size} ranks row {number} is {row}, on {first_size} ranks {expected}"
            assert row == expected, f"{case}: the order depends on the ranks"


def _places(batches: Sequence[Any], size: int) -> list[list[int]]:
    """Return which rows of the step the rows of each batch are; those of other libraries are assigned to ranks in turn."""
    ranks = len(batches)
    in_turn = [list(range(rank, ranks * size, ranks)) for rank in range(ranks)]
    return [
        each.places.tolist() if isinstance(each, Batch) else places
        for each, places in zip(batches, in_turn, strict=True)
    ]


def _flat(steps: Sequence[list[Row]]) -> list[Row]:
    return [row for step in steps for row in step]


def _rows(batch: Any) -> list[Row]:
    return [
        tuple(tuple(span) for span in batch.rows[row].tolist())
        for row in range(batch.rows.num_rows)
    ]
