#!/bin/busybox sh
# The only process of a guest: looks at what this kernel can do, has streams carried by each engine
# of the splice, has connections tapped, has a driver ask a database, runs the demo, and says so in lines that begin with RESULT. {PLACES} are filled in.
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

doctor() {
	underpass doctor | while read -r line; do
		echo "$line"
		case "$line" in
		shortcut*|path*) echo "RESULT doctor $line" ;;
		esac
	done
}

# agent ENGINE: one that uses no other, once its canary has passed. An emulator is slow, and a canary
# takes a second without a byte for a hang: three tries.
agent() {
	sed "s/ENGINE/$1/" /agent.toml > /tmp/agent.toml
	for try in 1 2 3; do
		underpass run --config /tmp/agent.toml > /tmp/agent.log 2>&1 &
		agent=$!
		waited=0
		until grep -q "path=\"splice_$1\"" /tmp/agent.log || [ $waited -ge 60 ]; do
			sleep 1
			waited=$((waited + 1))
		done
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

# A driver's round trips on each path: answers that it got, and statements that the agent has told of its rule.
driven() {
	case $1 in
	bypass) port=7790 ;;
	tap) port=7791 ;;
	inline) port=7792 ;;
	esac
	cql-node --listen 127.0.0.1:$port > /tmp/node.log 2>&1 &
	node=$!
	sleep 2
	answered=$(sh -c 'echo $$ > /sys/fs/cgroup/apps/cgroup.procs; exec driver 127.0.0.1:'"$port 100")
	echo "driver: $answered"
	sleep 3
	told=0
	for count in $(value "underpass_statement_seconds_count{keyspace=\"ks\",kind=\"execute\",rule=\"driver-$1\"") \
		$(value "underpass_statement_seconds_count{keyspace=\"ks\",kind=\"select\",rule=\"driver-$1\""); do
		told=$((told + count))
	done
	echo "RESULT driver $1 ${answered%% *} $told"
	kill $node
}

# Two connections are tapped: one that is there before the agent, and one that is not.
tapped() {
	talk 7780 a 90
	sleep 8
	sed "s/ENGINE/egress/" /agent.toml > /tmp/agent.toml
	underpass run --config /tmp/agent.toml > /tmp/agent.log 2>&1 &
	agent=$!
	waited=0
	until grep -q "path works path=\"observe\"" /tmp/agent.log || [ $waited -ge 60 ]; do
		sleep 1
		waited=$((waited + 1))
	done
	talk 7781 t 10
	sleep 20
	cat /tmp/agent.log
	underpass flows --why
	echo "RESULT tapped $(told t)"
	echo "RESULT adopted $(told a)"
	for path in bypass tap inline; do
		driven $path
	done
	for reason in $(wget -q -O - http://127.0.0.1:9180/metrics |
		sed -n 's/^underpass_observed_not_adopted{reason="\([a-z_]*\)"} [1-9].*/\1/p'); do
		echo "RESULT not_adopted $reason"
	done
	kill $agent
	wait $agent
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
demo
echo "RESULT done"
poweroff -f
