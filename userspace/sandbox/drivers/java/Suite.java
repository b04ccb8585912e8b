import static com.datastax.oss.driver.api.core.config.DefaultDriverOption.*;

import com.datastax.oss.driver.api.core.AllNodesFailedException;
import com.datastax.oss.driver.api.core.CqlSession;
import com.datastax.oss.driver.api.core.DefaultConsistencyLevel;
import com.datastax.oss.driver.api.core.auth.AuthenticationException;
import com.datastax.oss.driver.api.core.config.DriverConfigLoader;
import com.datastax.oss.driver.api.core.cql.AsyncResultSet;
import com.datastax.oss.driver.api.core.cql.BatchStatement;
import com.datastax.oss.driver.api.core.cql.BatchStatementBuilder;
import com.datastax.oss.driver.api.core.cql.DefaultBatchType;
import com.datastax.oss.driver.api.core.cql.PreparedStatement;
import com.datastax.oss.driver.api.core.cql.ResultSet;
import com.datastax.oss.driver.api.core.cql.Row;
import com.datastax.oss.driver.api.core.cql.SimpleStatement;
import com.datastax.oss.driver.api.core.data.CqlDuration;
import com.datastax.oss.driver.api.core.metadata.schema.TableMetadata;
import com.datastax.oss.driver.api.core.servererrors.AlreadyExistsException;
import com.datastax.oss.driver.api.core.servererrors.CoordinatorException;
import com.datastax.oss.driver.api.core.servererrors.InvalidQueryException;
import com.datastax.oss.driver.api.core.servererrors.SyntaxError;
import com.datastax.oss.driver.api.core.type.DataTypes;
import com.datastax.oss.driver.api.core.type.TupleType;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletionStage;
import java.util.function.IntFunction;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * Drives a Cassandra node with the Java driver, directly or through a proxy: the cases of
 * ../expected.json, with the tables of ../schema.cql.
 *
 * <p>Prints one JSON line per case, {"case": ..., "ok": ..., "detail": ...}; exits 1 when one failed.
 * The keyspace is dropped at the end, also after a failure.
 */
public final class Suite {
  /** A cold node on two cores. */
  private static final Duration TIMEOUT = Duration.ofSeconds(60);
  /** For what comes to the driver by itself: connections that it opens in the background. */
  private static final Duration PATIENCE = Duration.ofSeconds(20);
  private static final int PREPARED_ROWS = 300;
  private static final int PAGED_ROWS = 550;
  private static final int PAGE_SIZE = 100;
  private static final int LARGE_VALUE_BYTES = 2 << 20;
  private static final int POOL_CONNECTIONS = 2;

  private final Map<String, String> args;
  private final String keyspace;
  private final boolean isV5;
  /** In no keyspace, and in the suite's. */
  private CqlSession bare, session;

  private Suite(Map<String, String> args) {
    this.args = args;
    keyspace = args.get("keyspace");
    isV5 = args.get("protocol").equals("5");
  }

  /** Options as ../cases.py has them: a name, a value. */
  public static void main(String[] words) {
    Map<String, String> args = new HashMap<>();
    for (int i = 0; i < words.length; i += 2) {
      args.put(words[i].substring("--".length()), words[i + 1]);
    }
    System.exit(new Suite(args).runAll() ? 0 : 1);
  }

  private boolean runAll() {
    boolean passed = run("keyspace", this::open);
    if (passed) {
      passed &= run("connection", this::connection);
      passed &= run("schema", this::schema);
      passed &= run("types", this::types);
      passed &= run("simple", this::simple);
      passed &= run("prepared", this::prepared);
      passed &= run("prepared_after_alter", this::preparedAfterAlter);
      passed &= run("batches", this::batches);
      passed &= run("conditional", this::conditional);
      passed &= run("paging", this::paging);
      passed &= run("large_value", this::largeValue);
      passed &= run("traced", this::traced);
      passed &= run("errors", this::errors);
      passed &= run("keyspace_per_request", this::keyspacePerRequest);
      passed &= run("use_keyspace", this::useKeyspace);
      passed &= run("wrong_password", this::wrongPassword);
    }
    return run("drop", this::drop) && passed;
  }

  /** `in`: a keyspace, or null. */
  private CqlSession connect(String in, String password) {
    // Without a window each definition would wait a second for others to join it.
    DriverConfigLoader config =
        DriverConfigLoader.programmaticBuilder()
            .withString(PROTOCOL_VERSION, "V" + args.get("protocol"))
            .withString(PROTOCOL_COMPRESSION, args.get("compression"))
            .withString(LOAD_BALANCING_POLICY_CLASS, "DcInferringLoadBalancingPolicy")
            .withString(REQUEST_CONSISTENCY, "ONE")
            .withInt(CONNECTION_POOL_LOCAL_SIZE, POOL_CONNECTIONS)
            .withDuration(REQUEST_TIMEOUT, TIMEOUT)
            .withDuration(CONNECTION_INIT_QUERY_TIMEOUT, TIMEOUT)
            .withDuration(CONNECTION_SET_KEYSPACE_TIMEOUT, TIMEOUT)
            .withDuration(CONTROL_CONNECTION_TIMEOUT, TIMEOUT)
            .withDuration(METADATA_SCHEMA_REQUEST_TIMEOUT, TIMEOUT)
            .withBoolean(METADATA_SCHEMA_ENABLED, false)
            .withDuration(METADATA_SCHEMA_WINDOW, Duration.ZERO)
            // A session that is closed has nothing under way.
            .withInt(NETTY_IO_SHUTDOWN_QUIET_PERIOD, 0)
            .withInt(NETTY_ADMIN_SHUTDOWN_QUIET_PERIOD, 0)
            .withStringList(METADATA_SCHEMA_REFRESHED_KEYSPACES, List.of(keyspace))
            .build();
    return CqlSession.builder()
        .withConfigLoader(config)
        .addContactPoint(
            new InetSocketAddress(args.get("host"), Integer.parseInt(args.get("port"))))
        .withAuthCredentials(args.get("user"), password)
        .withApplicationName(keyspace)
        .withKeyspace(in)
        .build();
  }

  /** Makes the keyspace and the tables. */
  private String open() throws Exception {
    bare = connect(null, args.get("password"));
    bare.execute("DROP KEYSPACE IF EXISTS " + keyspace);
    bare.execute(
        "CREATE KEYSPACE " + keyspace
            + " WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}");
    session = connect(keyspace, args.get("password"));
    for (String statement : Files.readString(Path.of(args.get("schema"))).split(";")) {
      if (!statement.isBlank()) {
        session.execute(statement.strip());
      }
    }
    // It would have asked for all of them again behind each.
    session.setSchemaMetadataEnabled(true);
    return keyspace;
  }

  /** Whatever happened before. */
  private String drop() {
    if (session != null) {
      session.close();
    }
    if (bare != null) {
      bare.execute("DROP KEYSPACE IF EXISTS " + keyspace);
      bare.close();
    }
    return keyspace;
  }

  /** The node sees each connection with what was asked for. */
  private String connection() throws Exception {
    String wanted = "v" + args.get("protocol") + ", " + args.get("compression");
    // The pools', and the two control connections.
    List<String> all = Collections.nCopies(2 * POOL_CONNECTIONS + 2, wanted);
    Instant deadline = Instant.now().plus(PATIENCE);
    for (; ; ) {
      List<String> own = new ArrayList<>();
      for (Row row :
          session.execute("SELECT protocol_version, client_options FROM system_views.clients")) {
        Map<String, String> options = row.getMap("client_options", String.class, String.class);
        if (options != null && keyspace.equals(options.get("APPLICATION_NAME"))) {
          String compression = options.getOrDefault("COMPRESSION", "none");
          own.add("v" + row.getInt("protocol_version") + ", " + compression);
        }
      }
      if (own.equals(all)) {
        return wanted;
      }
      check(Instant.now().isBefore(deadline), "connections: " + own);
      Thread.sleep(20);
    }
  }

  /** Definitions, and what the driver makes of them. */
  private String schema() {
    session.execute("CREATE TABLE made (id int PRIMARY KEY, name text)");
    session.execute("ALTER TABLE made ADD tags set<text>");
    String columns =
        made().orElseThrow().getColumns().keySet().stream()
            .map(Object::toString)
            .sorted()
            .collect(Collectors.joining(", "));
    session.execute("DROP TABLE made");
    check(made().isEmpty(), "the table is still in the driver's metadata");
    return columns;
  }

  private Optional<? extends TableMetadata> made() {
    return session.getMetadata().getKeyspace(keyspace).flatMap(it -> it.getTable("made"));
  }

  /** A value of each type, written; what is read is written again, and is the same to the node. */
  private String types() throws Exception {
    List<String> names =
        List.of(
            "id", "an_ascii", "a_bigint", "a_blob", "a_boolean", "a_date", "a_decimal", "a_double",
            "a_duration", "a_float", "an_inet", "a_list", "a_map", "a_null", "a_set", "a_smallint",
            "a_text", "a_time", "a_timestamp", "a_timeuuid", "a_tinyint", "some_tuples", "a_udt",
            "a_uuid", "a_varint");
    TupleType pair = DataTypes.tupleOf(DataTypes.INT, DataTypes.TEXT);
    Object[] written = {
      1,
      "ascii",
      -9007199254740993L,
      ByteBuffer.wrap(new byte[] {0, 1, (byte) 0xfe, (byte) 0xff}),
      true,
      LocalDate.parse("2024-02-29"),
      new BigDecimal("-12345.6789"),
      0.1,
      CqlDuration.newInstance(1, 2, 3_000_000_004L),
      1.5f,
      InetAddress.getByName("2001:db8::1"),
      List.of(3, 1, 2),
      Map.of("one", 1, "two", 2),
      null,
      Set.of("a", "b"),
      (short) -32768,
      "ünder 世界",
      LocalTime.parse("13:30:54.000000234"),
      Instant.ofEpochMilli(1709210096789L),
      UUID.fromString("c4e1a4f0-d6f4-11ee-8080-808080808080"),
      (byte) -128,
      List.of(pair.newValue(1, "one"), pair.newValue(2, "two")),
      session
          .getMetadata()
          .getKeyspace(keyspace)
          .flatMap(it -> it.getUserDefinedType("point"))
          .orElseThrow()
          .newValue(1, "two"),
      UUID.fromString("5f0f3c1c-6e9e-4b43-9d5c-0c1a6f0c2f11"),
      new BigInteger("-123456789012345678901234567890"),
    };
    String columns = String.join(", ", names);
    String marks = String.join(", ", Collections.nCopies(names.size(), "?"));
    PreparedStatement insert =
        session.prepare("INSERT INTO types (" + columns + ") VALUES (" + marks + ")");
    session.execute(insert.bind(written));
    PreparedStatement select =
        session.prepare("SELECT " + columns + " FROM types WHERE id = ?");
    Row row = one(session.execute(select.bind(1)));
    Object[] read = IntStream.range(0, names.size()).mapToObj(row::getObject).toArray();
    read[0] = 2;
    session.execute(insert.bind(read));
    PreparedStatement json = session.prepare("SELECT JSON * FROM types WHERE id = ?");
    String first = one(session.execute(json.bind(1))).getString(0);
    String again = one(session.execute(json.bind(2))).getString(0);
    check(again.replace("\"id\": 2", "\"id\": 1").equals(first), again + " is not " + first);
    return first;
  }

  /** QUERY, with and without values beside the text. */
  private String simple() {
    String insert = "INSERT INTO simple (id, name) VALUES (?, ?)";
    session.execute(SimpleStatement.newInstance(insert, 1, "ünder"));
    session.execute(SimpleStatement.newInstance(insert, 2, "pass"));
    session.execute("UPDATE simple SET name = 'over' WHERE id = 2");
    session.execute("DELETE FROM simple WHERE id = 1");
    List<Row> rows = session.execute("SELECT id, name FROM simple").all();
    check(rows.size() == 1, rows.size() + " rows");
    session.execute("TRUNCATE simple");
    ResultSet counted = session.execute("SELECT count(*) FROM simple");
    int warnings = counted.getExecutionInfo().getWarnings().size();
    Row row = rows.get(0);
    return String.format(
        "%d %s; %d rows, %d warning",
        row.getInt("id"), row.getString("name"), one(counted).getLong(0), warnings);
  }

  /** All in flight at once, over both connections. */
  private String prepared() {
    PreparedStatement insert = session.prepare("INSERT INTO prepared (id, data) VALUES (?, ?)");
    PreparedStatement select = session.prepare("SELECT data FROM prepared WHERE id = ?");
    IntFunction<ByteBuffer> data =
        n -> {
          byte[] bytes = new byte[n];
          Arrays.fill(bytes, (byte) n);
          return ByteBuffer.wrap(bytes);
        };
    atOnce(PREPARED_ROWS, n -> session.executeAsync(insert.bind(n, data.apply(n))));
    List<AsyncResultSet> read =
        atOnce(PREPARED_ROWS, n -> session.executeAsync(select.bind(n)));
    for (int n = 0; n < PREPARED_ROWS; n++) {
      ByteBuffer bytes = Objects.requireNonNull(read.get(n).one()).getByteBuffer(0);
      check(data.apply(n).equals(bytes), "row " + n + " differs");
    }
    return read.size() + " rows";
  }

  /** The node forgets what was prepared for a table when that changes. */
  private String preparedAfterAlter() {
    session.execute("INSERT INTO altered (id, a) VALUES (1, 'before')");
    PreparedStatement select = session.prepare("SELECT * FROM altered WHERE id = ?");
    check("before".equals(one(session.execute(select.bind(1))).getString("a")), "not before");
    session.execute("ALTER TABLE altered ADD b text");
    session.execute("UPDATE altered SET b = 'after' WHERE id = 1");
    Row row = one(session.execute(select.bind(1)));
    // Before v5 a driver is not told that a statement's columns are others now.
    check(!isV5 || "after".equals(row.getString("b")), "not after");
    Row b = one(session.execute("SELECT b FROM altered WHERE id = 1"));
    return row.getString("a") + ", " + b.getString("b");
  }

  /** Prepared statements and texts together; counters have a kind of batch of their own. */
  private String batches() {
    PreparedStatement insert = session.prepare("INSERT INTO batched (id, v) VALUES (?, ?)");
    for (int first : new int[] {0, 100}) {
      BatchStatementBuilder batch =
          BatchStatement.builder(first == 0 ? DefaultBatchType.LOGGED : DefaultBatchType.UNLOGGED);
      for (int n = first; n < first + 10; n++) {
        batch.addStatement(insert.bind(n, "prepared"));
      }
      for (int n = first + 10; n < first + 15; n++) {
        String text = "INSERT INTO batched (id, v) VALUES (" + n + ", 'text')";
        batch.addStatement(SimpleStatement.newInstance(text));
      }
      session.execute(batch.build());
    }
    PreparedStatement add = session.prepare("UPDATE counted SET n = n + ? WHERE id = 1");
    BatchStatementBuilder batch = BatchStatement.builder(DefaultBatchType.COUNTER);
    for (long n = 0; n < 4; n++) {
      batch.addStatement(add.bind(n));
    }
    session.execute(batch.build());
    Map<String, Long> kinds =
        session.execute("SELECT id, v FROM batched").all().stream()
            .collect(Collectors.groupingBy(row -> row.getString("v"), Collectors.counting()));
    long counter = one(session.execute("SELECT n FROM counted WHERE id = 1")).getLong(0);
    return String.format(
        "%d prepared, %d text; counter %d", kinds.get("prepared"), kinds.get("text"), counter);
  }

  /** The second one finds the first one's row. */
  private String conditional() {
    PreparedStatement insert =
        session.prepare("INSERT INTO conditional (id, v) VALUES (?, ?) IF NOT EXISTS");
    DefaultConsistencyLevel serial = DefaultConsistencyLevel.LOCAL_SERIAL;
    ResultSet first =
        session.execute(insert.bind(1, "first").setSerialConsistencyLevel(serial));
    ResultSet second =
        session.execute(insert.bind(1, "second").setSerialConsistencyLevel(serial));
    boolean applied = second.wasApplied();
    return first.wasApplied() + ", " + applied + ": " + one(second).getString("v");
  }

  /** Page after page, as the rows are asked for. */
  private String paging() {
    PreparedStatement insert = session.prepare("INSERT INTO paged (p, c, v) VALUES (1, ?, ?)");
    atOnce(PAGED_ROWS, n -> session.executeAsync(insert.bind(n, "x".repeat(50))));
    SimpleStatement select = SimpleStatement.newInstance("SELECT c FROM paged WHERE p = 1");
    int rows = 0;
    for (Row row : session.execute(select.setPageSize(PAGE_SIZE))) {
      check(row.getInt(0) == rows, "row " + rows + " is " + row.getInt(0));
      rows++;
    }
    return rows + " rows";
  }

  /** Many segments in v5. */
  private String largeValue() {
    byte[] data = new byte[LARGE_VALUE_BYTES];
    for (int i = 0; i < data.length; i++) {
      data[i] = (byte) (i * i >>> 8);
    }
    PreparedStatement insert = session.prepare("INSERT INTO large (id, data) VALUES (1, ?)");
    session.execute(insert.bind(ByteBuffer.wrap(data)));
    ByteBuffer read =
        one(session.execute("SELECT data FROM large WHERE id = 1")).getByteBuffer(0);
    check(ByteBuffer.wrap(data).equals(read), "the bytes differ");
    return read.remaining() + " bytes";
  }

  /** Tracing and a payload that the application itself asks for. */
  private String traced() {
    session.execute("INSERT INTO traced (id, v) VALUES (1, 'traced')");
    SimpleStatement select =
        SimpleStatement.newInstance("SELECT v FROM traced WHERE id = 1")
            .setTracing(true)
            .setCustomPayload(Map.of("suite", ByteBuffer.wrap("java".getBytes())));
    ResultSet traced = session.execute(select);
    check(traced.getExecutionInfo().getTracingId() != null, "no tracing id");
    return one(traced).getString("v");
  }

  /** What the node refuses arrives as what it is. */
  private String errors() {
    Map<Class<?>, String> names =
        Map.of(
            SyntaxError.class, "syntax",
            InvalidQueryException.class, "invalid",
            AlreadyExistsException.class, "already exists");
    List<String> told = new ArrayList<>();
    for (String statement :
        List.of(
            "CREATE TABLE wrong (id int PRIMARY KEY) WITH nonsense = 1",
            "SELECT nothing FROM erring",
            "CREATE TABLE erring (id int PRIMARY KEY)")) {
      try {
        session.execute(statement);
        told.add("accepted");
      } catch (CoordinatorException refused) {
        told.add(names.getOrDefault(refused.getClass(), refused.toString()));
      }
    }
    return String.join(", ", told);
  }

  /** In v5 a request can name the keyspace; before, the text has to. */
  private String keyspacePerRequest() {
    PreparedStatement insert =
        bare.prepare(named("INSERT INTO %s (id, v) VALUES (?, ?)"));
    bare.execute(insert.bind(1, "named"));
    return one(bare.execute(named("SELECT v FROM %s WHERE id = 1"))).getString("v");
  }

  private SimpleStatement named(String text) {
    String table = "per_request";
    return isV5
        ? SimpleStatement.newInstance(String.format(text, table)).setKeyspace(keyspace)
        : SimpleStatement.newInstance(String.format(text, keyspace + "." + table));
  }

  /** A session that had none goes to a keyspace, with all of its connections. */
  private String useKeyspace() {
    bare.execute("USE " + keyspace);
    PreparedStatement insert = bare.prepare("INSERT INTO used (id, v) VALUES (?, ?)");
    bare.execute(insert.bind(1, "used"));
    return one(bare.execute("SELECT v FROM used WHERE id = 1")).getString("v");
  }

  /** The node's refusal reaches the driver in its own words. */
  private String wrongPassword() {
    try {
      connect(null, args.get("password") + "-wrong").close();
    } catch (AllNodesFailedException refused) {
      for (List<Throwable> causes : refused.getAllErrors().values()) {
        for (Throwable cause : causes) {
          check(cause instanceof AuthenticationException, cause.toString());
          check(cause.getMessage().contains("password are incorrect"), cause.getMessage());
        }
      }
      return "refused";
    }
    throw new IllegalStateException("the wrong password was accepted");
  }

  private static Row one(ResultSet rows) {
    return Objects.requireNonNull(rows.one(), "no row");
  }

  /** What became of `count` requests, which are all sent before the first answer is waited for. */
  private static List<AsyncResultSet> atOnce(
      int count, IntFunction<CompletionStage<AsyncResultSet>> send) {
    List<CompletionStage<AsyncResultSet>> sent =
        IntStream.range(0, count).mapToObj(send).collect(Collectors.toList());
    return sent.stream().map(it -> it.toCompletableFuture().join()).collect(Collectors.toList());
  }

  private static void check(boolean holds, String otherwise) {
    if (!holds) {
      throw new IllegalStateException(otherwise);
    }
  }

  private interface Case {
    String run() throws Exception;
  }

  /** Runs one case and prints its line; true when it passed. */
  private static boolean run(String name, Case one) {
    long started = System.nanoTime();
    boolean ok = false;
    String detail;
    try {
      detail = one.run();
      ok = true;
    } catch (Exception error) {
      detail = error + " at " + error.getStackTrace()[0];
    }
    long elapsedMs = (System.nanoTime() - started) / 1_000_000;
    System.out.printf(
        "{\"case\": %s, \"ok\": %b, \"detail\": %s, \"elapsed_ms\": %d}%n",
        quoted(name), ok, quoted(detail), elapsedMs);
    return ok;
  }

  /** As JSON has strings, in ASCII. */
  private static String quoted(String text) {
    StringBuilder json = new StringBuilder("\"");
    for (char c : text.toCharArray()) {
      boolean isPlain = c >= ' ' && c <= '~' && c != '"' && c != '\\';
      json.append(isPlain ? String.valueOf(c) : String.format("\\u%04x", (int) c));
    }
    return json.append('"').toString();
  }
}
