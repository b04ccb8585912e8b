#!/bin/busybox sh
# The only process of a guest: looks at what this kernel can do, has streams carried by each engine
# of the splice, has connections tapped, has a driver ask a database on each path and past the edge, runs the demo, and says so in lines that begin
# with RESULT. {PLACES} are filled in.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
ip link set lo up
for module in /modules/*; do
	insmod "$module"
done
mkdir /sys/fs/cgroup/apps /run/underpass

value() {
	wget -q -O - http://127.0.0.1:9180/metrics | grep -F "$1" | sed 's/.* //'
}

# sum SAMPLES...: the values of all samples that have one of these texts, added up.
sum() {
	sum=0
	for sample in "$@"; do
		for count in $(value "$sample"); do
			sum=$((sum + count))
		done
	done
	echo $sum
}

# await FILE TEXT: waits until a file has a text; for a minute at most.
await() {
	waited=0
	until grep -q "$2" "$1" || [ $waited -ge 60 ]; do
		sleep 1
		waited=$((waited + 1))
	done
}

# The agent's programs, as the kernel's verifier has left them.
programs() {
	underpass-bench programs $agent | sed 's/^/RESULT program /'
}

doctor() {
	underpass doctor > /tmp/doctor.log
	code=$?
	sed 's/^/RESULT doctor /' /tmp/doctor.log
	echo "RESULT doctored $code"
}

# agent ENGINE: one that uses no other, once its canary has passed. An emulator is slow, and a canary
# takes a second without a byte for a hang: three tries.
agent() {
	sed "s/ENGINE/$1/" /agent.toml > /tmp/agent.toml
	for try in 1 2 3; do
		underpass run --config /tmp/agent.toml > /tmp/agent.log 2>&1 &
		agent=$!
		await /tmp/agent.log "path=\"splice_$1\""
		cat /tmp/agent.log
		grep -q "path works path=\"splice_$1\"" /tmp/agent.log && return 0
		kill $agent
		wait $agent
	done
	return 1
}

# A connection that its rule wants on the shortcut, from a namespace where there is none: the cause that
# is said of it.
refused() {
	sh -c 'echo $$ > /sys/fs/cgroup/apps/cgroup.procs; exec unshare -n sh -c "
		ip link set lo up
		sleep 60 | nc -l -p 7779 > /dev/null &
		sleep 1
		sleep 60 | nc 127.0.0.1 7779"' &
	for try in 1 2 3 4 5 6 7 8 9 10; do
		cause=$(underpass flows --why | sed -n 's/.*wants the shortcut: \([a-z_]*\),.*/\1/p')
		[ -n "$cause" ] && break
		sleep 1
	done
	echo "RESULT refused $cause"
}

# carry ENGINE
carry() {
	agent "$1" || return
	# The shell that execs is the one that enters: its children would come too late.
	sh -c 'echo $$ > /sys/fs/cgroup/apps/cgroup.procs; exec integrity drive \
		--to 127.0.0.1:7778 --cql --bytes {BYTES} --loaded --connections 1-4 \
		--connection-max 2M --allow fionread \
		--behaviour epoll-edge --behaviour epoll-level'
	code=$?
	up=$(value 'underpass_spliced_bytes_total{direction="to_database"}')
	down=$(value 'underpass_spliced_bytes_total{direction="to_client"}')
	echo "RESULT carried $1 $code $up $down"
	[ "$1" = sender ] && refused
	programs
	kill $agent
	wait $agent
}

# talk PORT TABLE ROUNDS: a log-in (v4), then requests to a table and their answers, one each second.
talk() {
	(
		sleep 3
		printf '\204\000\000\000\002\000\000\000\000'
		sleep 2.5
		for n in $(seq "$3"); do
			printf '\204\000\000\001\010\000\000\000\004\000\000\000\001'
			sleep 1
		done
	) | nc -l -p "$1" > /dev/null &
	sleep 1
	(
		printf '\004\000\000\000\001\000\000\000\026\000\001\000\013CQL_VERSION\000\0053.0.0'
		sleep 4
		for n in $(seq "$3"); do
			printf "\004\000\000\001\007\000\000\000\031\000\000\000\022SELECT v FROM ks.$2\000\001\000"
			sleep 1
		done
	) | sh -c 'echo $$ > /sys/fs/cgroup/apps/cgroup.procs; exec nc 127.0.0.1 '"$1" > /dev/null &
}

# told TABLE: requests to a table that were paired with their answers, by copies.
told() {
	value "underpass_statement_seconds_count{keyspace=\"ks\",kind=\"select\",rule=\"tapped\",table=\"$1\"}"
}

# counted NAME: how often the agent has counted the traffic of the rule driver-NAME.
counted() {
	rule="rule=\"driver-$1\""
	statements="underpass_statement_seconds_count{keyspace=\"ks\",kind="
	case $1 in
	bypass) sum "underpass_connections_total{outcome=\"untouched\",$rule}" ;;
	observe) sum "underpass_observed_requests_total{opcode=\"execute\",$rule}" ;;
	shortcut) sum 'underpass_shortcut_messages_total{way="shortcut"}' ;;
	*) sum "$statements\"execute\",$rule" "$statements\"select\",$rule" ;;
	esac
}

# driven NAME PORT [CGROUP]: a driver's round trips under the rule driver-NAME, to a database in that cgroup: answers that it got, how often the agent
# has counted them, and the paths on which the agent says that the flows are.
driven() {
	sh -c 'echo $$ > '"${3:-/sys/fs/cgroup}"'/cgroup.procs; exec cql-node --listen 127.0.0.1:'"$2" > /tmp/node.log 2>&1 &
	node=$!
	sleep 2
	: > /tmp/driver.log
	sh -c 'echo $$ > /sys/fs/cgroup/apps/cgroup.procs; exec driver 127.0.0.1:'"$2 100 600" >> /tmp/driver.log &
	driver=$!
	await /tmp/driver.log answered
	sleep 3
	answered=$(cat /tmp/driver.log)
	echo "driver: $answered"
	answered=${answered%% *}
	paths=$(underpass flows --json --filter "rule=driver-$1" | grep -o '"path":"[a-z]*"' | sort -u | cut -d '"' -f 4 | tr '\n' ' ')
	echo "RESULT driver $1 ${answered:-0} $(counted $1) $paths"
	kill $driver $node
	wait $driver $node
}

# Two connections are tapped: one that is there before the agent, and one that is not.
tapped() {
	talk 7780 a 90
	sleep 8
	sed "s/ENGINE/egress/" /agent.toml > /tmp/agent.toml
	underpass run --config /tmp/agent.toml > /tmp/agent.log 2>&1 &
	agent=$!
	await /tmp/agent.log 'path="observe"'
	talk 7781 t 10
	sleep 20
	cat /tmp/agent.log
	underpass flows --why
	echo "RESULT tapped $(told t)"
	echo "RESULT adopted $(told a)"
	for reason in $(wget -q -O - http://127.0.0.1:9180/metrics |
		sed -n 's/^underpass_observed_not_adopted{reason="\([a-z_]*\)"} [1-9].*/\1/p'); do
		echo "RESULT not_adopted $reason"
	done
	driven bypass 7790
	driven observe 7793
	driven tap 7791
	driven inline 7792
	await /tmp/agent.log 'path="shortcut"'
	driven shortcut 7794 /sys/fs/cgroup/apps
	wget -q -O - http://127.0.0.1:9180/metrics |
		sed -n 's/^underpass_path_available{path="\([a-z_]*\)",reason="\(.*\)"} 0$/RESULT off \1 \2/p'
	programs
	kill $agent
	wait $agent
}

# The edge on the loopback device: to one port it lets a driver pass, and to another one nobody.
edge() {
	echo through | nc -l -p 7795 &
	listener=$!
	cql-node --listen 127.0.0.1:7796 > /tmp/node.log 2>&1 &
	node=$!
	underpass run --config /edge.toml > /tmp/agent.log 2>&1 &
	agent=$!
	await /tmp/agent.log ' ready \|^underpass: '
	cat /tmp/agent.log
	mode=$(sed -n 's/.*edge attached.*mode="\([a-z]*\)".*/\1/p' /tmp/agent.log)
	if [ -n "$mode" ]; then
		answered=$(driver 127.0.0.1:7796 100 0)
		echo "driver: $answered"
		answered=${answered%% *}
		came=$(timeout 5 nc 127.0.0.1 7795 < /dev/null)
		allowed=$(sum 'underpass_edge_connections_total{outcome="allowed",rule="edge-allows"}')
		denied=$(sum 'underpass_edge_connections_total{outcome="denied",rule="edge-denies"}')
		echo "RESULT edge $mode ${answered:-0} $allowed $denied ${came:-dropped}"
		programs
	else
		echo "RESULT off edge $(tail -n 1 /tmp/agent.log)"
	fi
	kill $agent $listener $node
	wait $agent $listener $node
	underpass detach
}

# The demo, at a rate and for a time that an emulator can do.
demo() {
	underpass-bench demo --rounds 1 --rate 100 > /tmp/demo.log 2>&1
	code=$?
	cat /tmp/demo.log
	held=$(grep -c '^ok   ' /tmp/demo.log)
	echo "RESULT demo $code $held $((held + $(grep -c '^FAIL ' /tmp/demo.log)))"
}

uname -r
integrity serve --never-blocks --listen 127.0.0.1:7778 > /tmp/serve.log 2>&1 &
doctor
carry sender
carry egress
tapped
edge
demo
echo "RESULT done"
poweroff -f
