"""A driver that encrypts, by OpenSSL: python driver.py PORT CA VERSION [CERT KEY]"""

import ssl
import sys

from cassandra.cluster import Cluster

port, ca, version, *own = sys.argv[1:]
context = ssl.create_default_context(cafile=ca)
if own:
    context.load_cert_chain(*own)
cluster = Cluster(
    ["127.0.0.1"],
    port=int(port),
    protocol_version=int(version),
    ssl_context=context,
    ssl_options={"server_hostname": "db.example"},
)
session = cluster.connect()
session.execute(
    "CREATE KEYSPACE IF NOT EXISTS shop WITH replication = "
    "{'class': 'SimpleStrategy', 'replication_factor': 1}"
)
session.execute("CREATE TABLE IF NOT EXISTS shop.orders (id int PRIMARY KEY, v text)")
insert = session.prepare("INSERT INTO shop.orders (id, v) VALUES (?, ?)")
select = session.prepare("SELECT v FROM shop.orders WHERE id = ?")
for size in [1, 1000, 100_000, 3_000_000]:
    session.execute(insert, [size, "v" * size])
    assert session.execute(select, [size]).one().v == "v" * size
futures = [session.execute_async(select, [1000]) for _ in range(200)]
assert all(future.result().one().v == "v" * 1000 for future in futures)
cluster.shutdown()
