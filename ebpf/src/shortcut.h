/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The shortcut: client and database on this host, and what one sends is put straight into the
 * other's queue, past TCP (docs/decisions/0005-shortcut.md).
 *
 * sock_ops enrols: ACTIVE_ESTABLISHED a client's socket that its rule wished for,
 * PASSIVE_ESTABLISHED, always later, the accepted one that it is connected to. Two sockets are one
 * connection's ends when addresses, ports and both sequence numbers agree. STATE_CB's CLOSE takes
 * out. sk_msg runs in the sender's context, with its socket locked, and chooses for each message.
 * iter/tcp nudges readers, when the agent reads it; iter/bpf_sk_storage_map tells it of those that are
 * not enrolled, and why.
 *
 * Order. A reader empties the shortcut's queue (its psock) before TCP's, so from the shortcut to
 * TCP the order keeps itself. Back: only when the reader has read every byte that took TCP (its
 * copied_seq is our write_seq; only we write, and it only grows), and is not inside tcp_recvmsg,
 * which would wait there for TCP alone (MSG_WAITALL, SO_RCVLOWAT).
 *
 * Bounds. A reader's queue for the shortcut is counted against its receive buffer, and never refused by it: over the
 * flow's bound, what a buffer that cannot grow has room for, or the host's bound, bytes take TCP, whose flow control is
 * whole.
 *
 * Edges. Bytes in TCP behind a queue that is not empty (a spill) are announced too early for an
 * edge-triggered reader who takes a short read for the end: it is nudged once the queue is empty.
 * Bulk goes to TCP at a message before which the queue is empty, so that spills are rare.
 *
 * The legs of flows that the agent reads are ends, too (legs.h).
 *
 * Reads shortcut_limits; reads and writes shortcut_wishes, shortcut_firsts, shortcut_ends,
 * shortcut_socks; writes shortcut_turns, shortcut_counts, spills, nudges, causes. When the agent
 * is dead nobody is enrolled, and flows return to TCP at a message before which the queue is empty.
 */
#pragma once

#include "common.h"
#include "kernel.h"

#define SOCK_OF(tp) ((tp)->inet_conn.icsk_inet.sk)
/* In every namespace (LOOPBACK_IFINDEX). */
#define LOOPBACK 1
/* Who waits on a socket: a thread or two, an epoll or two. More are taken for readers. */
#define MOST_WAITERS 4

static __always_inline struct tcp_sock *tcp_of(void *sk)
{
	return (struct tcp_sock *)bpf_skc_to_tcp_sock(sk);
}

static __always_inline struct up_shortcut_limits *limits_of_shortcut(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&shortcut_limits, &zero);
}

static __always_inline void watch_its_end(struct bpf_sock_ops *ops)
{
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
}

/* Why the socket stays on TCP, or UP_CAUSES when it is enrolled. */
static __always_inline __u32 enrol(struct bpf_sock_ops *ops, __u64 cookie,
				   const struct up_shortcut_end *end)
{
	long error;

	if (bpf_map_update_elem(&shortcut_ends, &cookie, end, BPF_ANY))
		return UP_CAUSE_SHORTCUTS_FULL;
	/* Refused are kTLS, sockets of another sockmap with programs, and what does not fit. */
	error = bpf_sock_hash_update(ops, &shortcut_socks, &cookie, BPF_NOEXIST);
	if (error) {
		bpf_map_delete_elem(&shortcut_ends, &cookie);
		return UP_CAUSE_SHORTCUT_REFUSED;
	}
	watch_its_end(ops);
	return UP_CAUSES;
}

static __always_inline __u32 enrol_client(struct bpf_sock_ops *ops, struct tcp_sock *tp,
					  const struct up_shortcut_wish *wish)
{
	struct up_shortcut_key key = {};
	struct up_shortcut_first first = {};
	struct up_shortcut_end end = {};
	__u32 cause;

	if (tp->inet_conn.icsk_ulp_ops)
		return UP_CAUSE_SHORTCUT_REFUSED;
	if (SOCK_OF(tp).sk_dst_cache->dev->ifindex != LOOPBACK)
		return UP_CAUSE_SHORTCUT_REMOTE;
	end.connect = wish->connect;
	end.opened_ns = bpf_ktime_get_ns();
	local_end(&end.client, ops);
	key.netns_cookie = bpf_get_netns_cookie(ops);
	key.client = end.client;
	remote_end(&key.server, ops);
	first.cookie = bpf_get_socket_cookie(ops);
	first.sock = (__u64)tp;
	first.write_seq = tp->write_seq;
	first.copied_seq = tp->copied_seq;
	/* Without it, its other end would never be found. */
	if (bpf_map_update_elem(&shortcut_firsts, &key, &first, BPF_ANY))
		return UP_CAUSE_SHORTCUTS_FULL;
	cause = enrol(ops, first.cookie, &end);
	if (cause != UP_CAUSES)
		bpf_map_delete_elem(&shortcut_firsts, &key);
	return cause;
}

static __always_inline void on_client(struct bpf_sock_ops *ops, struct bpf_sock *sk)
{
	struct up_shortcut_wish *wish = bpf_sk_storage_get(&shortcut_wishes, sk, 0, 0);
	struct tcp_sock *tp;
	__u32 cause;

	if (!wish || wish->refusal)
		return;
	tp = tcp_of(sk);
	if (!tp)
		return;
	cause = enrol_client(ops, tp, wish);
	if (cause == UP_CAUSES) {
		bpf_sk_storage_delete(&shortcut_wishes, sk);
		return;
	}
	count_cause(cause);
	wish->refusal = 1 + cause;
}

static __always_inline void count_flow(int is_end)
{
	__u32 zero = 0;
	struct up_shortcut_count *n = bpf_map_lookup_elem(&shortcut_counts, &zero);

	if (!n)
		return;
	if (is_end)
		n->ended += 1;
	else
		n->begun += 1;
}

static __always_inline __u32 enrol_server(struct bpf_sock_ops *ops, struct tcp_sock *tp,
					  struct up_shortcut_end *clients,
					  const struct up_shortcut_first *first)
{
	struct up_shortcut_end end = { .is_server = 1 };
	__u64 cookie = bpf_get_socket_cookie(ops);
	__u32 cause;

	if (tp->inet_conn.icsk_ulp_ops)
		return UP_CAUSE_SHORTCUT_REFUSED;
	end.peer = first->cookie;
	end.peer_sock = first->sock;
	cause = enrol(ops, cookie, &end);
	if (cause != UP_CAUSES)
		return cause;
	clients->peer_sock = (__u64)tp;
	/* Whoever sees the cookie sees the address; one without the other is not believed. */
	barrier();
	clients->peer = cookie;
	return UP_CAUSES;
}

static __always_inline void on_server(struct bpf_sock_ops *ops, struct bpf_sock *sk)
{
	struct up_shortcut_key key = {};
	struct up_shortcut_first *found, first;
	struct up_shortcut_end *clients;
	struct tcp_sock *tp;
	__u32 cause;

	key.netns_cookie = bpf_get_netns_cookie(ops);
	remote_end(&key.client, ops);
	local_end(&key.server, ops);
	found = bpf_map_lookup_elem(&shortcut_firsts, &key);
	if (!found)
		return;
	first = *found;
	tp = tcp_of(sk);
	if (!tp || tp->copied_seq != first.write_seq || tp->write_seq != first.copied_seq)
		return;
	bpf_map_delete_elem(&shortcut_firsts, &key);
	clients = bpf_map_lookup_elem(&shortcut_ends, &first.cookie);
	if (!clients || clients->reader.leaves)
		return;
	cause = enrol_server(ops, tp, clients, &first);
	if (cause == UP_CAUSES) {
		count_flow(0);
		return;
	}
	count_cause(cause);
	clients->refusal = 1 + cause;
}

static __always_inline void leave(struct bpf_sock_ops *ops)
{
	__u64 cookie = bpf_get_socket_cookie(ops);
	struct up_shortcut_end *end = bpf_map_lookup_elem(&shortcut_ends, &cookie);
	struct up_shortcut_first *first;
	struct up_shortcut_key key = {};

	if (!end)
		return;
	if (end->is_server)
		count_flow(1);
	if (!end->peer) {
		key.netns_cookie = bpf_get_netns_cookie(ops);
		local_end(&key.client, ops);
		remote_end(&key.server, ops);
		first = bpf_map_lookup_elem(&shortcut_firsts, &key);
		if (first && first->cookie == cookie)
			bpf_map_delete_elem(&shortcut_firsts, &key);
	}
	bpf_map_delete_elem(&shortcut_ends, &cookie);
}

SEC("sockops")
int on_shortcut_event(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;

	if (!sk)
		return 1;
	if (ops->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		on_client(ops, sk);
	else if (ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		on_server(ops, sk);
	else if (ops->op == BPF_SOCK_OPS_STATE_CB && ops->args[1] == BPF_TCP_CLOSE)
		leave(ops);
	return 1;
}

/* Whether a thread may be inside tcp_recvmsg of a reader that has read all of TCP's bytes: it
 * holds the lock, or has entered itself as a waiter before it let go of it. epoll's and io_uring's
 * entries name no task; poll's are taken for a reader's, which costs speed and nothing else. */
static __always_inline int reader_waits(struct tcp_sock *reader)
{
	struct list_head *head, *next;
	struct socket_wq *wq;

	if (BPF_CORE_READ(reader, inet_conn.icsk_inet.sk.sk_lock.owned))
		return 1;
	wq = BPF_CORE_READ(reader, inet_conn.icsk_inet.sk.sk_wq);
	if (!wq)
		return 1;
	head = __builtin_preserve_access_index(&wq->wait.head);
	next = BPF_CORE_READ(wq, wait.head.next);
	for (int i = 0; i < MOST_WAITERS; i++) {
		struct wait_queue_entry *waiter;

		if (next == head)
			return 0;
		waiter = (void *)next - bpf_core_field_offset(struct wait_queue_entry, entry);
		if (BPF_CORE_READ(waiter, private))
			return 1;
		next = BPF_CORE_READ(waiter, entry.next);
	}
	return next != head;
}

/* Bytes in a socket's queue besides TCP's. */
static __always_inline __u32 queued(__u64 user_data)
{
	struct sk_psock *psock = (void *)(user_data & ~USER_DATA_FLAGS);

	return psock ? BPF_CORE_READ(psock, msg_tot_len) : 0;
}

/* Whether the other end of a connection is closed. */
static __always_inline int is_gone(const struct up_shortcut_end *end)
{
	__u64 peer = end->peer;
	struct tcp_sock *tp;
	__u8 state;

	if (!peer)
		return 0;
	barrier();
	tp = (struct tcp_sock *)end->peer_sock;
	state = BPF_CORE_READ(tp, inet_conn.icsk_inet.sk.__sk_common.skc_state);
	/* Last: what has another cookie is another socket, or what is left of this one. */
	return BPF_CORE_READ(tp, inet_conn.icsk_inet.sk.__sk_common.skc_cookie.counter) != peer || state == BPF_TCP_CLOSE;
}

/* Whether an end still waits for bytes though the other one is closed: it has seen neither an end nor a reset, or will in a
 * moment. */
static __always_inline int is_orphan(const struct tcp_sock *tp, const struct up_shortcut_end *end)
{
	__u8 state = SOCK_OF(tp).__sk_common.skc_state;

	if (state != BPF_TCP_ESTABLISHED && state != BPF_TCP_FIN_WAIT1 && state != BPF_TCP_FIN_WAIT2)
		return 0;
	return is_gone(end);
}

/* net/sock.h: the application has chosen the size of the receive buffer. */
#define SOCK_RCVBUF_LOCK 2

/* Half of the smallest receive buffer. */
#define LEAST_BOUND 1152

/* The bytes that may lie past TCP for a reader. They count against its receive buffer, and the kernel drops what then does not
 * fit, though TCP's window has let it through: of a buffer that cannot grow half, and what TCP's window leaves. */
static __always_inline __u32 bound_of(const struct tcp_sock *reader, __u32 flow_bytes)
{
	const struct sock *sk = &reader->inet_conn.icsk_inet.sk;
	__u32 size, window;

	if (!(BPF_CORE_READ_BITFIELD_PROBED(sk, sk_userlocks) & SOCK_RCVBUF_LOCK))
		return flow_bytes;
	size = BPF_CORE_READ(sk, sk_rcvbuf);
	window = BPF_CORE_READ(reader, rcv_wup) + BPF_CORE_READ(reader, rcv_wnd) - BPF_CORE_READ(reader, rcv_nxt);
	if ((__s32)window < 0)
		window = 0;
	if (window > size)
		return 0;
	if (size - window < flow_bytes)
		flow_bytes = size - window;
	return size / 2 < flow_bytes ? size / 2 : flow_bytes;
}

static __always_inline __u32 turn_of(struct sk_msg_md *msg, struct tcp_sock *tp,
				     struct up_shortcut_end *end, __u32 *waiting)
{
	struct up_shortcut_limits *limits = limits_of_shortcut();
	struct tcp_sock *reader;
	__u64 peer = end->peer;
	void *upper_layer;
	__u32 copied_seq, bound, is_waiting = 0, is_blocking = 0;
	__u16 readers_port = 0;

	if (!peer || !limits)
		return UP_TURN_ALONE;
	barrier();
	reader = (struct tcp_sock *)end->peer_sock;
	copied_seq = BPF_CORE_READ(reader, copied_seq);
	*waiting = queued((__u64)BPF_CORE_READ(reader, inet_conn.icsk_inet.sk.sk_user_data));
	/* A short message fits into every buffer that is empty. */
	bound = limits->flow_bytes;
	if (*waiting || msg->size > LEAST_BOUND || end->is_narrow) {
		bound = bound_of(reader, bound);
		end->is_narrow = bound < limits->flow_bytes && bound < limits->bulk_bytes;
	}
	upper_layer = BPF_CORE_READ(reader, inet_conn.icsk_ulp_ops);
	if (upper_layer_port)
		readers_port =
			BPF_CORE_READ(reader, inet_conn.icsk_inet.sk.__sk_common.skc_num);
	if (end->on_tcp && copied_seq == tp->write_seq)
		is_waiting = reader_waits(reader);
	if (end->leg == UP_LEG_OWN)
		is_blocking = blocks(reader);
	/* Last. A cookie is never given twice: while it is there, everything above was read from
	 * that very socket, or, since its memory may have been freed, from what is left of it; then
	 * the redirect does not find it any more. */
	if (BPF_CORE_READ(reader, inet_conn.icsk_inet.sk.__sk_common.skc_cookie.counter) != peer) {
		*waiting = 0;
		return UP_TURN_ALONE;
	}
	/* What a socket was told to encrypt after it was enrolled would be handed over in the clear. */
	if (tp->inet_conn.icsk_ulp_ops || passes_for_upper_layer(SOCK_OF(tp).__sk_common.skc_num))
		return UP_TURN_UPPER_LAYER;
	/* One `or` of both would be arithmetic with a pointer. */
	barrier_var(upper_layer);
	if (upper_layer)
		return UP_TURN_UPPER_LAYER;
	if (passes_for_upper_layer(readers_port))
		return UP_TURN_UPPER_LAYER;
	if (is_blocking)
		return UP_TURN_READER_BLOCKS;
	if (copied_seq != tp->write_seq)
		return UP_TURN_BEHIND;
	if (is_waiting)
		return UP_TURN_READER_WAITS;
	if (!*waiting) {
		if (limits->until_ns < bpf_ktime_get_coarse_ns())
			return UP_TURN_AGENT_AWAY;
		/* Where there is little room, messages in a row would be a spill each time. */
		if (msg->size >= limits->bulk_bytes || msg->size > bound || end->is_narrow)
			return UP_TURN_BULK;
	}
	if (*waiting + msg->size > bound)
		return UP_TURN_FLOW_FULL;
	if (*SOCK_OF(tp).__sk_common.skc_prot->memory_allocated > (__s64)limits->host_pages)
		return UP_TURN_HOST_FULL;
	return UP_TURN_SHORTCUT;
}

/* Whether as many messages wait to be read as may: those since the oldest mark, unless all bytes
 * that were put before it have been read. */
static __always_inline int has_too_many(struct up_shortcut_end *end, __u32 waiting)
{
	__u64 mark = end->put_messages / UP_SHORTCUT_MARK_STEP % UP_SHORTCUT_MARKS;

	if (end->put_messages % UP_SHORTCUT_MARK_STEP)
		return 0;
	if (end->marks[mark] + waiting > end->put_bytes)
		return 1;
	end->marks[mark] = end->put_bytes;
	return 0;
}

/* Has the agent look for readers to be nudged. Once for a spill: it looks until all are past. */
static __always_inline void tell_of_spill(struct up_shortcut_end *end)
{
	__u64 *record;

	if (end->spilled)
		return;
	record = bpf_ringbuf_reserve(&spills, sizeof(*record), 0);
	/* Full of wake-ups that are still to come. */
	if (record) {
		*record = end->peer;
		bpf_ringbuf_submit(record, 0);
	}
	end->spilled = 1;
}

SEC("sk_msg")
int take_shortcut(struct sk_msg_md *msg)
{
	struct bpf_sock *sk = msg->sk;
	struct up_turn_count *count;
	struct up_shortcut_end *end;
	struct tcp_sock *tp;
	__u64 cookie, peer;
	__u32 turn, waiting = 0;

	if (!sk)
		return SK_PASS;
	tp = tcp_of(sk);
	if (!tp)
		return SK_PASS;
	cookie = SOCK_OF(tp).__sk_common.skc_cookie.counter;
	end = bpf_map_lookup_elem(&shortcut_ends, &cookie);
	if (!end)
		return SK_PASS;
	/* Also of one that is to leave: its reader may be told of the bytes of TCP with what still waits, and read that alone. */
	turn = turn_of(msg, tp, end, &waiting);
	if (end->reader.leaves)
		turn = UP_TURN_LEFT;
	if (turn == UP_TURN_SHORTCUT && has_too_many(end, waiting))
		turn = UP_TURN_FLOW_FULL;
	if (turn == UP_TURN_SHORTCUT) {
		peer = end->peer;
		/* A target that is gone would be a hole in the stream. */
		if (bpf_msg_redirect_hash(msg, &shortcut_socks, &peer, BPF_F_INGRESS) != SK_PASS)
			turn = UP_TURN_ALONE;
	}
	end->on_tcp = turn != UP_TURN_SHORTCUT;
	if (turn == UP_TURN_SHORTCUT) {
		end->put_bytes += msg->size;
		end->put_messages += 1;
		end->spilled = 0;
	} else if (waiting) {
		tell_of_spill(end);
	}
	count = bpf_map_lookup_elem(&shortcut_turns, &turn);
	if (count) {
		count->messages += 1;
		count->bytes += msg->size;
	}
	return SK_PASS;
}

#define SOL_SOCKET 1
#define SO_RCVLOWAT 18

/* Setting SO_RCVLOWAT, to what it is, announces bytes that can be read: an edge. */
static __always_inline void announce(struct sock_common *skc, const struct tcp_sock *tp)
{
	int lowat = SOCK_OF(tp).sk_rcvlowat;

	bpf_setsockopt(skc, SOL_SOCKET, SO_RCVLOWAT, &lowat, sizeof(lowat));
}

/* Whether the bytes that wait in TCP for this end's reader may have been announced too early. Once for each spill: when they are
 * announced the reader's queue for the shortcut is empty, and stays so until it has read TCP's. An edge more would have a
 * reader that asks FIONREAD read once, and look as if it read on. */
static __always_inline int missed_an_edge(struct up_shortcut_end *end, int is_announced)
{
	struct up_shortcut_end *other;
	__u64 peer = end->peer;
	__u8 missed;

	other = bpf_map_lookup_elem(&shortcut_ends, &peer);
	if (!other) {
		missed = !end->is_nudged;
		end->is_nudged |= is_announced;
		return missed;
	}
	missed = other->spilled;
	if (is_announced)
		other->spilled = 0;
	return missed;
}

/* For each TCP socket of the agent's namespace, locked. */
SEC("iter/tcp")
int nudge_readers(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct up_nudge_count *count;
	struct up_shortcut_end *end;
	struct tcp_sock *tp;
	__u64 cookie, user_data;
	__u32 zero = 0;
	int waits;

	if (!skc)
		return 0;
	tp = (struct tcp_sock *)bpf_skc_to_tcp_sock(skc);
	count = bpf_map_lookup_elem(&nudges, &zero);
	if (!tp || !count)
		return 0;
	user_data = (__u64)SOCK_OF(tp).sk_user_data;
	if (!(user_data & USER_DATA_PSOCK))
		return 0;
	cookie = SOCK_OF(tp).__sk_common.skc_cookie.counter;
	end = bpf_map_lookup_elem(&shortcut_ends, &cookie);
	if (!end)
		return 0;
	waits = !queued(user_data) && SOCK_OF(tp).sk_receive_queue.qlen;
	if (!missed_an_edge(end, waits))
		return 0;
	if (waits) {
		announce(skc, tp);
		count->nudged += 1;
	} else if (queued(user_data)) {
		count->filled += 1;
	}
	return 0;
}

/* Of a socket that is one end of a connection, also of one that is being closed. */
static __always_inline int is_connected(const struct sock *sk)
{
	__u8 state = sk->__sk_common.skc_state;

	return state != BPF_TCP_CLOSE && state != BPF_TCP_SYN_SENT && state != BPF_TCP_LISTEN;
}

/* For each socket that has a wish, in every namespace: what was refused is told to the agent. */
SEC("iter/bpf_sk_storage_map")
int tell_refusals(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	const struct up_shortcut_wish *wish = ctx->value;
	struct up_shortcut_refusal refusal = {};
	struct sock *sk = ctx->sk;

	if (!sk || !wish || !wish->refusal || !is_connected(sk))
		return 0;
	__builtin_memcpy(&refusal.wish, wish, sizeof(refusal.wish));
	local_end_of(&refusal.client, &sk->__sk_common);
	bpf_seq_write(ctx->meta->seq, &refusal, sizeof(refusal));
	return 0;
}
