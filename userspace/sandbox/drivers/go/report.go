package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

// What the suites take; see ../cases.py.
type arguments struct {
	host, user, password, compression, keyspace, schema string
	port, protocol                                      int
}

func parseArguments() (args arguments) {
	flag.StringVar(&args.host, "host", "127.0.0.1", "the node")
	flag.IntVar(&args.port, "port", 9042, "its port")
	flag.StringVar(&args.user, "user", "", "a role")
	flag.StringVar(&args.password, "password", "", "its password")
	flag.IntVar(&args.protocol, "protocol", 5, "4 or 5")
	flag.StringVar(&args.compression, "compression", "none", "none, lz4 or snappy")
	flag.StringVar(&args.keyspace, "keyspace", "underpass_go", "made, used and dropped")
	flag.StringVar(&args.schema, "schema", "", "schema.cql")
	flag.Parse()
	return args
}

// What schema.cql has.
func (a *arguments) statements() []string {
	var statements []string
	for _, statement := range strings.Split(string(got(os.ReadFile(a.schema))), ";") {
		if statement = strings.TrimSpace(statement); statement != "" {
			statements = append(statements, statement)
		}
	}
	return statements
}

type oneCase struct {
	name string
	// The detail to report, or a panic.
	run func() any
}

// Runs one case and prints its line; true when it passed.
func run(name string, one func() any) (passed bool) {
	started := time.Now()
	line := map[string]any{"case": name}
	defer func() {
		if failure := recover(); failure != nil {
			line["detail"] = fmt.Sprint(failure)
		} else {
			passed = true
		}
		line["ok"] = passed
		line["elapsed_ms"] = time.Since(started).Milliseconds()
		encoder := json.NewEncoder(os.Stdout)
		encoder.SetEscapeHTML(false)
		if encoder.Encode(line) != nil {
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

// The value; a panic where there is an error.
func got[T any](value T, err error) T {
	check(err)
	return value
}

func equal[T comparable](is, wanted T, what string) {
	if is != wanted {
		panic(fmt.Errorf("%s: got %.200v, wanted %.200v", what, is, wanted))
	}
}

// Asks again until there is no error, and panics with the last one.
func waitFor(what string, holds func() error) {
	deadline := time.Now().Add(patience)
	for {
		err := holds()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			panic(fmt.Errorf("%s: %w", what, err))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// The driver's sockets, which it opens through this.
type dials struct {
	mutex sync.Mutex
	// By their local addresses.
	sockets map[string]bool
}

func newDials() *dials { return &dials{sockets: map[string]bool{}} }

// The local addresses of those that are open now.
func (d *dials) open() map[string]bool {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	open := map[string]bool{}
	for local := range d.sockets {
		open[local] = true
	}
	return open
}

// DialContext connects. The peer is who was dialled, whoever really answers.
func (d *dials) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if peer := conn.RemoteAddr().String(); peer != address {
		conn.Close()
		return nil, fmt.Errorf("the socket's peer is %s, not %s", peer, address)
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.sockets[conn.LocalAddr().String()] = true
	return &socket{conn, d}, nil
}

type socket struct {
	net.Conn
	dials *dials
}

func (s *socket) Close() error {
	s.dials.mutex.Lock()
	defer s.dials.mutex.Unlock()
	delete(s.dials.sockets, s.LocalAddr().String())
	return s.Conn.Close()
}
