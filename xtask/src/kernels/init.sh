#!/bin/busybox sh
# The only process of a guest: looks at what this kernel can do, has streams carried by each engine
# of the splice and connections read by the tap, and says so in lines that begin with RESULT. {PLACES} are filled in.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
ip link set lo up
mkdir /sys/fs/cgroup/apps

value() {
	wget -q -O - http://127.0.0.1:9180/metrics | grep -F "$1" | sed 's/.* //'
}

doctor() {
	underpass doctor | while read -r line; do
		echo "$line"
		case "$line" in
		observe*|shortcut*|path*) echo "RESULT doctor $line" ;;
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

# asks FILE: a client that logs in, waits until FILE is there, and asks {REQUESTS} times, each time when it has had
# time to read the answer.
asks() {
	{
		printf '\004\000\000\001\001\000\000\000\026\000\001\000\013CQL_VERSION\000\0053.0.0'
		until [ -e "$1" ]; do sleep 1; done
		for request in $(seq {REQUESTS}); do
			printf '\004\000\000\001\007\000\000\000\045\000\000\000\036SELECT now() FROM system.local\000\001\000'
			usleep 200000
		done
		# Nobody who asks about the flow is to find it gone.
		sleep 5
	} | sh -c 'echo $$ > /sys/fs/cgroup/apps/cgroup.procs; exec nc 127.0.0.1 7780' > /dev/null
}

# The tap: a connection from before the agent, and one from afterwards, each with its requests.
tap() {
	cql-node --listen 127.0.0.1:7780 > /tmp/node.log 2>&1 &
	sleep 1
	asks /tmp/go &
	running=$!
	sleep 2
	underpass run --config /tap.toml > /tmp/agent.log 2>&1 &
	agent=$!
	waited=0
	until [ "$(value 'underpass_observed_adopted_total{rule="read"}')" = 1 ] || [ $waited -ge 60 ]; do
		sleep 1
		waited=$((waited + 1))
	done
	asks /tmp/go &
	new=$!
	sleep 2
	touch /tmp/go
	wait $running $new
	cat /tmp/agent.log
	adopted=$(value 'underpass_observed_adopted_total{rule="read"}')
	counted=$(value 'underpass_stats_requests_total{consistency="ONE"')
	echo "RESULT tapped ${adopted:-0} ${counted:-0} {REQUESTS}"
	kill $agent
	wait $agent
}

uname -r
integrity serve --never-blocks --listen 127.0.0.1:7778 > /tmp/serve.log 2>&1 &
doctor
carry sender
carry egress
tap
echo "RESULT done"
poweroff -f
