#!/bin/busybox sh
# The only process of a guest: looks at what this kernel can do, has streams carried by each engine
# of the splice, and says so in lines that begin with RESULT. {PLACES} are filled in.
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

uname -r
integrity serve --never-blocks --listen 127.0.0.1:7778 > /tmp/serve.log 2>&1 &
doctor
carry sender
carry egress
echo "RESULT done"
poweroff -f
