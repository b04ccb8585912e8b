#!/usr/bin/env python3
"""Drives a node that offers ScyllaDB's extensions with `scylla-driver`, directly or through a proxy.

Prints one JSON line per case, {"case": ..., "ok": ..., "detail": ...}; exits 1 when one failed. The tables
are there already, in keyspace `app`.
"""

import sys
import time

from cassandra import InvalidRequest, RateLimitReached
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import TokenAwarePolicy, WhiteListRoundRobinPolicy
from cassandra.query import BatchStatement

sys.dont_write_bytecode = True  # the source tree stays clean
from cases import arguments, check, check_equal, run  # noqa: E402

ROWS = 60
REQUEST_TIMEOUT_S = 60
PATIENCE_S = 20


def connect(args):
    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(WhiteListRoundRobinPolicy([args.host])),
        request_timeout=REQUEST_TIMEOUT_S,
    )
    cluster = Cluster(
        [args.host],
        port=args.port,
        protocol_version=4,
        compression=False,
        auth_provider=PlainTextAuthProvider(args.user, args.password),
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        connect_timeout=REQUEST_TIMEOUT_S,
        control_connection_timeout=REQUEST_TIMEOUT_S,
    )
    return cluster, cluster.connect()


class Suite:
    def __init__(self, args):
        self.args = args
        self.cluster, self.session = connect(args)

    def cases(self):
        return [
            ("extensions", self.extensions),
            ("simple", self.simple),
            ("conditional", self.conditional),
            ("cached", self.cached),
            ("limited", self.limited),
            ("changed", self.changed),
            ("paging", self.paging),
            ("closed", self.closed),
            ("shards", self.shards),
        ]

    def extensions(self):
        """What the control connection has begun with."""
        features = self.cluster.control_connection._connection.features
        check(features.use_metadata_id, "no metadata ids")
        check(features.lwt_info is not None, "no mark of transactions")
        check(features.rate_limit_error is not None, "no error about limits")
        tablets = [features.tablets_routing_v1, features.tablets_routing_v2]
        return tablets.index(True) + 1

    def simple(self):
        insert = self.session.prepare("INSERT INTO app.things (id, name, n) VALUES (?, ?, ?)")
        select = self.session.prepare("SELECT name, n FROM app.things WHERE id = ?")
        check(insert.result_metadata_id is not None, "PREPARED has no id of the metadata")
        for n in range(20):
            self.session.execute(insert, (n, f"thing {n}", n * 2))
        batch = BatchStatement()
        batch.add(insert, (20, "thing 20", 40))
        batch.add(insert, (21, "thing 21", 42))
        self.session.execute(batch)
        for n in range(22):
            row = self.session.execute(select, (n,)).one()
            check_equal((row.name, row.n), (f"thing {n}", n * 2), f"row {n}")
        return 22

    def conditional(self):
        insert = self.session.prepare(
            "INSERT INTO app.things (id, name) VALUES (?, ?) IF NOT EXISTS"
        )
        select = self.session.prepare("SELECT name FROM app.things WHERE id = ?")
        check_equal((insert.is_lwt(), select.is_lwt()), (True, False), "the mark")
        check(self.session.execute(insert, (100, "once")).was_applied, "it does not apply")
        return "applied"

    def cached(self):
        insert = self.session.prepare("INSERT INTO app.cached (id, v) VALUES (?, ?)")
        select = self.session.prepare("SELECT v FROM app.cached WHERE id = ?")
        for value in ("before", "after"):
            self.session.execute(insert, (1, value))
            for _ in range(10):
                check_equal(self.session.execute(select, (1,)).one().v, value, "value")
        return 20

    def limited(self):
        select = self.session.prepare("SELECT v FROM app.limited WHERE id = ?")
        try:
            self.session.execute(select, (1,))
        except RateLimitReached as error:
            check_equal(error.rejected_by_coordinator, True, "by the coordinator")
            return error.op_type.name
        raise AssertionError("no limit")

    def changed(self):
        """The table becomes another one behind the driver, which learns of its columns from the answer."""
        text = "SELECT * FROM app.changing"
        select = self.session.prepare(text)
        self.session.execute(select)
        cluster, other = connect(self.args)
        try:
            other.execute("DROP TABLE app.changing")
            other.execute("CREATE TABLE app.changing (id int PRIMARY KEY, a text, b text)")
            other.prepare(text)
            other.execute("INSERT INTO app.changing (id, a, b) VALUES (1, 'a', 'b')")
        finally:
            cluster.shutdown()
        row = self.session.execute(select).one()
        check_equal((row.id, row.a, row.b), (1, "a", "b"), "row")
        return "3 columns"

    def paging(self):
        insert = self.session.prepare("INSERT INTO app.many (k, c, v) VALUES (1, ?, 'v')")
        for future in [self.session.execute_async(insert, (n,)) for n in range(ROWS)]:
            future.result()
        select = self.session.prepare("SELECT c FROM app.many WHERE k = ?")
        select.fetch_size = 1000
        result = self.session.execute(select, (1,))
        seen, pages = [row.c for row in result.current_rows], 1
        while result.has_more_pages:
            result.fetch_next_page()
            seen += [row.c for row in result.current_rows]
            pages += 1
        check_equal(seen, list(range(ROWS)), "rows in order")
        return pages

    def closed(self):
        """Refused by a proxy that closes the table."""
        try:
            self.session.prepare("SELECT v FROM app.closed WHERE id = ?")
        except InvalidRequest as error:
            check("app.closed" in str(error), str(error))
            return "refused"
        return "open"

    def shards(self):
        """The pool has a connection to each shard, which the driver chooses by its own port."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            stats = list(self.cluster.shard_aware_stats().values())
            if all(pool["connected"] == pool["shards_count"] for pool in stats):
                return stats[0]["shards_count"]
            check(time.monotonic() < deadline, str(stats))
            time.sleep(0.02)


def main():
    suite = Suite(arguments(__doc__).parse_args())
    try:
        return 0 if run(suite.cases(), suite.args.case) else 1
    finally:
        suite.cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main())
