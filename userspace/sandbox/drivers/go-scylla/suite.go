// Drives a node that offers ScyllaDB's extensions with ScyllaDB's fork of gocql, directly or through a proxy.
//
// Prints one JSON line per case, {"case": ..., "ok": ..., "detail": ...}; exits 1 when one failed. The tables are there
// already, in keyspace `app`.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gocql/gocql"
)

const (
	requestTimeout = 60 * time.Second
	rows           = 60
)

type suite struct {
	host, user, password string
	port                 int
	session              *gocql.Session
}

func main() {
	s := &suite{}
	flag.StringVar(&s.host, "host", "127.0.0.1", "the node")
	flag.IntVar(&s.port, "port", 9042, "its port")
	flag.StringVar(&s.user, "user", "", "a role")
	flag.StringVar(&s.password, "password", "", "its password")
	flag.Parse()
	passed := run("connect", func() any {
		s.session = s.connect()
		return "connected"
	})
	if passed {
		defer s.session.Close()
		passed = run("simple", s.simple) && passed
		passed = run("conditional", s.conditional) && passed
		passed = run("cached", s.cached) && passed
		passed = run("limited", s.limited) && passed
		passed = run("changed", s.changed) && passed
		passed = run("paging", s.paging) && passed
		passed = run("closed", s.closed) && passed
	}
	if !passed {
		os.Exit(1)
	}
}

// Runs one case and prints its line; true when it passed.
func run(name string, one func() any) (passed bool) {
	line := map[string]any{"case": name}
	defer func() {
		if failure := recover(); failure != nil {
			line["detail"] = fmt.Sprint(failure)
		} else {
			passed = true
		}
		line["ok"] = passed
		if json.NewEncoder(os.Stdout).Encode(line) != nil {
			passed = false
		}
	}()
	line["detail"] = one()
	return
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func equal[T comparable](is, wanted T, what string) {
	if is != wanted {
		panic(fmt.Errorf("%s: got %v, wanted %v", what, is, wanted))
	}
}

func (s *suite) connect() *gocql.Session {
	cluster := gocql.NewCluster(s.host)
	cluster.Port = s.port
	cluster.ProtoVersion = 4
	cluster.NumConns = 1
	cluster.Consistency = gocql.One
	cluster.Timeout = requestTimeout
	cluster.ConnectTimeout = requestTimeout
	cluster.Authenticator = gocql.PasswordAuthenticator{Username: s.user, Password: s.password}
	cluster.PoolConfig.HostSelectionPolicy = gocql.TokenAwareHostPolicy(gocql.RoundRobinHostPolicy())
	session, err := cluster.CreateSession()
	check(err)
	return session
}

func (s *suite) exec(text string, values ...any) {
	check(s.session.Query(text, values...).Exec())
}

// Each text is prepared, and executed with its values.
func (s *suite) simple() any {
	for n := 0; n < 20; n++ {
		s.exec("INSERT INTO app.things (id, name, n) VALUES (?, ?, ?)", n, fmt.Sprint("thing ", n), n*2)
	}
	batch := s.session.NewBatch(gocql.LoggedBatch)
	for n := 20; n < 22; n++ {
		batch.Query("INSERT INTO app.things (id, name, n) VALUES (?, ?, ?)", n, fmt.Sprint("thing ", n), n*2)
	}
	check(s.session.ExecuteBatch(batch))
	for n := 0; n < 22; n++ {
		var name string
		var twice int
		check(s.session.Query("SELECT name, n FROM app.things WHERE id = ?", n).Scan(&name, &twice))
		equal(name, fmt.Sprint("thing ", n), "name")
		equal(twice, n*2, "n")
	}
	return 22
}

func (s *suite) conditional() any {
	insert := s.session.Query("INSERT INTO app.things (id, name) VALUES (?, ?) IF NOT EXISTS", 100, "once")
	applied, err := insert.MapScanCAS(map[string]any{})
	check(err)
	equal(applied, true, "applied")
	equal(insert.IsLWT(), true, "the mark")
	return "applied"
}

func (s *suite) cached() any {
	for _, value := range []string{"before", "after"} {
		s.exec("INSERT INTO app.cached (id, v) VALUES (?, ?)", 1, value)
		for n := 0; n < 10; n++ {
			var v string
			check(s.session.Query("SELECT v FROM app.cached WHERE id = ?", 1).Scan(&v))
			equal(v, value, "value")
		}
	}
	return 20
}

func (s *suite) limited() any {
	var v string
	err := s.session.Query("SELECT v FROM app.limited WHERE id = ?", 1).Scan(&v)
	var limit *gocql.RequestErrRateLimitReached
	if !errors.As(err, &limit) {
		panic(fmt.Errorf("not that a limit is reached: %w", err))
	}
	equal(limit.RejectedByCoordinator, true, "by the coordinator")
	return limit.String()
}

// The table becomes another one behind the driver, which learns of its columns from the answer.
func (s *suite) changed() any {
	const text = "SELECT * FROM app.changing"
	check(s.session.Query(text).Iter().Close())
	other := s.connect()
	defer other.Close()
	for _, statement := range []string{
		"DROP TABLE app.changing",
		"CREATE TABLE app.changing (id int PRIMARY KEY, a text, b text)",
		"INSERT INTO app.changing (id, a, b) VALUES (1, 'a', 'b')",
	} {
		check(other.Query(statement).Exec())
	}
	check(other.Query(text).Iter().Close())
	row := map[string]any{}
	check(s.session.Query(text).MapScan(row))
	equal(fmt.Sprint(row), "map[a:a b:b id:1]", "row")
	return len(row)
}

func (s *suite) paging() any {
	for n := 0; n < rows; n++ {
		s.exec("INSERT INTO app.many (k, c, v) VALUES (1, ?, 'v')", n)
	}
	var state []byte
	next, pages := 0, 0
	for {
		iter := s.session.Query("SELECT c FROM app.many WHERE k = ?", 1).PageSize(1000).PageState(state).Iter()
		state = iter.PageState()
		var c int
		for iter.Scan(&c) {
			equal(c, next, "row")
			next++
		}
		check(iter.Close())
		pages++
		if len(state) == 0 {
			break
		}
	}
	equal(next, rows, "rows")
	return pages
}

// Refused by a proxy that closes the table.
func (s *suite) closed() any {
	err := s.session.Query("SELECT v FROM app.closed WHERE id = ?", 1).Exec()
	if err == nil {
		return "open"
	}
	if !strings.Contains(err.Error(), "app.closed") {
		panic(err)
	}
	return "refused"
}
