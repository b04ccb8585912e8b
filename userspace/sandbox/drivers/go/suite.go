// Drives a Cassandra node with gocql, directly or through a proxy: the cases of ../expected.json,
// with the tables of ../schema.cql.
//
// Prints one JSON line per case, {"case": ..., "ok": ..., "detail": ...}; exits 1 when one failed. The
// keyspace is dropped at the end, also after a failure.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"reflect"
	"sort"
	"strings"
	"sync"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/apache/cassandra-gocql-driver/v2/lz4"
	"github.com/apache/cassandra-gocql-driver/v2/snappy"
	"gopkg.in/inf.v0"
)

const (
	// A cold node on two cores.
	requestTimeout = 60 * time.Second
	// For what comes to the driver by itself: events, and connections that it opens in the background.
	patience        = 20 * time.Second
	preparedRows    = 300
	pagedRows       = 550
	pageSize        = 100
	largeValueBytes = 2 << 20
)

type suite struct {
	args  arguments
	dials *dials
	// In no keyspace, and in the suite's.
	bare, session *gocql.Session
}

func main() {
	args := parseArguments()
	s := &suite{args: args, dials: newDials()}
	passed := run("keyspace", s.open)
	if passed {
		for _, one := range s.cases() {
			passed = run(one.name, one.run) && passed
		}
	}
	passed = run("drop", s.drop) && passed
	if !passed {
		os.Exit(1)
	}
}

func (s *suite) cases() []oneCase {
	return []oneCase{
		{"connection", s.connection},
		{"schema", s.schema},
		{"types", s.types},
		{"simple", s.simple},
		{"prepared", s.prepared},
		{"prepared_after_alter", s.preparedAfterAlter},
		{"batches", s.batches},
		{"conditional", s.conditional},
		{"paging", s.paging},
		{"large_value", s.largeValue},
		{"traced", s.traced},
		{"errors", s.errors},
		{"keyspace_per_request", s.keyspacePerRequest},
		{"use_keyspace", s.useKeyspace},
		{"wrong_password", s.wrongPassword},
	}
}

// A session of two connections and the control connection.
func (s *suite) connect(keyspace, password string) (*gocql.Session, error) {
	cluster := gocql.NewCluster(s.args.host)
	cluster.Port = s.args.port
	cluster.ProtoVersion = s.args.protocol
	cluster.Keyspace = keyspace
	cluster.NumConns = 2
	cluster.Consistency = gocql.One
	cluster.Timeout = requestTimeout
	cluster.ConnectTimeout = requestTimeout
	cluster.Authenticator = gocql.PasswordAuthenticator{Username: s.args.user, Password: password}
	cluster.Dialer = s.dials
	switch s.args.compression {
	case "lz4":
		cluster.Compressor = lz4.LZ4Compressor{}
	case "snappy":
		cluster.Compressor = snappy.SnappyCompressor{}
	}
	return cluster.CreateSession()
}

// Makes the keyspace and the tables.
func (s *suite) open() any {
	s.bare = got(s.connect("", s.args.password))
	exec(s.bare, "DROP KEYSPACE IF EXISTS "+s.args.keyspace)
	exec(s.bare, "CREATE KEYSPACE "+s.args.keyspace+
		" WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
	s.session = got(s.connect(s.args.keyspace, s.args.password))
	for _, statement := range s.args.statements() {
		exec(s.session, statement)
	}
	return s.args.keyspace
}

// Whatever happened before.
func (s *suite) drop() any {
	if s.session != nil {
		s.session.Close()
	}
	if s.bare != nil {
		defer s.bare.Close()
		exec(s.bare, "DROP KEYSPACE IF EXISTS "+s.args.keyspace)
	}
	return s.args.keyspace
}

// The node sees each connection under the address that its socket has, with what was asked for.
func (s *suite) connection() any {
	wanted := fmt.Sprintf("v%d, %s", s.args.protocol, s.args.compression)
	// The two of each pool, and the two control connections.
	const connections = 6
	waitFor("all connections", func() error {
		open := s.dials.open()
		seen := map[string]bool{}
		iter := s.session.Query("SELECT address, port, protocol_version, client_options FROM system_views.clients").Iter()
		var address net.IP
		var port, version int
		var options map[string]string
		for iter.Scan(&address, &port, &version, &options) {
			local := fmt.Sprintf("%v:%d", address, port)
			compression := "none"
			if named, ok := options["COMPRESSION"]; ok {
				compression = named
			}
			if has := fmt.Sprintf("v%d, %s", version, compression); open[local] && has != wanted {
				return fmt.Errorf("%s is %s", local, has)
			}
			seen[local] = open[local]
		}
		check(iter.Close())
		for local := range open {
			if !seen[local] {
				return fmt.Errorf("the node does not see %s", local)
			}
		}
		if len(open) != connections {
			return fmt.Errorf("%d connections, not %d", len(open), connections)
		}
		return nil
	})
	return wanted
}

// Definitions, the events that tell of them, and what the driver makes of these.
func (s *suite) schema() any {
	exec(s.session, "CREATE TABLE made (id int PRIMARY KEY, name text)")
	exec(s.session, "ALTER TABLE made ADD tags set<text>")
	made := func() *gocql.TableMetadata {
		return got(s.session.KeyspaceMetadata(s.args.keyspace)).Tables["made"]
	}
	// Nothing, or an older state, until the event has come.
	waitFor("the altered table", func() error {
		if table := made(); table == nil || len(table.Columns) != 3 {
			return errors.New("not there")
		}
		return nil
	})
	var columns []string
	for name := range made().Columns {
		columns = append(columns, name)
	}
	sort.Strings(columns)
	exec(s.session, "DROP TABLE made")
	waitFor("the table's end", func() error {
		if made() != nil {
			return errors.New("still there")
		}
		return nil
	})
	return strings.Join(columns, ", ")
}

type point struct {
	X int    `cql:"x"`
	Y string `cql:"y"`
}

type pair struct {
	Number int
	Text   string
}

// A value of each type, written; what is read is written again, and is the same to the node.
func (s *suite) types() any {
	names := []string{"id", "an_ascii", "a_bigint", "a_blob", "a_boolean", "a_date", "a_decimal", "a_double",
		"a_duration", "a_float", "an_inet", "a_list", "a_map", "a_null", "a_set", "a_smallint", "a_text", "a_time",
		"a_timestamp", "a_timeuuid", "a_tinyint", "some_tuples", "a_udt", "a_uuid", "a_varint"}
	varint, _ := new(big.Int).SetString("-123456789012345678901234567890", 10)
	written := []any{
		1, "ascii", int64(-9007199254740993), []byte{0, 1, 0xfe, 0xff}, true,
		time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC), *inf.NewDec(-123456789, 4), 0.1,
		gocql.Duration{Months: 1, Days: 2, Nanoseconds: 3000000004}, float32(1.5), net.ParseIP("2001:db8::1"),
		[]int{3, 1, 2}, map[string]int{"one": 1, "two": 2}, (*string)(nil), []string{"a", "b"}, int16(-32768),
		"ünder 世界", 13*time.Hour + 30*time.Minute + 54*time.Second + 234, time.UnixMilli(1709210096789).UTC(),
		got(gocql.ParseUUID("c4e1a4f0-d6f4-11ee-8080-808080808080")), int8(-128),
		[]pair{{1, "one"}, {2, "two"}}, point{1, "two"},
		got(gocql.ParseUUID("5f0f3c1c-6e9e-4b43-9d5c-0c1a6f0c2f11")), *varint,
	}
	columns := strings.Join(names, ", ")
	marks := strings.TrimSuffix(strings.Repeat("?, ", len(names)), ", ")
	insert := "INSERT INTO types (" + columns + ") VALUES (" + marks + ")"
	exec(s.session, insert, written...)
	read := make([]any, len(written))
	for i, value := range written {
		read[i] = reflect.New(reflect.TypeOf(value)).Interface()
	}
	check(s.session.Query("SELECT "+columns+" FROM types WHERE id = ?", 1).Scan(read...))
	read[0] = 2
	exec(s.session, insert, read...)
	var first, again string
	asJSON := "SELECT JSON * FROM types WHERE id = ?"
	check(s.session.Query(asJSON, 1).Scan(&first))
	check(s.session.Query(asJSON, 2).Scan(&again))
	equal(strings.Replace(again, `"id": 2`, `"id": 1`, 1), first, "what was read, written again")
	return first
}

// Each text by itself; gocql prepares all but the last of them.
func (s *suite) simple() any {
	for _, statement := range []string{
		"INSERT INTO simple (id, name) VALUES (1, 'ünder')",
		"INSERT INTO simple (id, name) VALUES (2, 'pass')",
		"UPDATE simple SET name = 'over' WHERE id = 2",
		"DELETE FROM simple WHERE id = 1",
	} {
		exec(s.session, statement)
	}
	var id, rows int
	var name string
	iter := s.session.Query("SELECT id, name FROM simple").Iter()
	equal(iter.NumRows(), 1, "rows")
	iter.Scan(&id, &name)
	check(iter.Close())
	exec(s.session, "TRUNCATE simple")
	iter = s.session.Query("SELECT count(*) FROM simple").Iter()
	iter.Scan(&rows)
	warnings := len(iter.Warnings())
	check(iter.Close())
	return fmt.Sprintf("%d %s; %d rows, %d warning", id, name, rows, warnings)
}

// All in flight at once, over both connections.
func (s *suite) prepared() any {
	data := func(n int) []byte { return bytes.Repeat([]byte{byte(n)}, n) }
	atOnce(preparedRows, func(n int) {
		exec(s.session, "INSERT INTO prepared (id, data) VALUES (?, ?)", n, data(n))
	})
	atOnce(preparedRows, func(n int) {
		var read []byte
		check(s.session.Query("SELECT data FROM prepared WHERE id = ?", n).Scan(&read))
		equal(bytes.Equal(read, data(n)), true, "the bytes of one row")
	})
	return fmt.Sprintf("%d rows", preparedRows)
}

// The node forgets what was prepared for a table when that changes.
func (s *suite) preparedAfterAlter() any {
	read := func() map[string]any {
		row := map[string]any{}
		check(s.session.Query("SELECT * FROM altered WHERE id = ?", 1).MapScan(row))
		return row
	}
	exec(s.session, "INSERT INTO altered (id, a) VALUES (1, 'before')")
	equal(fmt.Sprint(read()["a"]), "before", "the column")
	exec(s.session, "ALTER TABLE altered ADD b text")
	exec(s.session, "UPDATE altered SET b = 'after' WHERE id = 1")
	row := read()
	return fmt.Sprintf("%v, %v", row["a"], row["b"])
}

// Prepared statements and texts together; counters, which have a kind of batch of their own.
func (s *suite) batches() any {
	for first, kind := range map[int]gocql.BatchType{0: gocql.LoggedBatch, 100: gocql.UnloggedBatch} {
		batch := s.session.Batch(kind)
		for n := first; n < first+10; n++ {
			batch.Query("INSERT INTO batched (id, v) VALUES (?, ?)", n, "prepared")
		}
		for n := first + 10; n < first+15; n++ {
			batch.Query(fmt.Sprintf("INSERT INTO batched (id, v) VALUES (%d, 'text')", n))
		}
		check(batch.Exec())
	}
	batch := s.session.Batch(gocql.CounterBatch)
	for n := 0; n < 4; n++ {
		batch.Query("UPDATE counted SET n = n + ? WHERE id = 1", int64(n))
	}
	check(batch.Exec())
	kinds := map[string]int{}
	var id int
	var kind string
	iter := s.session.Query("SELECT id, v FROM batched").Iter()
	for iter.Scan(&id, &kind) {
		kinds[kind]++
	}
	check(iter.Close())
	var counter int64
	check(s.session.Query("SELECT n FROM counted WHERE id = 1").Scan(&counter))
	return fmt.Sprintf("%d prepared, %d text; counter %d", kinds["prepared"], kinds["text"], counter)
}

// The second one finds the first one's row.
func (s *suite) conditional() any {
	insert := func(value string) (bool, map[string]any) {
		found := map[string]any{}
		query := s.session.Query("INSERT INTO conditional (id, v) VALUES (?, ?) IF NOT EXISTS", 1, value)
		applied := got(query.SerialConsistency(gocql.LocalSerial).MapScanCAS(found))
		return applied, found
	}
	first, _ := insert("first")
	second, found := insert("second")
	return fmt.Sprintf("%t, %t: %v", first, second, found["v"])
}

// Page after page, fetched ahead by the driver.
func (s *suite) paging() any {
	atOnce(pagedRows, func(n int) {
		exec(s.session, "INSERT INTO paged (p, c, v) VALUES (1, ?, ?)", n, strings.Repeat("x", 50))
	})
	iter := s.session.Query("SELECT c FROM paged WHERE p = 1").PageSize(pageSize).Iter()
	var rows, c int
	for iter.Scan(&c) {
		equal(c, rows, "rows in order")
		rows++
	}
	check(iter.Close())
	return fmt.Sprintf("%d rows", rows)
}

// Many segments in v5.
func (s *suite) largeValue() any {
	data := make([]byte, largeValueBytes)
	for i := range data {
		data[i] = byte(uint32(i) * uint32(i) >> 8)
	}
	exec(s.session, "INSERT INTO large (id, data) VALUES (1, ?)", data)
	var read []byte
	check(s.session.Query("SELECT data FROM large WHERE id = 1").Scan(&read))
	equal(bytes.Equal(read, data), true, "the bytes")
	return fmt.Sprintf("%d bytes", len(read))
}

type traces struct{ ids []string }

func (t *traces) Trace(id []byte) { t.ids = append(t.ids, fmt.Sprintf("%x", id)) }

// Tracing and a payload that the application itself asks for.
func (s *suite) traced() any {
	var seen traces
	payload := map[string][]byte{"suite": []byte("go")}
	exec(s.session, "INSERT INTO traced (id, v) VALUES (1, 'traced')")
	query := s.session.Query("SELECT v FROM traced WHERE id = 1").CustomPayload(payload).Trace(&seen)
	var v string
	check(query.Scan(&v))
	// Of PREPARE and of EXECUTE.
	equal(len(seen.ids), 2, "tracing ids")
	equal(seen.ids[0] != seen.ids[1], true, "two traces")
	return v
}

// What the node refuses arrives as what it is.
func (s *suite) errors() any {
	names := map[int]string{
		gocql.ErrCodeSyntax: "syntax", gocql.ErrCodeInvalid: "invalid", gocql.ErrCodeAlreadyExists: "already exists",
	}
	var told []string
	for _, statement := range []string{
		"CREATE TABLE wrong (id int PRIMARY KEY) WITH nonsense = 1",
		"SELECT nothing FROM erring",
		"CREATE TABLE erring (id int PRIMARY KEY)",
	} {
		var refused gocql.RequestError
		err := s.session.Query(statement).Exec()
		equal(errors.As(err, &refused), true, fmt.Sprintf("refused, not %v", err))
		told = append(told, names[refused.Code()])
	}
	return strings.Join(told, ", ")
}

// In v5 a request can name the keyspace; before, the text has to.
func (s *suite) keyspacePerRequest() any {
	query := func(text string, values ...any) *gocql.Query {
		if s.args.protocol >= 5 {
			return s.bare.Query(fmt.Sprintf(text, "per_request"), values...).SetKeyspace(s.args.keyspace)
		}
		return s.bare.Query(fmt.Sprintf(text, s.args.keyspace+".per_request"), values...)
	}
	check(query("INSERT INTO %s (id, v) VALUES (?, ?)", 1, "named").Exec())
	var v string
	check(query("SELECT v FROM %s WHERE id = ?", 1).Scan(&v))
	return v
}

// A session begins with USE where it has a keyspace; gocql knows no other.
func (s *suite) useKeyspace() any {
	session := got(s.connect(s.args.keyspace, s.args.password))
	defer session.Close()
	exec(session, "INSERT INTO used (id, v) VALUES (?, ?)", 1, "used")
	var v string
	check(session.Query("SELECT v FROM used WHERE id = ?", 1).Scan(&v))
	return v
}

// The node's refusal reaches the driver in its own words.
func (s *suite) wrongPassword() any {
	session, err := s.connect("", s.args.password+"-wrong")
	if err == nil {
		session.Close()
		panic(errors.New("the wrong password was accepted"))
	}
	equal(strings.Contains(err.Error(), "password are incorrect"), true, err.Error())
	return "refused"
}

func exec(session *gocql.Session, statement string, values ...any) {
	if err := session.Query(statement, values...).Exec(); err != nil {
		panic(fmt.Errorf("%.80s: %w", statement, err))
	}
}

// Runs `one` with 0..count, each on a goroutine of its own; panics as the first of them that did.
func atOnce(count int, one func(n int)) {
	var all sync.WaitGroup
	failures := make(chan any, count)
	for n := 0; n < count; n++ {
		all.Add(1)
		go func(n int) {
			defer all.Done()
			defer func() { failures <- recover() }()
			one(n)
		}(n)
	}
	all.Wait()
	close(failures)
	for failure := range failures {
		if failure != nil {
			panic(failure)
		}
	}
}
