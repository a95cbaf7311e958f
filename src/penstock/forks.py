"""Whether worker processes of this process may be forked.

A library with threads of its own, such as a client of remote places, breaks in a forked child: the child would wait for threads that it
does not have.  Whoever starts such threads calls `forbid_forks`, and the engine starts its workers without a fork from then on.
"""

_is_allowed = True


def forbid_forks() -> None:
    """Have the engine spawn its workers from now on; forked children of this process inherit that."""
    global _is_allowed
    _is_allowed = False


def may_fork() -> bool:
    """Return whether nobody has forbidden forks in this process, or in one that it was forked from."""
    return _is_allowed
