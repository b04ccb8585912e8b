#!/usr/bin/env python3
"""Drives a Cassandra node with the DataStax Python driver, directly or through a proxy.

Prints one JSON line per case, {"case": ..., "ok": ..., "detail": ...}; exits 1 when one
failed. The keyspace is dropped at the end, also after a failure.
"""

import hashlib
import sys
import uuid

from cassandra import AuthenticationFailed
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.policies import WhiteListRoundRobinPolicy
from cassandra.query import BatchStatement, BatchType, SimpleStatement

sys.dont_write_bytecode = True  # the source tree stays clean
from cases import arguments, check, check_equal, report, run  # noqa: E402

DEFAULT_KEYSPACE = "underpass_python"
# A cold node on two cores, writing 16 MiB.
REQUEST_TIMEOUT_S = 60
LARGE_VALUE_BYTES = 16 * 1024 * 1024
PAGED_ROWS = 1200
FETCH_SIZE = 100


class Suite:
    """One session, and the cases that use it. Each case has its own table."""

    def __init__(self, args):
        self.args = args
        self.cluster = self.new_cluster(args.password)
        self.session = self.cluster.connect()

    def new_cluster(self, password):
        """Not connected yet. It knows the node under the name that it was given, no other."""
        profile = ExecutionProfile(
            load_balancing_policy=WhiteListRoundRobinPolicy([self.args.host]),
            request_timeout=REQUEST_TIMEOUT_S,
        )
        return Cluster(
            [self.args.host],
            port=self.args.port,
            protocol_version=self.args.protocol,
            compression=False if self.args.compression == "none" else self.args.compression,
            auth_provider=PlainTextAuthProvider(self.args.user, password),
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            connect_timeout=REQUEST_TIMEOUT_S,
            control_connection_timeout=REQUEST_TIMEOUT_S,
        )

    def compression(self):
        """What was asked for is what its connections have: a driver that lacks the library goes
        without, and says nothing."""
        negotiated = self.cluster.control_connection._connection._compression_type
        check_equal(negotiated or "none", self.args.compression, "compression")
        return self.args.compression

    def create_keyspace(self):
        """Every case needs it; that it works is itself a case."""
        keyspace = self.args.keyspace
        self.session.execute(f"DROP KEYSPACE IF EXISTS {keyspace}")
        self.session.execute(
            f"CREATE KEYSPACE {keyspace} WITH replication = "
            "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        self.session.set_keyspace(keyspace)
        return keyspace

    def close(self):
        """Drops the keyspace, whatever happened before."""
        try:
            self.session.execute(f"DROP KEYSPACE IF EXISTS {self.args.keyspace}")
        finally:
            self.cluster.shutdown()

    def cases(self):
        """In the order in which they run."""
        return [
            ("compression", self.compression),
            ("schema", self.schema),
            ("simple", self.simple),
            ("prepared", self.prepared),
            ("batch_logged", lambda: self.batch(BatchType.LOGGED)),
            ("batch_unlogged", lambda: self.batch(BatchType.UNLOGGED)),
            ("paging", self.paging),
            ("counted", self.counted),
            ("large_value", self.large_value),
            ("authentication", self.authentication),
            ("wrong_password", self.wrong_password),
            ("own_addresses", self.own_addresses),
        ]

    def schema(self):
        """DDL, its schema-change events, and the driver's view of the result."""
        self.session.execute("CREATE TABLE made (id int PRIMARY KEY, name text)")
        self.session.execute("ALTER TABLE made ADD tags set<text>")
        tables = self.cluster.metadata.keyspaces[self.args.keyspace].tables
        check_equal(sorted(tables["made"].columns), ["id", "name", "tags"], "columns")
        self.session.execute("DROP TABLE made")
        check("made" not in tables, "the table is still in the driver's metadata")
        return "created, altered, dropped"

    def simple(self):
        """Statements whose values travel with the query text, and an error from the node."""
        self.session.execute("CREATE TABLE simple (id int PRIMARY KEY, name text, note text)")
        self.session.execute(
            "INSERT INTO simple (id, name, note) VALUES (%s, %s, %s)", (1, "ünder", None)
        )
        row = self.session.execute("SELECT * FROM simple WHERE id = 1").one()
        check_equal((row.id, row.name, row.note), (1, "ünder", None), "row")
        try:
            self.session.execute("SELECT nothing FROM simple")
        except Exception as error:
            check_equal(type(error).__name__, "InvalidRequest", "error for an unknown column")
        else:
            check(False, "an unknown column was accepted")
        return "1 row, 1 expected error"

    def prepared(self):
        """PREPARE once, EXECUTE many times, with several requests in flight."""
        self.session.execute("CREATE TABLE prepared (id uuid PRIMARY KEY, n bigint, data blob)")
        insert = self.session.prepare("INSERT INTO prepared (id, n, data) VALUES (?, ?, ?)")
        select = self.session.prepare("SELECT n, data FROM prepared WHERE id = ?")
        # The same in each run: how small a request is compressed depends on them.
        ids = [uuid.uuid5(uuid.NAMESPACE_OID, str(n)) for n in range(200)]
        wanted = {id: (n, bytes([n % 256]) * n) for n, id in enumerate(ids)}
        pending = [self.session.execute_async(insert, (i, n, d)) for i, (n, d) in wanted.items()]
        for future in pending:
            future.result()
        futures = {i: self.session.execute_async(select, (i,)) for i in wanted}
        for i, future in futures.items():
            check_equal(tuple(future.result().one()), wanted[i], f"row {i}")
        return f"{len(wanted)} rows"

    def batch(self, kind):
        """A batch of prepared, bound and simple statements together."""
        table = "batch_logged" if kind is BatchType.LOGGED else "batch_unlogged"
        self.session.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
        insert = self.session.prepare(f"INSERT INTO {table} (id, v) VALUES (?, ?)")
        batch = BatchStatement(batch_type=kind)
        for n in range(20):
            batch.add(insert, (n, f"prepared {n}"))
        for n in range(20, 30):
            batch.add(SimpleStatement(f"INSERT INTO {table} (id, v) VALUES (%s, %s)"), (n, "simple"))
        batch.add(insert.bind((30, "bound")))
        self.session.execute(batch)
        rows = {row.id: row.v for row in self.session.execute(f"SELECT id, v FROM {table}")}
        wanted = {n: f"prepared {n}" for n in range(20)}
        wanted.update({n: "simple" for n in range(20, 30)})
        wanted[30] = "bound"
        check_equal(rows, wanted, "rows")
        return f"{len(rows)} rows"

    def paging(self):
        """More rows than a page holds: each row once, over as many pages as it takes."""
        self.session.execute("CREATE TABLE paged (p int, c int, v text, PRIMARY KEY (p, c))")
        insert = self.session.prepare("INSERT INTO paged (p, c, v) VALUES (1, ?, ?)")
        for future in [
            self.session.execute_async(insert, (n, "x" * 50)) for n in range(PAGED_ROWS)
        ]:
            future.result()
        query = SimpleStatement("SELECT c FROM paged WHERE p = 1", fetch_size=FETCH_SIZE)
        result = self.session.execute(query)
        seen, pages = [row.c for row in result.current_rows], 1
        while result.has_more_pages:
            result.fetch_next_page()
            check(len(result.current_rows) <= FETCH_SIZE, "a page is larger than asked for")
            seen += [row.c for row in result.current_rows]
            pages += 1
        check_equal(seen, list(range(PAGED_ROWS)), "rows in order")
        check(pages >= PAGED_ROWS // FETCH_SIZE, f"only {pages} pages")
        return f"{len(seen)} rows in {pages} pages"

    def counted(self):
        """So many requests of each kind on a table of its own; whoever counts along is checked
        against the detail."""
        session = self.session
        session.execute("CREATE TABLE counted (id int PRIMARY KEY, n int)")
        prepare = {
            "insert": session.prepare("INSERT INTO counted (id, n) VALUES (?, ?)"),
            "select": session.prepare("SELECT n FROM counted WHERE id = ?"),
            "delete": session.prepare("DELETE FROM counted WHERE id = ?"),
        }
        sent = {"create": 1, "prepare": len(prepare), "truncate": 1}
        sent |= {"insert": 17, "select": 29, "update": 7, "delete": 5, "batch": 3}
        for n in range(sent["insert"]):
            session.execute(prepare["insert"], (n, n))
        for n in range(sent["select"]):
            session.execute(prepare["select"], (n,))
        for n in range(sent["update"]):
            session.execute("UPDATE counted SET n = %s WHERE id = %s", (-n, n))
        for n in range(sent["delete"]):
            session.execute(prepare["delete"], (n,))
        for n in range(sent["batch"]):
            batch = BatchStatement()
            batch.add(prepare["insert"], (100 + n, n))
            batch.add(SimpleStatement("UPDATE counted SET n = 0 WHERE id = 100"))
            session.execute(batch)
        session.execute("TRUNCATE counted")
        return sent

    def large_value(self):
        """One value of 16 MiB, there and back: hundreds of v5 segments."""
        self.session.execute("CREATE TABLE large (id int PRIMARY KEY, data blob)")
        data = hashlib.shake_256(b"underpass").digest(LARGE_VALUE_BYTES)
        insert = self.session.prepare("INSERT INTO large (id, data) VALUES (?, ?)")
        self.session.execute(insert, (1, data))
        read = self.session.execute("SELECT data FROM large WHERE id = 1").one().data
        check_equal(len(read), len(data), "length")
        check(read == data, "the bytes differ from those written")
        return f"{len(data)} bytes"

    def authentication(self):
        """A second cluster object logs in from the start."""
        cluster = self.new_cluster(self.args.password)
        try:
            version = cluster.connect().execute("SELECT release_version FROM system.local").one()
            check_equal(cluster.protocol_version, self.args.protocol, "protocol version")
        finally:
            cluster.shutdown()
        return f"Cassandra {version.release_version}, protocol v{self.args.protocol}"

    def wrong_password(self):
        """The node's refusal reaches the driver as what it is."""
        cluster = self.new_cluster(self.args.password + "-wrong")
        try:
            cluster.connect()
        except NoHostAvailable as error:
            causes = list(error.errors.values())
            check(
                causes and all(isinstance(cause, AuthenticationFailed) for cause in causes),
                f"expected AuthenticationFailed, got {causes!r}",
            )
            return f"{causes[0]}"
        finally:
            cluster.shutdown()
        raise AssertionError("the wrong password was accepted")

    def own_addresses(self):
        """The node sees each connection under the address that the driver's socket has, and
        the driver's sockets see the node under the address that they were told to use."""
        sockets = [connection._socket for connection in self.connections()]
        check(len(sockets) >= 2, f"expected control and pool connections, got {len(sockets)}")
        for sock in sockets:
            check_equal(sock.getpeername()[:2], (self.args.host, self.args.port), "getpeername")
        local = {sock.getsockname()[:2] for sock in sockets}
        rows = self.session.execute("SELECT address, port, driver_name FROM system_views.clients")
        clients = {(row.address, row.port): row.driver_name for row in rows}
        missing = sorted(local - clients.keys())
        check(not missing, f"not in system_views.clients: {missing}; it has {sorted(clients)}")
        names = {clients[address] for address in local}
        check(all("Python" in (name or "") for name in names), f"driver_name is {names}")
        return sorted(f"{address}:{port}" for address, port in local)

    def connections(self):
        """All that this suite's session and its control connection have open."""
        pools = [c for pool in self.session.get_pools() for c in pool.get_connections()]
        control = self.cluster.control_connection._connection
        return list({id(c): c for c in [control, *pools] if c is not None}.values())


def main():
    parser = arguments(__doc__.splitlines()[0])
    args = parser.parse_args()
    args.keyspace = args.keyspace or DEFAULT_KEYSPACE
    try:
        suite = Suite(args)
    except Exception as error:  # nothing can run: one line that says so
        report("connect", False, f"{type(error).__name__}: {error}")
        return 1
    try:
        passed = run([("keyspace", suite.create_keyspace)]) and run(suite.cases(), args.case)
    finally:
        suite.close()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
