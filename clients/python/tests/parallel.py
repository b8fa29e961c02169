"""Runs tests in threads: each has a server of its own, and waits most of its time.

A module takes part where it imports `load_tests`. A test that is named on the command line runs
alone.
"""

import threading
import unittest
from concurrent.futures import ThreadPoolExecutor

THREADS = 8


class Parallel(unittest.TestSuite):
    def run(self, result, debug=False):
        shared = _Shared(result)
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(lambda test: test(shared), _cases(self)))
        return result


class _Shared:
    """A result whose methods are called by one thread at a time."""

    def __init__(self, result):
        self._result, self._lock = result, threading.RLock()

    def __getattr__(self, name):
        value = getattr(self._result, name)
        if not callable(value):
            return value

        def call(*args):
            with self._lock:
                return value(*args)

        return call


def load_tests(loader, tests, pattern):
    return Parallel(tests)


def _cases(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _cases(test)
        else:
            yield test
