"""The Loader: batches of a run, pass after pass.

What it was asked for is read in setup.py, where it is stands in run.py, and parts.py has what its stores need: this file connects them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from penstock.errors import PlanError
from penstock.loader.batch import Batch, Metrics, explain_step
from penstock.loader.counting import Counting
from penstock.loader.full import make_full_batch
from penstock.loader.layout import require_torch
from penstock.loader.map_dataset import MapDataset, RowSampler
from penstock.loader.observe import observers_of
from penstock.loader.run import Phase, Run
from penstock.loader.setup import rank_of, read_setup
from penstock.loader.stages import Stage
from penstock.loader.status import LoggedNumbers
from penstock.loader.stream import Stream
from penstock.loader.world import RankInfo, check_rank
from penstock.loader.worst import find_worst_step, make_batch_of_step
from penstock.notebook import shown_in_notebooks
from penstock.plan.counters import Counters
from penstock.plan.plan import Plan, Step
from penstock.settings import takes
from penstock.store import Store

if TYPE_CHECKING:
    from penstock.loader.dataset import Steps
    from penstock.options import LoaderOptions

_NO_ITEMS = (
    "a Loader delivers batches in order and has no items: iterate over it; for the Trainers use LoaderTrainer(loader=loader) of "
    "penstock.trainers.hf_trainer or LoaderSFTTrainer(loader=loader) of penstock.trainers.trl; for your own DataLoader "
    "DataLoader(loader.as_dataset(), batch_size=None)"
)
_NO_ITERATOR = (
    "a Loader is not an iterator: take one with batches = loader.stream(), and call next(batches)"
)
_MOVED = (
    "this iteration has ended: you started a newer one or loaded a state; use the newer iterator"
)
_CHANGE_OF_DATASET = (
    "the mixture changes, and what {method}() returned would go on with the old one; load the state first, or iterate over the Loader "
    "itself. To change: save a state, load it into a new Loader of the new mixture with changes=True, and call {method}() of that one"
)


def _refusal(message: str) -> Callable[..., NoReturn]:
    """Return a method that says why a Loader does not have it."""

    def refuse(self: "Loader", *_: object) -> NoReturn:
        """Refuse: a Loader is not a dataset of samples, and not an iterator."""
        raise TypeError(message)

    return refuse


@shown_in_notebooks
class Loader:
    """Batches of one or several stores.  `batch_size` is rows per rank; a step is batch_size × world_size rows.

    One loop over a loader is a pass: `epochs` epochs.  A loop that was broken off continues with the next loop.  Besides its members,
    it has `batch_size`, `epochs`, `kind`, `has_tokens`, `world`, `rank_info`, `settings`, `form`, `parts`, `run`, `metrics`, `observers`.
    """

    @takes("LoaderOptions")
    def __init__(
        self,
        stores: Store | Mapping[str, Store | tuple[Store, float]] | Sequence[Store],
        **options: Unpack["LoaderOptions"],
    ) -> None:
        """Load batches of a store, of stores by name, or of stores by name with weights: {"chat": (chat, 0.7), "math": (math, 0.3)}."""
        self._setup = setup = read_setup(stores, options)
        self.given = setup.given  # names of the options that were not left at their defaults
        self.settings = setup.settings
        self.form = setup.form  # of the arrays
        self.batch_size = setup.settings.batch_size  # rows per rank and step
        self.epochs = setup.settings.epochs  # of a pass; None never ends
        self.kind = setup.kind.name  # of samples: tokens, records, pairs, judged answers, …
        self.has_tokens = setup.kind.has_tokens  # else batches hold plain records
        self.parts = setup.parts()  # what the stores need; made again when they change
        self.rank_info = rank_of(setup.settings)
        self.world = self.rank_info.world  # which data-parallel rank this is
        self.run = setup.first_run(self.parts, self.world)  # where this loader is
        self.metrics = Metrics(self.run.names, self.plan.row_capacity, self.parts)
        self._counting = Counting()
        self.observers = observers_of(self, self.metrics, self._counting)
        self.added_stages: list[Stage] = []  # for batches of later loops, before all other stages
        self.logged = LoggedNumbers()  # what the training has logged, for `penstock view`
        self._lent_by = ""  # the method that has returned the rows as a dataset

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches after the current position; only delivered batches move the position.

        After the end of a pass the next one begins; right after a state was loaded, what is left of its pass, which may be nothing.
        """
        check_rank(self.rank_info)
        before = self.run
        run = self._setup.begin_loop(before)
        if run is None:  # a state was loaded, and nothing is left of its pass
            self.observers.begin(before)
            self.run = before.ended()
            return
        if before.phase is Phase.OPEN and run.cursor != before.cursor:
            self.observers.end(before)  # the last loop was broken off at its last step
            self.run = before.ended()
        plan = None
        while run.plan is not plan:  # again after a change: what was made ahead is of the old plan
            self.observers.begin(run)  # one that refuses leaves the run where it was
            self.run = run
            plan = run.plan
            with closing(self.parts.batches(run, self.world, self.added_stages)) as ahead:
                for batch, step in self.metrics.timed(ahead):
                    if self.run.lineage != run.lineage:
                        raise PlanError(_MOVED, code="iteration_ended")
                    self.run = run = run.after(step)
                    self.observers.step(run, step, batch)
                    yield batch.delivered
                    if self.run.plan is not plan and self.run.lineage == run.lineage:
                        run = self.run
                        break
        if self.run.lineage != run.lineage:
            return
        if not run.cursor.has_begun:
            raise self._counting.count_empty(run, can_cut=self.parts.can_be_cut)
        self.observers.end(run)
        self.run = run.ended()

    def stream(self) -> Stream:
        """Return an iterator of the remaining batches with `next` and this loader's state, for trainers that pull batches."""
        return Stream(self)

    def as_dataset(self) -> "Steps":
        """Return a torch IterableDataset of the remaining batches, for your own DataLoader (batch_size=None)."""
        require_torch("as_dataset", "iterate over the Loader itself")
        from penstock.loader.dataset import Steps

        self._lend("as_dataset")
        return Steps(self)

    def as_map_dataset(self) -> tuple[MapDataset, RowSampler]:
        """Return the rows by number, and a sampler of this rank's rows with a state, for trainers that index a dataset."""
        self._lend("as_map_dataset")
        return MapDataset(self), RowSampler(self)

    def _lend(self, method: str) -> None:
        check_rank(self.rank_info)
        self.observers.attach(self)  # to trainers that were imported after this Loader was made
        self._lent_by = method

    def _move(self, run: Run) -> None:
        if run.plan is not self.plan:
            if self._lent_by:
                raise PlanError(_CHANGE_OF_DATASET.format(method=self._lent_by))
            self.parts = self._setup.parts_after(run)
            self.metrics.follow(run.names, self.parts)
        self.run = run

    def take_rank(self, info: RankInfo) -> None:
        """Take the rows of this rank from here on, because a trainer knows which ranks share their rows; the position stays."""
        if info.world != self.world:
            self._move(self._setup.on_world(info.world, self.run, self.parts))
        self.rank_info = info
        self.world = info.world

    def state_dict(self) -> dict[str, Any]:
        """How far all ranks together have come; small, plain JSON, the same on every rank."""
        return self.run.state()

    def load_state_dict(self, state: dict[str, Any], *, changes: bool = False) -> None:
        """Go to where `state` was taken, with any number of ranks and any batch size.

        The next loop delivers what is left of the pass in which it was taken: nothing, if that had ended.
        changes: if the state's run has another mixture, change it to this loader's from here on.
        """
        self._move(self._setup.resumed(state, self.run, self.parts, changes=changes))

    def load_journal(self, state: dict[str, Any]) -> None:
        """Take over the mixtures of a state's run and go to its first step, to replay or explain it with this batch and world size."""
        self._move(self.run.replayed(state))

    def change_mixture(self, stores: Any, *, at: int | None = None) -> None:
        """Change the mixture from the next step on, or from step `at` on.  Call it on all ranks, with the same arguments.

        stores: as of Loader, all sources that the run has from then on.  A source of the same name goes on where it was, and its store
        may have grown.  Where samples are cut (packing="concat", on_overlong="split") the change comes at the end of the block.
        """
        self._move(self._setup.changed(self.run, stores, at=at))

    def seek(self, step: int) -> None:
        """Go to step `step` of the run, counted with this loader's batch and world size, up to the end of the current pass."""
        self.run = self.run.at_step(step)

    def restart(self) -> None:
        """Go back to the start of the current pass, for an evaluation that sees the same batches each time."""
        self.run = self.run.restarted()

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration with this epoch; a loader in the middle of it, or loaded at its end, stays where it is."""
        self.run = self.run.at_epoch(epoch)

    def __len__(self) -> int:
        """Steps of the current pass, also those before a resume; with per_epoch, of the current epoch.  Exact, also under a budget."""
        return self.run.steps_of_pass()

    def look_up(self, step: int) -> Step:
        """Return what all ranks get at `step`: any step since this loader began, up to the end of the current pass."""
        return self.run.look_up(step)

    explain = explain_step  # this and the next three leave the position as it is
    worst_step = find_worst_step
    make_batch = make_batch_of_step
    full_batch = make_full_batch
    __getitem__ = _refusal(_NO_ITEMS)
    __next__ = _refusal(_NO_ITERATOR)

    @property
    def finished(self) -> bool:
        """Whether the current loop has delivered its last step; also after the state of a finished pass was loaded."""
        return self.run.is_over(self.run.cursor)

    @property
    def steps_left(self) -> int | None:
        """Steps that the current loop has still to deliver, without skipped ones; None if it is endless."""
        return self.run.steps_after(self.run.cursor)

    @property
    def counters(self) -> Counters:
        """What this loader has delivered so far, and what was dropped in the blocks that have begun."""
        return self._counting.counters(self.run.names)

    def log(self, **numbers: float) -> None:
        """Log numbers of the step that was delivered last, as log(loss=2.31): `penstock view` plots them, if the Loader has a run_id."""
        self.logged.add(max(self.run.cursor.step - 1, 0), numbers)

    @property
    def journal(self) -> list[dict[str, Any]]:
        """The mixtures of this run in order: how many rows come before each, and its sources with their weights."""
        return self.run.journal

    @property
    def plan(self) -> Plan:
        """Which rows come when."""
        return self.run.plan

    @property
    def stores(self) -> list[Any]:
        """The stores of all sources that the run has had."""
        return list(self.run.stores)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]

    def __repr__(self) -> str:
        return (
            f"Loader({', '.join(self.run.names)}; rank {self.world.rank} of {self.world.size}, {self.batch_size} rows of "
            f"{self.plan.settings.max_length}, at step {self.run.cursor.step}, plan {self.plan.fingerprint[:8]})"
        )
