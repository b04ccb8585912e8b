#!/usr/bin/env python3
"""Sends statements against a guard that warns, with the DataStax Python driver, and tells the warnings that the driver has.

Prints one JSON line per case, as the other suites do.
"""

import sys

from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import WhiteListRoundRobinPolicy
from cassandra.query import BatchStatement, BatchType

sys.dont_write_bytecode = True  # the source tree stays clean
from cases import arguments, run  # noqa: E402

# Cassandra warns of an unlogged batch over more than 10 partitions.
PARTITIONS = 12


class Suite:
    """One session, and the cases that use it."""

    def __init__(self, args):
        self.keyspace = args.keyspace
        policy = WhiteListRoundRobinPolicy([args.host])
        self.cluster = Cluster(
            [args.host],
            port=args.port,
            protocol_version=args.protocol,
            compression=False if args.compression == "none" else args.compression,
            auth_provider=PlainTextAuthProvider(args.user, args.password),
            execution_profiles={
                EXEC_PROFILE_DEFAULT: ExecutionProfile(load_balancing_policy=policy, request_timeout=60)
            },
        )
        self.session = self.cluster.connect()

    def warnings(self, statement, values=None):
        """What the driver has of the answer, be it an error."""
        future = self.session.execute_async(statement, values)
        try:
            future.result()
        except Exception:  # the warnings are there all the same
            pass
        return future.warnings

    def schema(self):
        """The keyspace and the table of the cases."""
        keyspace = self.keyspace
        self.session.execute(f"DROP KEYSPACE IF EXISTS {keyspace}")
        self.session.execute(
            f"CREATE KEYSPACE {keyspace} WITH replication = "
            "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        self.session.execute(f"CREATE TABLE {keyspace}.t (k int PRIMARY KEY, v text)")

    def harmless(self):
        """Nobody minds."""
        return self.warnings(f"SELECT v FROM {self.keyspace}.t WHERE k = 1")

    def query(self):
        """A text."""
        return self.warnings(f"SELECT v FROM {self.keyspace}.t")

    def prepared(self):
        """What was prepared."""
        statement = self.session.prepare(f"SELECT k FROM {self.keyspace}.t")
        return self.warnings(statement)

    def error(self):
        """The database refuses it."""
        return self.warnings(f"SELECT v FROM {self.keyspace}.nowhere")

    def batch(self):
        """The database warns of it, too."""
        insert = self.session.prepare(f"INSERT INTO {self.keyspace}.t (k, v) VALUES (?, ?)")
        batch = BatchStatement(BatchType.UNLOGGED)
        for key in range(PARTITIONS):
            batch.add(insert, (key, "v"))
        return self.warnings(batch)

    def drop(self):
        """The keyspace goes."""
        self.session.execute(f"DROP KEYSPACE {self.keyspace}")

    def cases(self):
        """In their order."""
        names = ["schema", "harmless", "query", "prepared", "error", "batch", "drop"]
        return [(name, getattr(self, name)) for name in names]


def main():
    args = arguments(__doc__).parse_args()
    suite = Suite(args)
    try:
        return 0 if run(suite.cases()) else 1
    finally:
        suite.cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main())
