import com.datastax.oss.driver.api.core.CqlSession;
import com.datastax.oss.driver.api.core.DriverException;
import com.datastax.oss.driver.api.core.config.DefaultDriverOption;
import com.datastax.oss.driver.api.core.config.DriverConfigLoader;
import com.datastax.oss.driver.api.core.cql.BoundStatement;
import com.datastax.oss.driver.api.core.cql.PreparedStatement;
import com.datastax.oss.driver.api.core.cql.ResultSet;
import com.datastax.oss.driver.api.core.cql.Row;
import com.datastax.oss.driver.api.core.cql.SimpleStatement;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.Vector;
import java.util.concurrent.ConcurrentHashMap;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.DBException;
import site.ycsb.Status;
import site.ycsb.StringByteIterator;

/**
 * YCSB's operations in CQL, on the Java driver. The keyspace, the table and its ten columns are those that YCSB documents for
 * Cassandra; threads share one session, which has one connection. Protocol v4 is spoken: not every proxy speaks v5. Before the
 * first operation that YCSB counts, a row that it does not know is written and read for {@code cql.warmup.seconds}, so that what is
 * timed is compiled.
 */
public final class CqlBinding extends DB {
  private static final String KEYSPACE = "underpass_ycsb";
  private static final int FIELDS = 10;
  private static final String TABLE = "usertable";
  private static final String WARMED = "warmed";
  private static final Duration PATIENCE = Duration.ofSeconds(10);

  private static final Map<String, PreparedStatement> PREPARED = new ConcurrentHashMap<>();
  private static CqlSession session;
  private static int users;

  @Override
  public void init() throws DBException {
    synchronized (CqlBinding.class) {
      users++;
      if (session == null) {
        session = connect();
        warm(Integer.parseInt(getProperties().getProperty("cql.warmup.seconds", "0")));
      }
    }
  }

  private void warm(int seconds) {
    Map<String, ByteIterator> value = Map.of("field0", new StringByteIterator(WARMED));
    long end = System.nanoTime() + Duration.ofSeconds(seconds).toNanos();
    while (System.nanoTime() < end) {
      update(TABLE, WARMED, value);
      read(TABLE, WARMED, null, new HashMap<>());
    }
  }

  @Override
  public void cleanup() {
    synchronized (CqlBinding.class) {
      if (--users == 0) {
        session.close();
      }
    }
  }

  private CqlSession connect() throws DBException {
    String address = getProperties().getProperty("cql.address", "127.0.0.1:9042");
    int colon = address.lastIndexOf(':');
    DriverConfigLoader options =
        DriverConfigLoader.programmaticBuilder()
            .withString(DefaultDriverOption.PROTOCOL_VERSION, "V4")
            .withString(DefaultDriverOption.REQUEST_CONSISTENCY, "ONE")
            .withDuration(DefaultDriverOption.REQUEST_TIMEOUT, PATIENCE)
            .withBoolean(DefaultDriverOption.METADATA_SCHEMA_ENABLED, false)
            .build();
    try {
      CqlSession connected =
          CqlSession.builder()
              .addContactPoint(
                  new InetSocketAddress(
                      address.substring(0, colon), Integer.parseInt(address.substring(colon + 1))))
              .withAuthCredentials(
                  getProperties().getProperty("cql.user", ""),
                  getProperties().getProperty("cql.password", ""))
              .withLocalDatacenter(getProperties().getProperty("cql.datacenter", "datacenter1"))
              .withConfigLoader(options)
              .build();
      makeTable(connected);
      return connected;
    } catch (DriverException error) {
      throw new DBException("cannot connect to " + address, error);
    }
  }

  private static void makeTable(CqlSession connected) {
    connected.execute(
        "CREATE KEYSPACE IF NOT EXISTS "
            + KEYSPACE
            + " WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}");
    StringBuilder columns = new StringBuilder("y_id text PRIMARY KEY");
    for (int n = 0; n < FIELDS; n++) {
      columns.append(", field").append(n).append(" text");
    }
    connected.execute("CREATE TABLE IF NOT EXISTS " + KEYSPACE + "." + TABLE + " (" + columns + ")");
  }

  private static BoundStatement bound(String cql, Object... values) {
    return PREPARED.computeIfAbsent(cql, text -> session.prepare(SimpleStatement.newInstance(text))).bind(values);
  }

  private static String columns(Set<String> fields) {
    return fields == null ? "*" : String.join(", ", new TreeSet<>(fields));
  }

  private static void copy(Row row, Map<String, ByteIterator> result) {
    row.getColumnDefinitions()
        .forEach(
            column -> {
              String value = row.getString(column.getName());
              result.put(column.getName().asInternal(), value == null ? null : new StringByteIterator(value));
            });
  }

  private interface Operation {
    Status run();
  }

  private static Status tried(Operation operation) {
    try {
      return operation.run();
    } catch (DriverException error) {
      System.err.println(error);
      return Status.ERROR;
    }
  }

  @Override
  public Status read(String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
    return tried(
        () -> {
          String cql = "SELECT " + columns(fields) + " FROM " + KEYSPACE + "." + table + " WHERE y_id = ?";
          Row row = session.execute(bound(cql, key)).one();
          if (row == null) {
            return Status.NOT_FOUND;
          }
          copy(row, result);
          return Status.OK;
        });
  }

  @Override
  public Status scan(
      String table, String first, int count, Set<String> fields, Vector<HashMap<String, ByteIterator>> result) {
    return tried(
        () -> {
          String cql =
              "SELECT "
                  + columns(fields)
                  + " FROM "
                  + KEYSPACE
                  + "."
                  + table
                  + " WHERE token(y_id) >= token(?) LIMIT ?";
          ResultSet rows = session.execute(bound(cql, first, count));
          for (Row row : rows) {
            HashMap<String, ByteIterator> copied = new HashMap<>();
            copy(row, copied);
            result.add(copied);
          }
          return Status.OK;
        });
  }

  @Override
  public Status insert(String table, String key, Map<String, ByteIterator> values) {
    // An INSERT in CQL is what an UPDATE is.
    return update(table, key, values);
  }

  @Override
  public Status update(String table, String key, Map<String, ByteIterator> values) {
    return tried(
        () -> {
          Set<String> names = new TreeSet<>(values.keySet());
          String set = String.join(" = ?, ", names) + " = ?";
          String cql = "UPDATE " + KEYSPACE + "." + table + " SET " + set + " WHERE y_id = ?";
          Object[] bind = new Object[names.size() + 1];
          int at = 0;
          for (String name : names) {
            bind[at++] = values.get(name).toString();
          }
          bind[at] = key;
          session.execute(bound(cql, bind));
          return Status.OK;
        });
  }

  @Override
  public Status delete(String table, String key) {
    return tried(
        () -> {
          session.execute(bound("DELETE FROM " + KEYSPACE + "." + table + " WHERE y_id = ?", key));
          return Status.OK;
        });
  }
}
