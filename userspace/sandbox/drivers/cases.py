"""What the two suites share: their arguments, and one JSON line per case."""

import argparse
import json
import time
import traceback


def arguments(description):
    """A parser with the options that both suites take."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, default=9042)
    parser.add_argument("--user", required=True)
    parser.add_argument("--password", required=True)
    parser.add_argument("--protocol", type=int, choices=(3, 4, 5), default=5)
    parser.add_argument("--compression", choices=("none", "lz4", "snappy"), default="none")
    parser.add_argument("--keyspace", help="made, used and dropped (default: one per suite)")
    parser.add_argument("--case", help="run this one only")
    return parser


def run(cases, only=None):
    """Runs `cases`, a list of (name, function); True when all passed.

    A function returns the detail to report, or raises. A failure does not stop the rest.
    """
    chosen = [(name, case) for name, case in cases if only in (None, name)]
    if not chosen:
        report(only, False, "no such case; there are: " + ", ".join(name for name, _ in cases))
        return False
    return all([run_one(name, case) for name, case in chosen])


def run_one(name, case):
    """Runs one case and prints its line; True when it passed."""
    started = time.monotonic()
    try:
        detail = case()
    except Exception as error:  # whatever it was: it is this case's result
        frames = traceback.extract_tb(error.__traceback__)
        # Where the case failed, not where `check` raised on its behalf.
        where = [frame for frame in frames if frame.name not in ("check", "check_equal")][-1]
        report(name, False, f"{type(error).__name__}: {error} ({where.name}:{where.lineno})")
        return False
    report(name, True, detail, elapsed_ms=round((time.monotonic() - started) * 1000))
    return True


def report(name, ok, detail, **more):
    """Prints one result."""
    print(json.dumps({"case": name, "ok": ok, "detail": detail, **more}, default=str), flush=True)


def check(condition, message):
    """`assert` that python -O keeps."""
    if not condition:
        raise AssertionError(message)


def check_equal(got, wanted, what):
    """Fails with both values, shortened."""
    check(got == wanted, f"{what}: got {got!r:.200}, wanted {wanted!r:.200}")
