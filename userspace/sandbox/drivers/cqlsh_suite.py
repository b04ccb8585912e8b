#!/usr/bin/env python3
"""Drives a Cassandra node with cqlsh, directly or through a proxy.

Prints one JSON line per case, {"case": ..., "ok": ..., "detail": ...}; exits 1 when one
failed. The keyspace is dropped at the end, also after a failure. COPY is left out: it
forks workers that find nodes by discovery, which is another program's test.
"""

import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree stays clean
from cases import arguments, check, check_equal, run, run_one  # noqa: E402

DEFAULT_KEYSPACE = "underpass_cqlsh"
# Python starts, connects and loads the schema for each call.
CALL_TIMEOUT_S = 120
PAGED_ROWS = 350
PAGE_SIZE = 100


class Suite:
    """Each case is one or more calls of cqlsh."""

    def __init__(self, args, home):
        self.args = args
        self.home = home

    def cqlsh(self, script, password=None):
        """Feeds `script` to one cqlsh; the finished process."""
        args = self.args
        command = [args.cqlsh, args.host, str(args.port)]
        command += ["-u", args.user, "-p", password or args.password]
        command += ["--protocol-version", str(args.protocol), "--no-color"]
        command += ["--insecure-password-without-warning", "--disable-history"]
        command += ["--connect-timeout", "30", "--request-timeout", "60"]
        return subprocess.run(
            command,
            input=script,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=CALL_TIMEOUT_S,
            # Nobody's ~/.cassandra/cqlshrc may decide here.
            env={"HOME": self.home, "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        )

    def must(self, script):
        """What cqlsh printed for `script`, which has to succeed."""
        done = self.cqlsh(script)
        check_equal(done.returncode, 0, f"exit code, output {done.stdout[-400:]!r}")
        return done.stdout

    def cases(self):
        """In the order in which they run; each later one needs the first."""
        return [
            ("insert_select", self.insert_select),
            ("describe", self.describe),
            ("paging", self.paging),
            ("bad_statement", self.bad_statement),
            ("wrong_password", self.wrong_password),
        ]

    def create(self):
        """Keyspace and table."""
        keyspace = self.args.keyspace
        self.must(
            f"DROP KEYSPACE IF EXISTS {keyspace};\n"
            f"CREATE KEYSPACE {keyspace} WITH replication = "
            "{'class': 'SimpleStrategy', 'replication_factor': 1};\n"
            f"CREATE TABLE {keyspace}.words (id int PRIMARY KEY, word text);\n"
            f"CREATE TABLE {keyspace}.paged (p int, c int, v text, PRIMARY KEY (p, c));\n"
        )
        return keyspace

    def insert_select(self):
        """What was written is what is printed."""
        out = self.must(
            f"USE {self.args.keyspace};\n"
            "INSERT INTO words (id, word) VALUES (1, 'ünder');\n"
            "INSERT INTO words (id, word) VALUES (2, 'pass');\n"
            "CONSISTENCY ONE;\n"
            "SELECT id, word FROM words WHERE id IN (1, 2);\n"
        )
        for row in ("1 | ünder", "2 |  pass", "(2 rows)"):
            check(row in out, f"no {row!r} in {out!r}")
        return "2 rows"

    def describe(self):
        """DESCRIBE, which the node itself answers since Cassandra 4."""
        keyspace = self.args.keyspace
        out = self.must(f"DESCRIBE KEYSPACES;\nDESCRIBE KEYSPACE {keyspace};\n")
        for text in ("system_auth", f"CREATE TABLE {keyspace}.words", "word text"):
            check(text in out, f"no {text!r} in {out[-400:]!r}")
        return f"{len(out)} characters"

    def paging(self):
        """More rows than a page holds; without a terminal cqlsh asks for page after page."""
        inserts = "".join(
            f"INSERT INTO paged (p, c, v) VALUES (1, {n}, 'row-{n:04}');\n"
            for n in range(PAGED_ROWS)
        )
        self.must(f"USE {self.args.keyspace};\n{inserts}")
        out = self.must(
            f"USE {self.args.keyspace};\nPAGING {PAGE_SIZE};\nSELECT v FROM paged WHERE p = 1;\n"
        )
        seen = [word for word in out.split() if word.startswith("row-")]
        check_equal(seen, [f"row-{n:04}" for n in range(PAGED_ROWS)], "rows in order")
        check(f"({PAGED_ROWS} rows)" in out, f"no row count in {out[-200:]!r}")
        return f"{len(seen)} rows, {PAGE_SIZE} a page"

    def bad_statement(self):
        """The node's complaint is printed, and the exit code tells."""
        done = self.cqlsh(f"SELECT nothing FROM {self.args.keyspace}.words;\n")
        check(done.returncode != 0, "exit code 0 for an unknown column")
        check("Undefined column name nothing" in done.stdout, f"output {done.stdout!r}")
        return f"exit code {done.returncode}"

    def wrong_password(self):
        """Refused, with the node's words."""
        done = self.cqlsh("SELECT key FROM system.local;\n", self.args.password + "-wrong")
        check(done.returncode != 0, "the wrong password was accepted")
        check("incorrect" in done.stdout, f"output {done.stdout!r}")
        return f"exit code {done.returncode}"

    def drop(self):
        """Always the last."""
        self.must(f"DROP KEYSPACE IF EXISTS {self.args.keyspace};\n")
        return self.args.keyspace


def main():
    parser = arguments(__doc__.splitlines()[0])
    beside = pathlib.Path(sys.executable).parent / "cqlsh"
    parser.add_argument("--cqlsh", default=str(beside), help="default: beside this Python")
    args = parser.parse_args()
    args.keyspace = args.keyspace or DEFAULT_KEYSPACE
    with tempfile.TemporaryDirectory() as home:
        suite = Suite(args, home)
        try:
            passed = run_one("create", suite.create) and run(suite.cases(), args.case)
        finally:
            dropped = run_one("drop", suite.drop)
    return 0 if passed and dropped else 1


if __name__ == "__main__":
    sys.exit(main())
