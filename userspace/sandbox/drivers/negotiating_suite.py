#!/usr/bin/env python3
"""Lets the DataStax Python driver find the protocol version by itself, from the newest one that it knows."""

import sys

from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster
from cassandra.policies import WhiteListRoundRobinPolicy

sys.dont_write_bytecode = True  # the source tree stays clean
from cases import arguments, run  # noqa: E402


def negotiated(args):
    """The version with which it began, and the one that it asks in."""
    cluster = Cluster(
        [args.host],
        port=args.port,
        auth_provider=PlainTextAuthProvider(args.user, args.password),
        load_balancing_policy=WhiteListRoundRobinPolicy([args.host]),
    )
    begins = cluster.protocol_version
    try:
        session = cluster.connect()
        session.execute("SELECT release_version FROM system.local")
        return [begins, cluster.protocol_version]
    finally:
        cluster.shutdown()


def main():
    args = arguments(__doc__).parse_args()
    return 0 if run([("negotiated", lambda: negotiated(args))]) else 1


if __name__ == "__main__":
    sys.exit(main())
