/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Applications that are in a sockmap and do not read on, are not told of a reset, or have nothing to do there.
 *
 * In a sockmap a socket answers FIONREAD from its psock, and leaves out what waits in TCP: a reader that
 * asks first, and is told 0, waits for an edge that has passed. Nobody can see that it asks. So the agent looks
 * again and again over the sockets in its maps (find_stalled). One that is at the same place at two looks while
 * bytes wait in TCP, and none in its psock, leaves the map for good, and its flow with it: outside FIONREAD
 * tells all. Then it is nudged (nudge_left), in whatever place it waits. So does one that has not read at three further
 * looks what waited at one: each edge that comes by chance has such a reader read once.
 *
 * A spliced application's psock is always empty, so it can leave at any time. On the shortcut the other end
 * may be in the middle of a redirect to it: what came after it has left would be lost. So both ends are told
 * first (`leaves`, which take_shortcut reads before it redirects), and each leaves at a later look at which its
 * psock is empty and nobody holds it: whoever redirects holds its target from before the program's decision
 * can be acted on until the bytes are in the psock. Between the two looks whoever looks waits for running programs.
 * Two processes may look at a time, each by a program of its own: each lets leave what itself has seen leaving before
 * it waited (`seen`).
 *
 * An end that waits for bytes though its other end is closed was not told of a reset: TCP has dropped it. It is found by the same
 * looks, and asks the other side as keepalive does, by the same nudge.
 *
 * Both ends of a short leg leave likewise when the agent asks (legs.h), which a look has to see first.
 *
 * A client's end on the shortcut whose other end does not come leaves likewise, and every end once nobody keeps the
 * shortcut open: the agent is dead, or has ended. Spliced applications whose flow ends
 * leave before they hear of it: when a connection is over, no iterator finds its socket any more.
 *
 * A kernel whose psock does not count its bytes (before 6.12's and 6.18's) has FIONREAD ask TCP alone: nobody stalls, and the programs end at
 * once.
 *
 * Reads shortcut_limits; reads and writes spliced, shortcut_ends, splices. When the agent is dead the keeper
 * looks. While the agent lives and does not run the keeper looks beside it (find_stalled_beside): stalled readers leave the
 * shortcut, and nobody else. Short legs are left to the agent, which counts their ends as they leave.
 */
#pragma once

#include "shortcut.h"

/* Whoever has a socket in a sockmap holds it: the application, and its psock. */
#define HELD_BY_DEFAULT 2

/* Whether FIONREAD asks the psock of a socket in a sockmap. */
static __always_inline int asks_psock(void)
{
	return bpf_core_field_exists(((struct sk_psock *)0)->msg_tot_len);
}

static __always_inline int is_pending(const struct timer_list *timer)
{
	return timer->entry.pprev != 0;
}

/* Whether somebody may be about to put bytes into the psock of a socket: it is held by more than its
 * application, the psock and its own timers. */
static __always_inline int is_held(const struct tcp_sock *tp)
{
	const struct inet_connection_sock *icsk = &tp->inet_conn;
	int held = SOCK_OF(tp).__sk_common.skc_refcnt.refs.counter;

	held -= is_pending(&SOCK_OF(tp).sk_timer);
	held -= is_pending(&icsk->icsk_delack_timer);
	/* An older name: then a socket with unacknowledged bytes is taken for held. */
	if (bpf_core_field_exists(icsk->icsk_retransmit_timer))
		held -= is_pending(&icsk->icsk_retransmit_timer);
	return held > HELD_BY_DEFAULT;
}

/* Whether a reader was here, with bytes in TCP, at the last look, too; or has not read yet what waited some looks ago. */
static __always_inline int has_stalled(struct up_reader *reader, const struct tcp_sock *tp)
{
	int waited = reader->waits, is_here = reader->seq == tp->copied_seq;

	reader->waits = SOCK_OF(tp).sk_receive_queue.qlen != 0;
	reader->seq = tp->copied_seq;
	if (!waited || (__s32)(tp->copied_seq - reader->end) >= 0) {
		reader->end = tp->rcv_nxt;
		reader->looks = 0;
	} else if (reader->looks < UP_LOOKS_TO_READ) {
		reader->looks++;
	}
	return waited && reader->waits && (is_here || reader->looks == UP_LOOKS_TO_READ);
}

/* The longest that the database's end may take to come, in ns: both ends see the handshake's last packet. */
#define LONGEST_ALONE 1000000000ull

/* Whether a client's end is not met by its other end, because that was refused, or cannot be seen from here. */
static __always_inline int stays_alone(const struct up_shortcut_end *end)
{
	if (end->peer || end->is_server)
		return 0;
	return end->refusal || bpf_ktime_get_ns() - end->opened_ns > LONGEST_ALONE;
}

/* Whether nobody keeps the shortcut open any more. */
static __always_inline int is_shut(void)
{
	struct up_shortcut_limits *limits = limits_of_shortcut();

	return limits && limits->until_ns < bpf_ktime_get_ns();
}

/* From now on nobody redirects to this end. */
static __always_inline void begin_to_leave(struct up_reader *reader, __u32 looker)
{
	reader->leaves = 1;
	reader->seen[looker] = 1;
}

/* Whether an end of a shortcut is to leave, and when. `looker`: UP_LOOKER_*; `stall`: enum up_stall. */
static __always_inline int end_leaves(const struct tcp_sock *tp, __u64 cookie, __u32 looker, __u64 *stall)
{
	struct up_shortcut_end *end = bpf_map_lookup_elem(&shortcut_ends, &cookie), *other;
	int is_empty = !queued((__u64)SOCK_OF(tp).sk_user_data);
	__u64 peer;

	*stall = UP_STALL_LEAVES;
	/* Of a socket that was reset, and that nobody has closed yet. */
	if (!end && is_empty && SOCK_OF(tp).__sk_common.skc_state == BPF_TCP_CLOSE && !is_held(tp)) {
		*stall = UP_STALL_LEAVES_NOW;
		return 1;
	}
	if (!end || (looker == UP_LOOKER_BESIDE && end->leg))
		return 0;
	if (!end->asks && is_orphan(tp, end)) {
		*stall = UP_STALL_ORPHAN;
		return 1;
	}
	if (end->reader.leaves) {
		/* Runs that have not seen it yet come to their ends before this looker's next look. */
		if (end->reader.seen[looker] && is_empty && !is_held(tp))
			*stall = UP_STALL_LEAVES_NOW;
		end->reader.seen[looker] = 1;
		return 1;
	}
	if (stays_alone(end) || (looker == UP_LOOKER_AGENT && is_shut())) {
		begin_to_leave(&end->reader, looker);
		return 1;
	}
	/* The agent reads when its other side takes it, and asks nobody. */
	if (!is_empty || end->leg == UP_LEG_OWN) {
		end->reader.waits = 0;
		return 0;
	}
	if (!has_stalled(&end->reader, tp))
		return 0;
	count_cause(UP_CAUSE_READER_STALLED);
	begin_to_leave(&end->reader, looker);
	peer = end->peer;
	other = bpf_map_lookup_elem(&shortcut_ends, &peer);
	if (other)
		begin_to_leave(&other->reader, looker);
	return 1;
}

/* For each socket of a sockmap. Tells the agent of those that are to leave. */
SEC("iter/sockmap")
int find_stalled(struct bpf_iter__sockmap *ctx)
{
	struct up_spliced *spliced_here;
	struct up_stalled stalled = {};
	struct up_splice *splice;
	struct sock *sk = ctx->sk;
	struct tcp_sock *tp;

	if (!asks_psock() || !sk)
		return 0;
	tp = (struct tcp_sock *)bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	/* That of a spliced application has no end to ask, and what has waited at an earlier look has been read: it is at
	 * another place. */
	if (!SOCK_OF(tp).sk_receive_queue.qlen && ctx->map != (void *)&shortcut_socks)
		return 0;
	spliced_here = bpf_sk_storage_get(&spliced, tp, 0, 0);
	if (spliced_here) {
		if (!has_stalled(&spliced_here->reader, tp))
			return 0;
		stalled.key = spliced_here->id;
		stalled.stall = UP_STALL_LEAVES_NOW;
		if (!spliced_here->reader.leaves)
			count_cause(UP_CAUSE_READER_STALLED);
		spliced_here->reader.leaves = 1;
		splice = bpf_map_lookup_elem(&splices, &stalled.key);
		if (splice)
			splice->is_out = 1;
	} else {
		stalled.key = SOCK_OF(tp).__sk_common.skc_cookie.counter;
		if (!end_leaves(tp, stalled.key, UP_LOOKER_AGENT, &stalled.stall))
			return 0;
	}
	bpf_seq_write(ctx->meta->seq, &stalled, sizeof(stalled));
	return 0;
}

/* For each socket on the shortcut. Tells the keeper of those that are to leave though the agent does not look. */
SEC("iter/sockmap")
int find_stalled_beside(struct bpf_iter__sockmap *ctx)
{
	struct up_stalled stalled = {};
	struct sock *sk = ctx->sk;
	struct tcp_sock *tp;

	if (!asks_psock() || !sk)
		return 0;
	tp = (struct tcp_sock *)bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	stalled.key = SOCK_OF(tp).__sk_common.skc_cookie.counter;
	if (end_leaves(tp, stalled.key, UP_LOOKER_BESIDE, &stalled.stall))
		bpf_seq_write(ctx->meta->seq, &stalled, sizeof(stalled));
	return 0;
}

/* The end whose socket this is. */
static __always_inline struct up_shortcut_end *end_of(const struct tcp_sock *tp)
{
	__u64 cookie = SOCK_OF(tp).__sk_common.skc_cookie.counter;
	struct up_shortcut_end *end = bpf_map_lookup_elem(&shortcut_ends, &cookie);

	/* Else a part's address is computed before it is compared with null, which the verifier refuses. */
	barrier_var(end);
	return end;
}

#define SO_KEEPALIVE 9
#define SOL_TCP 6
#define TCP_KEEPIDLE 4

/* Has a socket ask the other side whether the connection is there, a second after the last packet: in this order, the
 * second counts from then. The connection is over, so nobody misses the settings. */
static __always_inline int ask(struct sock_common *skc)
{
	int on = 1, s = 1;

	return !bpf_setsockopt(skc, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)) &&
	       !bpf_setsockopt(skc, SOL_TCP, TCP_KEEPIDLE, &s, sizeof(s));
}

/* For each TCP socket of the namespace, locked. Tells the agent of those that are still what they were in the
 * sockmap: a system call that began there goes on. */
SEC("iter/tcp")
int nudge_left(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct up_spliced *spliced_here;
	struct up_shortcut_end *end;
	struct up_reader *reader = 0;
	struct tcp_sock *tp;
	__u8 still_in = 1;

	if (!asks_psock() || !skc)
		return 0;
	tp = (struct tcp_sock *)bpf_skc_to_tcp_sock(skc);
	if (!tp)
		return 0;
	end = end_of(tp);
	/* Also of one that has left. */
	if (end && !end->asks && is_orphan(tp, end))
		end->asks = ask(skc);
	if (!SOCK_OF(tp).sk_receive_queue.qlen)
		return 0;
	spliced_here = bpf_sk_storage_get(&spliced, tp, 0, 0);
	if (spliced_here)
		reader = &spliced_here->reader;
	else if (end)
		reader = &end->reader;
	if (!reader)
		return 0;
	if (!((__u64)SOCK_OF(tp).sk_user_data & USER_DATA_PSOCK))
		announce(skc, tp);
	else if (reader->leaves)
		bpf_seq_write(ctx->meta->seq, &still_in, sizeof(still_in));
	return 0;
}
