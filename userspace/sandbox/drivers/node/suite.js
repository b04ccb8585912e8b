// Drives a Cassandra node with the Node.js driver, directly or through a proxy: the cases of
// ../expected.json, with the tables of ../schema.cql.
//
// Prints one JSON line per case, {"case": ..., "ok": ..., "detail": ...}; exits 1 when one failed. The
// keyspace is dropped at the end, also after a failure.
'use strict';

const assert = require('node:assert/strict');
const fs = require('node:fs');
const { setTimeout: sleep } = require('node:timers/promises');
const { parseArgs } = require('node:util');
const cassandra = require('cassandra-driver');

const { types } = cassandra;

// A cold node on two cores.
const REQUEST_TIMEOUT_MS = 60_000;
// For what comes to the driver by itself: events, and connections that it opens in the background.
const PATIENCE_MS = 20_000;
const PREPARED_ROWS = 300;
const PAGED_ROWS = 550;
const PAGE_SIZE = 100;
const LARGE_VALUE_BYTES = 2 << 20;
const CONNECTIONS = 2;

// What the suites take; see ../cases.py. The driver has no v5, and no compression.
const { values: args } = parseArgs({
  options: {
    host: { type: 'string' },
    port: { type: 'string' },
    user: { type: 'string' },
    password: { type: 'string' },
    protocol: { type: 'string' },
    compression: { type: 'string' },
    keyspace: { type: 'string' },
    schema: { type: 'string' },
  },
});

function newClient(keyspace, password) {
  return new cassandra.Client({
    contactPoints: [`${args.host}:${args.port}`],
    keyspace,
    applicationName: args.keyspace,
    authProvider: new cassandra.auth.PlainTextAuthProvider(args.user, password),
    policies: { loadBalancing: new cassandra.policies.loadBalancing.RoundRobinPolicy() },
    protocolOptions: { maxVersion: Number(args.protocol) },
    pooling: { coreConnectionsPerHost: { [types.distance.local]: CONNECTIONS }, warmup: true },
    socketOptions: { connectTimeout: REQUEST_TIMEOUT_MS, readTimeout: REQUEST_TIMEOUT_MS },
    queryOptions: { consistency: types.consistencies.one },
  });
}

// In no keyspace, and in the suite's.
const bare = newClient(undefined, args.password);
const client = newClient(args.keyspace, args.password);

const prepare = { prepare: true };

// Makes the keyspace and the tables.
async function open() {
  await bare.execute(`DROP KEYSPACE IF EXISTS ${args.keyspace}`);
  await bare.execute(
    `CREATE KEYSPACE ${args.keyspace} WITH replication = `
      + "{'class': 'SimpleStrategy', 'replication_factor': 1}",
  );
  const statements = fs.readFileSync(args.schema, 'utf8').split(';').map((text) => text.trim());
  for (const statement of statements.filter(Boolean)) {
    await client.execute(statement);
  }
  return args.keyspace;
}

// Whatever happened before.
async function drop() {
  await client.shutdown();
  await bare.execute(`DROP KEYSPACE IF EXISTS ${args.keyspace}`);
  await bare.shutdown();
  return args.keyspace;
}

// The node sees each connection with what was asked for.
async function connection() {
  const wanted = `v${args.protocol}, ${args.compression}`;
  await waitFor('all connections', async () => {
    const query = 'SELECT protocol_version, client_options FROM system_views.clients';
    const own = (await client.execute(query)).rows.filter(
      (row) => row.client_options?.APPLICATION_NAME === args.keyspace,
    );
    for (const row of own) {
      assert.equal(`v${row.protocol_version}, ${row.client_options.COMPRESSION ?? 'none'}`, wanted);
    }
    assert.equal(own.length, 2 * CONNECTIONS);
  });
  return wanted;
}

// Definitions, the events that tell of them, and what the driver makes of these.
async function schema() {
  await client.execute('CREATE TABLE made (id int PRIMARY KEY, name text)');
  await client.execute('ALTER TABLE made ADD tags set<text>');
  const made = () => client.metadata.getTable(args.keyspace, 'made');
  // Nothing, or an older state, until the event has come.
  await waitFor('the altered table', async () => assert.equal((await made())?.columns.length, 3));
  const columns = (await made()).columns.map((column) => column.name).sort();
  await client.execute('DROP TABLE made');
  await waitFor("the table's end", async () => assert.equal(await made(), null));
  return columns.join(', ');
}

// A value of each type, written; what is read is written again, and is the same to the node.
async function everyType() {
  const written = {
    id: 1,
    an_ascii: 'ascii',
    a_bigint: types.Long.fromString('-9007199254740993'),
    a_blob: Buffer.from([0, 1, 0xfe, 0xff]),
    a_boolean: true,
    a_date: types.LocalDate.fromString('2024-02-29'),
    a_decimal: types.BigDecimal.fromString('-12345.6789'),
    a_double: 0.1,
    a_duration: new types.Duration(1, 2, types.Long.fromString('3000000004')),
    a_float: 1.5,
    an_inet: types.InetAddress.fromString('2001:db8::1'),
    a_list: [3, 1, 2],
    a_map: { one: 1, two: 2 },
    a_null: null,
    a_set: ['a', 'b'],
    a_smallint: -32768,
    a_text: 'ünder 世界',
    a_time: types.LocalTime.fromString('13:30:54.000000234'),
    a_timestamp: new Date(1709210096789),
    a_timeuuid: types.TimeUuid.fromString('c4e1a4f0-d6f4-11ee-8080-808080808080'),
    a_tinyint: -128,
    some_tuples: [new types.Tuple(1, 'one'), new types.Tuple(2, 'two')],
    a_udt: { x: 1, y: 'two' },
    a_uuid: types.Uuid.fromString('5f0f3c1c-6e9e-4b43-9d5c-0c1a6f0c2f11'),
    a_varint: types.Integer.fromString('-123456789012345678901234567890'),
  };
  const names = Object.keys(written);
  const insert = `INSERT INTO types (${names.join(', ')}) VALUES (${names.map(() => '?').join(', ')})`;
  await client.execute(insert, Object.values(written), prepare);
  const select = `SELECT ${names.join(', ')} FROM types WHERE id = ?`;
  const read = (await client.execute(select, [1], prepare)).first().values();
  await client.execute(insert, [2, ...read.slice(1)], prepare);
  const asJson = async (id) =>
    (await client.execute('SELECT JSON * FROM types WHERE id = ?', [id], prepare)).first().get(0);
  const first = await asJson(1);
  assert.equal((await asJson(2)).replace('"id": 2', '"id": 1'), first);
  return first;
}

// QUERY, with and without values beside the text.
async function simple() {
  const hints = { hints: ['int', 'text'] };
  await client.execute('INSERT INTO simple (id, name) VALUES (?, ?)', [1, 'ünder'], hints);
  await client.execute('INSERT INTO simple (id, name) VALUES (?, ?)', [2, 'pass'], hints);
  await client.execute("UPDATE simple SET name = 'over' WHERE id = 2");
  await client.execute('DELETE FROM simple WHERE id = 1');
  const { rows } = await client.execute('SELECT id, name FROM simple');
  assert.equal(rows.length, 1);
  await client.execute('TRUNCATE simple');
  const counted = await client.execute('SELECT count(*) FROM simple');
  const warnings = counted.info.warnings?.length ?? 0;
  return `${rows[0].id} ${rows[0].name}; ${counted.first().count} rows, ${warnings} warning`;
}

// All in flight at once, over both connections.
async function prepared() {
  const data = (n) => Buffer.alloc(n, n % 256);
  await atOnce(PREPARED_ROWS, (n) =>
    client.execute('INSERT INTO prepared (id, data) VALUES (?, ?)', [n, data(n)], prepare));
  await atOnce(PREPARED_ROWS, async (n) => {
    const read = await client.execute('SELECT data FROM prepared WHERE id = ?', [n], prepare);
    assert.deepEqual(read.first().data, data(n));
  });
  return `${PREPARED_ROWS} rows`;
}

// The node forgets what was prepared for a table when that changes.
async function preparedAfterAlter() {
  const read = async () =>
    (await client.execute('SELECT * FROM altered WHERE id = ?', [1], prepare)).first();
  await client.execute("INSERT INTO altered (id, a) VALUES (1, 'before')");
  assert.equal((await read()).a, 'before');
  await client.execute('ALTER TABLE altered ADD b text');
  await client.execute("UPDATE altered SET b = 'after' WHERE id = 1");
  const row = await read();
  return `${row.a}, ${row.b}`;
}

// Counters have a kind of batch of their own. The driver prepares each text of a batch.
async function batches() {
  for (const [first, logged] of [[0, true], [100, false]]) {
    const statements = range(10).map((n) => ({
      query: 'INSERT INTO batched (id, v) VALUES (?, ?)',
      params: [first + n, 'prepared'],
    }));
    for (const n of range(5)) {
      statements.push({ query: `INSERT INTO batched (id, v) VALUES (${first + 10 + n}, 'text')` });
    }
    await client.batch(statements, { logged, prepare: true });
  }
  const add = range(4).map((n) => ({
    query: 'UPDATE counted SET n = n + ? WHERE id = 1',
    params: [types.Long.fromNumber(n)],
  }));
  await client.batch(add, { counter: true, prepare: true });
  const { rows } = await client.execute('SELECT id, v FROM batched');
  const count = (kind) => rows.filter((row) => row.v === kind).length;
  const counter = (await client.execute('SELECT n FROM counted WHERE id = 1')).first().n;
  return `${count('prepared')} prepared, ${count('text')} text; counter ${counter}`;
}

// The second one finds the first one's row.
async function conditional() {
  const insert = (value) =>
    client.execute('INSERT INTO conditional (id, v) VALUES (?, ?) IF NOT EXISTS', [1, value], {
      prepare: true,
      serialConsistency: types.consistencies.localSerial,
    });
  const first = await insert('first');
  const second = await insert('second');
  return `${first.wasApplied()}, ${second.wasApplied()}: ${second.first().v}`;
}

// Page after page, as the rows are asked for.
async function paging() {
  await atOnce(PAGED_ROWS, (n) =>
    client.execute('INSERT INTO paged (p, c, v) VALUES (1, ?, ?)', [n, 'x'.repeat(50)], prepare));
  const options = { prepare: true, fetchSize: PAGE_SIZE };
  let rows = 0;
  for await (const row of await client.execute('SELECT c FROM paged WHERE p = 1', [], options)) {
    assert.equal(row.c, rows);
    rows += 1;
  }
  return `${rows} rows`;
}

async function largeValue() {
  const data = Buffer.alloc(LARGE_VALUE_BYTES);
  for (let i = 0; i < data.length; i += 1) {
    data[i] = Math.imul(i, i) >>> 8;
  }
  await client.execute('INSERT INTO large (id, data) VALUES (1, ?)', [data], prepare);
  const read = (await client.execute('SELECT data FROM large WHERE id = 1')).first().data;
  assert.ok(read.equals(data), 'the bytes differ');
  return `${read.length} bytes`;
}

// Tracing and a payload that the application itself asks for.
async function traced() {
  await client.execute("INSERT INTO traced (id, v) VALUES (1, 'traced')");
  const options = { traceQuery: true, customPayload: { suite: Buffer.from('node') } };
  const select = await client.execute('SELECT v FROM traced WHERE id = 1', [], options);
  assert.ok(select.info.traceId instanceof types.Uuid, 'no tracing id');
  return select.first().v;
}

// What the node refuses arrives as what it is.
async function errors() {
  const names = {
    [types.responseErrorCodes.syntaxError]: 'syntax',
    [types.responseErrorCodes.invalid]: 'invalid',
    [types.responseErrorCodes.alreadyExists]: 'already exists',
  };
  const told = [];
  for (const statement of [
    'CREATE TABLE wrong (id int PRIMARY KEY) WITH nonsense = 1',
    'SELECT nothing FROM erring',
    'CREATE TABLE erring (id int PRIMARY KEY)',
  ]) {
    told.push(await client.execute(statement).then(() => 'accepted', (error) => names[error.code]));
  }
  return told.join(', ');
}

// In v4 the text has to name the keyspace.
async function keyspacePerRequest() {
  const table = `${args.keyspace}.per_request`;
  await bare.execute(`INSERT INTO ${table} (id, v) VALUES (?, ?)`, [1, 'named'], prepare);
  return (await bare.execute(`SELECT v FROM ${table} WHERE id = 1`)).first().v;
}

// A client that had none goes to a keyspace, with all of its connections.
async function useKeyspace() {
  await bare.execute(`USE ${args.keyspace}`);
  await bare.execute('INSERT INTO used (id, v) VALUES (?, ?)', [1, 'used'], prepare);
  return (await bare.execute('SELECT v FROM used WHERE id = 1')).first().v;
}

// The node's refusal reaches the driver in its own words.
async function wrongPassword() {
  const refused = newClient(undefined, `${args.password}-wrong`);
  try {
    await refused.connect();
  } catch (error) {
    const [cause] = Object.values(error.innerErrors);
    assert.ok(cause instanceof cassandra.errors.AuthenticationError, `${cause}`);
    assert.match(cause.message, /password are incorrect/);
    return 'refused';
  } finally {
    await refused.shutdown();
  }
  throw new Error('the wrong password was accepted');
}

function range(count) {
  return [...Array(count).keys()];
}

function atOnce(count, one) {
  return Promise.all(range(count).map(one));
}

// Asks again until nothing is thrown; throws the last of it.
async function waitFor(what, holds) {
  const deadline = Date.now() + PATIENCE_MS;
  for (;;) {
    try {
      return await holds();
    } catch (error) {
      if (Date.now() > deadline) {
        throw new Error(what, { cause: error });
      }
      await sleep(20);
    }
  }
}

// Runs one case and prints its line; true when it passed.
async function run(name, one) {
  const started = Date.now();
  const line = { case: name };
  try {
    line.detail = await one();
    line.ok = true;
  } catch (error) {
    line.detail = error.cause ? `${error}: ${error.cause}` : `${error.stack}`;
    line.ok = false;
  }
  console.log(JSON.stringify({ ...line, elapsed_ms: Date.now() - started }));
  return line.ok;
}

async function main() {
  let passed = await run('keyspace', open);
  if (passed) {
    for (const [name, one] of [
      ['connection', connection],
      ['schema', schema],
      ['types', everyType],
      ['simple', simple],
      ['prepared', prepared],
      ['prepared_after_alter', preparedAfterAlter],
      ['batches', batches],
      ['conditional', conditional],
      ['paging', paging],
      ['large_value', largeValue],
      ['traced', traced],
      ['errors', errors],
      ['keyspace_per_request', keyspacePerRequest],
      ['use_keyspace', useKeyspace],
      ['wrong_password', wrongPassword],
    ]) {
      passed = (await run(name, one)) && passed;
    }
  }
  passed = (await run('drop', drop)) && passed;
  process.exitCode = passed ? 0 : 1;
}

main();
