"""What a new user does by mistake is said at once, and in words; nothing hangs, nothing is silently not there."""

import os
import signal
import threading

import numpy as np
import pytest

import penstock as ps
from penstock.errors import PlanError

from .arrays import Loader

OPTIONS = {"batch_size": 2, "max_length": 64}


@pytest.fixture(scope="module")
def store(tokenizer_path, tmp_path_factory):
    records = [{"text": "fox dog runs over " * (1 + number % 7)} for number in range(60)]
    cache_dir = tmp_path_factory.mktemp("cache")
    return ps.prepare(
        records, tokenizer=tokenizer_path, template="text", cache_dir=cache_dir, num_proc=1
    )


def test_steps_that_are_none_are_refused(store):
    loader = Loader(store, **OPTIONS)
    for wrong in ("5", 2.5, -1, None):
        with pytest.raises(PlanError, match="step is"):
            loader.seek(wrong)
        with pytest.raises(PlanError, match="step is"):
            loader.explain(wrong)
    for wrong, message in [
        (3, "skip_steps is 3, expected a list"),
        ("12", "skip_steps is '12'"),
        (["a"], "a step in skip_steps is 'a'"),
    ]:
        with pytest.raises(PlanError, match=message):
            Loader(store, **OPTIONS, skip_steps=wrong)
    loader.seek(np.int64(3))
    assert next(iter(loader)).step == 3


def test_a_run_without_steps_says_why(store):
    with pytest.raises(PlanError, match="the run has no step: epochs is 0"):
        list(Loader(store, **OPTIONS, epochs=0))
    with pytest.raises(
        PlanError,
        match=r"60 samples dropped \(100.0%\): overlong; raise max_length, or choose on_overlong='split'",
    ):
        list(Loader(store, batch_size=2, max_length=3))
    with pytest.raises(PlanError, match=r"60 samples dropped \(100.0%\): overlong"):
        list(Loader(store, batch_size=2, max_length=3, epochs=None, per_epoch=True))
    loader = Loader(store, **OPTIONS)
    with pytest.raises(PlanError, match="skip_steps= names every step of the run"):
        list(Loader(store, **OPTIONS, skip_steps=range(len(loader))))


def test_a_loop_after_the_state_of_a_finished_pass_was_loaded_says_that_nothing_is_left(
    store, caplog
):
    loader = Loader(store, **OPTIONS)
    steps = len(list(loader))
    loader.load_state_dict(loader.state_dict())
    assert "no batch is left" not in caplog.text
    assert list(loader) == []
    assert (
        f"saved at the end of a pass, at step {steps}; iterate again for the next pass"
        in caplog.text
    )
    loader.seek(steps)
    assert len(list(loader)) == steps


def test_names_that_are_nearly_right_are_suggested(store):
    for wrong, right in [
        ("epoch", "epochs"),
        ("world", "world_size"),
        ("pading", "padding"),
    ]:
        with pytest.raises(PlanError, match=f"no option '{wrong}'; did you mean '{right}'"):
            Loader(store, **OPTIONS, **{wrong: 2})


def test_memory_is_pinned_only_on_the_way_to_a_device(store):
    torch = pytest.importorskip("torch", reason="tensors need torch")
    loader = ps.Loader(store, **OPTIONS, pin_memory=True)
    if torch.accelerator.is_available():
        assert next(iter(loader))["input_ids"].is_pinned()
    else:
        with pytest.raises(PlanError, match="torch finds none; leave it out"):
            next(iter(loader))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_iteration_does_not_hang_in_a_forked_process(store):
    loader = Loader(store, **OPTIONS)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if not child:
        signal.alarm(30)
        code = 1
        try:
            steps = [batch.step for batch in loader]  # one of its own goes on from here
            try:
                next(batches)
            except PlanError as error:
                code = 0 if steps[0] == 1 and "begun before the process forked" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert next(batches).step == 1


def test_ctrl_c_ends_the_loop_and_the_thread_and_the_state_is_good(store):
    before = threading.active_count()
    loader, steps = Loader(store, **OPTIONS, epochs=None, prefetch=3), 0
    with pytest.raises(KeyboardInterrupt):
        for _ in loader:
            steps += 1
            if steps == 7:
                os.kill(os.getpid(), signal.SIGINT)
    assert loader.state_dict()["step"] == steps == 7
    assert next(iter(loader)).step == 7
    loader.seek(0)
    assert threading.active_count() <= before + 1  # that of the iteration just begun, at most
