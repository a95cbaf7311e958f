"""The rows of a Loader as a dataset, and a sampler of those of this rank, for trainers with a DataLoader of their own.

    dataset, sampler = loader.as_map_dataset()
    batches = StatefulDataLoader(dataset, batch_size=loader.batch_size, sampler=sampler, collate_fn=…)

The sampler follows the plan and yields rows, each as its spans, so the dataset needs no position: a worker makes what it is given.
"""

from collections.abc import Collection, Iterator
from copy import copy
from typing import TYPE_CHECKING, Any

from penstock.errors import PlanError, PlanMismatch
from penstock.loader.collate import call_users
from penstock.loader.kind import BatchMaker
from penstock.loader.stages import convert
from penstock.loader.state import Cursor, make_state, read_state
from penstock.loader.world import check_rank
from penstock.plan.ranks import rank_shares
from penstock.plan.rows import Rows
from penstock.settings import whole_number
from penstock.types import World
from penstock.words import differences

if TYPE_CHECKING:
    from penstock.loader.loader import Loader


def require_tokens(loader: "Loader", user: str, *, takes: Collection[str] = ()) -> None:
    """Refuse a Loader whose batches hold something that `user` does not take.  takes: stages that it does."""
    found = [name for name in (loader.kind, *loader.parts.stages) if name not in ("tokens", *takes)]
    if found:
        what = "plain records" if not loader.has_tokens else found[0]
        raise PlanError(
            f"{user} takes rows of tokens, and this Loader has {what}; iterate over the Loader"
        )


_OF_BATCH = ("cu_seqlens", "max_seqlen", "use_cache")  # describe a batch, not a row


class MapDataset:
    """Rows as arrays without a batch dimension; of a Loader of records, the records.

    An item is a row that the sampler yields, or for a look at the data its number in the pass, over all ranks.  In place of a record, the
    padding of a last step is None.
    """

    def __init__(self, loader: "Loader") -> None:
        if loader.has_tokens:
            require_tokens(loader, "as_map_dataset")
        if loader.run.has_steps_of_tokens:
            raise PlanError(
                f"as_map_dataset: a DataLoader takes batch_size rows at a time, and with tokens_per_step="
                f"{loader.settings.tokens_per_step:,} each step has a size of its own; use as_dataset, or iterate over the Loader"
            )
        self._loader = copy(loader)
        self._run = loader.run
        self._start = loader.run.start_of_next_loop()
        self._maker: BatchMaker | None = None  # of this process: it reuses its memory

    def __len__(self) -> int:
        """Rows from here to the end of the pass, with the padding of its last step."""
        steps = self._run.steps_of_loop(self._start)
        if steps is None:
            raise TypeError("a dataset of an endless loader (epochs=None) has no length")
        return steps * self._run.rows_per_step

    def __getitem__(self, row: "Rows | int") -> Any:
        loader = self._loader
        if loader.added_stages:
            raise PlanError(
                "as_map_dataset makes rows one by one, and a stage was added to this Loader that changes whole batches, such as by "
                "leave_out; iterate over the Loader, or use as_dataset"
            )
        rows = row if isinstance(row, Rows) else self._find(row)
        if not loader.has_tokens:
            spans = rows.spans.tolist()
            return loader.stores[spans[0][0]].source[spans[0][1]] if spans else None
        if self._maker is None:
            self._maker = loader.parts.open_maker(loader.stores)
        [[(arrays, trained)]] = self._maker.many([rows])
        if loader.settings.collate is not None:
            arrays, trained = call_users(loader.settings.collate, arrays, trained, rows)
        of_row = {name: value for name, value in arrays.items() if name not in _OF_BATCH}
        return convert({name: value[0].copy() for name, value in of_row.items()}, loader.form)

    def _find(self, number: int) -> Rows:
        run = self._run
        start = self._start
        number = whole_number("row", number, least=None)
        step, place = divmod(number, run.rows_per_step)
        left = run.steps_of_loop(start)
        if number < 0 or (left is not None and step >= left):
            raise IndexError(f"row {number} does not exist; rows of this pass are counted from 0")
        end = run.loop_end(start)
        position = run.plan.seek(step, run.rows_per_step, epochs=end, start=start.position)
        found = run.plan.step(position, run.rows_per_step, epochs=end)
        assert found is not None  # the pass has this step
        return found.rows.slice(place, place + 1)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maker": None}


class RowSampler:
    """This rank's rows, in order.  Its state resumes on any number of ranks where it was taken between two steps."""

    def __init__(self, loader: "Loader") -> None:
        self._loader = loader
        self._cursor = loader.run.start_of_next_loop()
        self._given = 0  # rows of this rank after the cursor
        self._is_loaded = False
        self._begun: Cursor | None = None  # where the last iteration began, unless it has ended

    @property
    def world(self) -> World:
        """The rank whose rows these are."""
        return self._loader.world

    @property
    def _dealing(self) -> dict[str, Any]:
        return self._loader.run.dealing(self.world.size)

    def __len__(self) -> int:
        """Rows that the next iteration has for this rank."""
        left = self._loader.run.steps_after(self._start())
        if left is None:
            raise TypeError("a sampler of an endless loader (epochs=None) has no length")
        return left * self._loader.batch_size - self._given

    def _start(self) -> Cursor:
        """Return where the next iteration begins: after a pass has ended, the next pass, except right after a state was loaded."""
        run = self._loader.run
        is_next = not (self._given or self._is_loaded) and run.is_over(self._cursor)
        return run.next_loop(self._cursor) if is_next else self._cursor

    def __iter__(self) -> Iterator[Rows]:
        """Yield the rest of the pass, or the next one.  Once left early, it continues only from a loaded state."""
        loader = self._loader
        check_rank(loader.rank_info)
        begun = self._start()
        if begun is self._cursor and self._is_left_early():
            raise PlanError(
                "the iteration before was left early, and rows that workers had read ahead would be lost; load a state that was saved "
                "with the last batch: batches.load_state_dict(state) of StatefulDataLoader, or that of the sampler"
            )
        self._cursor = begun
        self._begun = begun
        self._is_loaded = False
        run = loader.run
        for number, step in enumerate(run.steps_from(begun), start=begun.step):
            after = Cursor(position=step.after, step=number + 1, pass_step=begun.pass_step)
            if number in run.loop.skipped:
                self._cursor = after
                continue
            (share,) = rank_shares([step.rows], loader.world, loader.plan.settings)
            for row in range(self._given, loader.batch_size):
                self._given += 1
                if self._given == loader.batch_size:
                    self._cursor = after
                    self._given = 0
                yield share.rows.slice(row, row + 1)
        self._begun = None

    def _is_left_early(self) -> bool:
        """Whether an iteration has begun, has given rows, and is not at the end of its loop."""
        if self._begun is None or (not self._given and self._cursor == self._begun):
            return False
        run = self._loader.run
        is_at_end = self._cursor.position.epoch == run.loop_end(self._begun)
        return self._given > 0 or not (is_at_end or run.is_over(self._cursor))

    def state_dict(self) -> dict[str, Any]:
        state = make_state(self._loader.plan, self._cursor)
        return {"loader": state, "rows_of_step": self._given, "dealt": self._dealing}

    def load_state_dict(self, state: Any) -> None:
        if not isinstance(state, dict) or state.keys() != self.state_dict().keys():
            raise PlanMismatch(
                "this is not the state of a sampler: expected the dict that its state_dict() returned"
            )
        cursor = read_state(state["loader"], self._loader.plan)
        rows_given = whole_number("rows_of_step", state["rows_of_step"], least=0)
        if rows_given and (other := differences(state["dealt"], self._dealing)):
            raise PlanMismatch(
                f"the state was taken after {rows_given} rows of a step with another assignment: {'; '.join(other)}; resume with the same "
                f"values, or from a state that was taken between two steps"
            )
        if rows_given >= self._loader.batch_size:
            raise PlanMismatch(
                f"the state is damaged: rows_of_step is {rows_given}, expected less than {self._loader.batch_size}; use an older checkpoint"
            )
        self._cursor = cursor
        self._given = rows_given
        self._is_loaded = True
        self._begun = None
