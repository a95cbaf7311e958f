"""A thread reads ahead while the consumer is away, and only then; what comes is the same either way."""

import threading
import time

import pytest

from penstock.loader.prefetch import read_ahead


def numbers(makers, count, *, seconds=0.0, error=None):
    for number in range(count):
        time.sleep(seconds)
        makers.append(threading.current_thread().name)
        yield number
    if error is not None:
        raise error


def test_a_consumer_that_takes_its_time_finds_them_made():
    makers, found = [], []
    for number in read_ahead(numbers(makers, 20, seconds=0.001), 2):
        time.sleep(0.003)
        found.append(number)
    assert found == list(range(20)) and set(makers) == {"penstock-read-ahead"}


def test_a_consumer_that_comes_back_at_once_makes_them_itself():
    makers = []
    assert list(read_ahead(numbers(makers, 1000), 2)) == list(range(1000))
    assert makers.count("MainThread") > 900


def test_neither_order_nor_number_depends_on_who_makes_them():
    makers, found = [], []
    for number in read_ahead(numbers(makers, 300, seconds=0.0003), 3):
        found.append(number)
        if number // 30 % 2:
            time.sleep(0.003)
    assert found == list(range(300)) and len(makers) == 300 and len(set(makers)) == 2


@pytest.mark.parametrize("pause", [0.0, 0.002])
def test_an_error_comes_behind_what_came_before_it(pause):
    found = []
    with pytest.raises(ValueError, match="the last"):
        for number in read_ahead(numbers([], 50, seconds=pause, error=ValueError("the last")), 3):
            found.append(number)
            time.sleep(pause)
    assert found == list(range(50))


@pytest.mark.parametrize("pause", [0.0, 0.002])
def test_a_consumer_that_leaves_leaves_no_thread(pause):
    before = threading.active_count()
    ahead = read_ahead(numbers([], 10**6, seconds=pause), 3)
    for number in ahead:
        time.sleep(pause)
        if number == 20:
            break
    ahead.close()
    assert threading.active_count() == before
