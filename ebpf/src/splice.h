/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The splice: bytes of a flow that the agent has taken in and need not read are carried by the
 * kernel, past the agent's two sockets.
 *
 *   client's socket ──splice_up──▶ dialled socket ──▶ database
 *   client's socket ◀── accepted socket ◀──splice_down── dialled socket
 *   client's socket ◀── accepted socket ◀──splice_back── database's socket
 *
 * splice_up (sk_msg, on the client's own socket) puts what the application sends into the send
 * queue of the dialled socket, in the application's own system call. Of a database on this host, splice_back does
 * the same the other way round: what it sends gets into the send queue of the accepted socket, whose other
 * end is the client. Of one on another host, splice_down (stream verdict, on the dialled socket) does that
 * with what arrives. splice_look is run by the agent: it enrols a flow's sockets
 * in the maps and answers how they stand.
 *
 * All names are from the side of the application that is on this host, the near one. `near_app` is its
 * socket, `near_leg` the agent's socket that leads to it, `far_leg` the agent's other socket. In the
 * picture the client is near. For a client on another host the database is near, and everything is
 * mirrored: `near_app` is the database's socket, `near_leg` the dialled one, and `far_leg` the accepted
 * one, behind which the network and the client are. There is no splice_back then.
 *
 * Order is kept by one rule in each direction: bytes take the fast road only when nothing is on
 * the slow one. For the client's bytes that is when the agent has handed on everything up to the
 * sequence number that the client's socket would write next. For the database's it is the
 * same, or when the agent has written on every byte that the verdict passed up. The other way round: what was
 * redirected by its sender is in the other queue before the system call returns, so whatever the
 * agent receives later is later; what a verdict redirected passes a worker of the kernel, so the
 * agent waits until all of it is in the accepted socket's queue (splice_look) before it writes.
 *
 * Each direction's frame position goes to and fro with the bytes (`frame_position.h`): the agent says in
 * its order where it is behind what it has read, and the first bytes that are redirected under
 * that order go on from there. Bytes that the agent reads later were let pass later, so what it
 * finds here then is final; bytes are let pass under the same lock under which they are walked.
 *
 * Memory is bounded: past UP_SPLICE_BYTES that the other side has not taken, bytes spill to the
 * agent, who reads no more than it can write, so that TCP's window stops the sender.
 *
 * Reads splice_orders, spliced, near_apps, far_apps, far_legs, far_sinks, near_legs; writes splices, splice_calls, causes.
 * When the agent is dead another process may hold its sockets: what is redirected goes on.
 */
#pragma once

#include "common.h"
#include "kernel.h"
#include "frame_position.h"

/* errno-base.h, errno.h */
#define E2BIG 7
#define ENOMEM 12
#define EOPNOTSUPP 95

static __always_inline const struct tcp_sock *tcp(__u64 address)
{
	return (const struct tcp_sock *)(long)address;
}

/* Whether a target takes so many bytes at once, without the sender having to wait:
 * one that does not block would be told EAGAIN by a socket that says it is writable. */
static __always_inline int has_room(__u64 target, __u32 bytes)
{
	const struct sock *sk = &tcp(target)->inet_conn.icsk_inet.sk;
	int queued = BPF_CORE_READ(sk, sk_wmem_queued);
	int limit = BPF_CORE_READ(sk, sk_sndbuf);

	if (limit > UP_SPLICE_BYTES)
		limit = UP_SPLICE_BYTES;
	return queued >= 0 && queued + (__s64)bytes < limit;
}

/* Whether a target has been reset. It still has its place in the map, and refuses what is
 * redirected, a part of a system call maybe: the application goes on behind what was taken. */
static __always_inline int is_reset(__u64 target)
{
	const struct sock *sk = &tcp(target)->inet_conn.icsk_inet.sk;

	return BPF_CORE_READ(sk, __sk_common.skc_state) == BPF_TCP_CLOSE;
}

/* A copy of what the agent says now. 0: it says nothing. */
static __always_inline int read_order(__u64 id, struct up_splice_order *order)
{
	struct splice_slot *slot = bpf_map_lookup_elem(&splice_orders, &id);

	if (!slot)
		return 0;
	bpf_spin_lock(&slot->lock);
	*order = slot->order;
	bpf_spin_unlock(&slot->lock);
	return 1;
}

/* Whether the sender's message may go past the agent, who has handed on all up to `seq`, into the
 * stream of `target`. */
static __always_inline int may_go(struct sk_msg_md *msg, struct bpf_sock *sk, __u32 seq,
				  __u64 target, __u64 *spills)
{
	struct tcp_sock *sender = bpf_skc_to_tcp_sock(sk);

	if (!sender || sender->write_seq != seq)
		return 0;
	/* The application has switched it on since: these bytes are not encrypted yet. */
	if (sender->inet_conn.icsk_ulp_ops ||
	    passes_for_upper_layer(sender->inet_conn.icsk_inet.sk.__sk_common.skc_num)) {
		count_cause(UP_CAUSE_SPLICE_TLS);
		return 0;
	}
	if (has_room(target, msg->size))
		return 1;
	*spills += 1;
	return 0;
}

SEC("sk_msg")
int splice_up(struct sk_msg_md *msg)
{
	struct bpf_sock *sk = msg->sk;
	struct up_splice_order order;
	struct up_spliced *spliced_here;
	struct up_splice *s;
	long verdict;
	__u64 id;

	if (!sk)
		return SK_PASS;
	spliced_here = bpf_sk_storage_get(&spliced, sk, 0, 0);
	if (!spliced_here)
		return SK_PASS;
	id = spliced_here->id;
	if (!read_order(id, &order) || !order.up)
		return SK_PASS;
	s = bpf_map_lookup_elem(&splices, &id);
	if (!s || !may_go(msg, sk, order.up_seq, s->far_leg, &s->up_spills))
		return SK_PASS;
	if (order.engine == UP_SPLICE_ENGINE_SENDER)
		verdict = bpf_msg_redirect_hash(msg, &far_sinks, &id, 0);
	else
		verdict = bpf_msg_redirect_hash(msg, &far_legs, &id, 0);
	if (verdict != SK_PASS) {
		count_cause(UP_CAUSE_SPLICE_TARGET_GONE);
		return SK_PASS;
	}
	/* Nothing of it arrives, and nobody will read on in these frames. */
	if (is_reset(s->far_leg))
		return SK_PASS;
	s->up_redirected += msg->size;
	if (s->up_since != order.up_read)
		take_position(&s->up_position, &s->up_since, &order.up_position, order.up_read);
	walk_message(&s->up_position, msg);
	return SK_PASS;
}

static __always_inline void send_back(struct sk_msg_md *msg, struct bpf_sock *sk, __u64 id,
				      struct up_splice *s)
{
	struct up_splice_order order;

	if (!read_order(id, &order) || order.engine != UP_SPLICE_ENGINE_SENDER)
		return;
	if (!may_go(msg, sk, order.down_seq, s->near_leg, &s->down_spills))
		return;
	if (bpf_msg_redirect_hash(msg, &near_legs, &id, 0) != SK_PASS) {
		count_cause(UP_CAUSE_SPLICE_TARGET_GONE);
		return;
	}
	if (is_reset(s->near_leg))
		return;
	s->down_redirected += msg->size;
	if (s->down_since != order.down_passed)
		take_position(&s->down_position, &s->down_since, &order.down_position, order.down_passed);
	walk_message(&s->down_position, msg);
}

/* One more, before everything behind it and after everything before it: with a result that is used, the
 * kernel makes a full barrier of it. */
static __always_inline void count_in_order(__u64 *count)
{
	__u64 before = __sync_fetch_and_add(count, 1);

	asm volatile("" : : "r"(before));
}

/* The agent may have words of its own for the client. Behind its withdrawal it must know whether a run
 * goes on that has read the order before: one is counted before it reads, and again when it is done. */
SEC("sk_msg")
int splice_back(struct sk_msg_md *msg)
{
	struct bpf_sock *sk = msg->sk;
	struct up_spliced *spliced_here;
	struct up_splice *s;
	__u64 id;

	if (!sk)
		return SK_PASS;
	spliced_here = bpf_sk_storage_get(&spliced, sk, 0, 0);
	if (!spliced_here)
		return SK_PASS;
	id = spliced_here->id;
	s = bpf_map_lookup_elem(&splices, &id);
	if (!s)
		return SK_PASS;
	count_in_order(&s->back_begun);
	send_back(msg, sk, id, s);
	count_in_order(&s->back_done);
	return SK_PASS;
}

/* Whether everything that the verdict has passed up is written on. */
static __always_inline int may_flow(const struct up_splice_order *order, const struct up_splice *s)
{
	return s->down_passed == order->down_passed;
}

/* What the accepted socket's peer has not acknowledged. */
static __always_inline int is_full(const struct up_splice_order *order, const struct up_splice *s)
{
	const struct tcp_sock *near_leg = tcp(s->near_leg);
	__u32 queued = s->base_seq + (__u32)s->down_redirected + (__u32)order->down_written -
		       BPF_CORE_READ(near_leg, snd_una);

	return queued >= UP_SPLICE_BYTES;
}

/* The agent watches the dialled socket for its end only, so as not to be woken by every packet:
 * it must be told when there is something for it to read. */
static __always_inline void call_agent(__u64 id)
{
	if (bpf_ringbuf_output(&splice_calls, &id, sizeof(id), 0))
		count_cause(UP_CAUSE_SPLICE_RING_FULL);
}

/* So many bytes can be cut off at once, and so often: 512 KiB. */
#define CUT_AT_ONCE 4095u
#define MAX_CUTS 128

struct cut {
	struct __sk_buff *skb;
	__u32 bytes;
	int has_failed;
};

static long cut_once(__u32 n, void *context)
{
	struct cut *cut = context;
	__u32 done = n * CUT_AT_ONCE, left;

	if (done >= cut->bytes)
		return 1;
	left = cut->bytes - done;
	if (left > CUT_AT_ONCE)
		left = CUT_AT_ONCE;
	if (!bpf_skb_adjust_room(cut->skb, -(__s32)left, 0, 0))
		return 0;
	cut->has_failed = 1;
	return 1;
}

/* The kernel hands packets to a verdict whole, also those of a retransmission that begin before
 * the bytes that are next. Cuts off what was seen. Returns 0 when nothing is left, and less when
 * it cannot be done, or bytes are missing. */
static __always_inline long cut_seen(struct __sk_buff *skb, struct up_splice *s)
{
	__u32 seq = 0, seen, whole = skb->len;
	struct cut cut = { .skb = skb };

	bpf_probe_read_kernel(&seq, sizeof(seq),
			      (void *)skb + bpf_core_field_offset(struct sk_buff, cb) +
				      bpf_core_field_offset(struct tcp_skb_cb, seq));
	seen = s->down_seq - seq;
	if ((__s32)seen < 0)
		return -1;
	if (seen >= whole)
		return 0;
	s->down_seq = seq + whole;
	if (!seen)
		return whole;
	if (seen > MAX_CUTS * CUT_AT_ONCE)
		return -1;
	cut.bytes = seen;
	bpf_loop(MAX_CUTS, cut_once, &cut, 0);
	return cut.has_failed ? -1 : (long)skb->len;
}

SEC("sk_skb/stream_verdict")
int splice_down(struct __sk_buff *skb)
{
	__u64 id = bpf_get_socket_cookie(skb);
	struct up_splice_order order = {};
	struct up_splice *s;
	int is_first;
	long left;

	/* A FIN: the agent sees it for itself. Passed up it would make an empty message, redirected
	 * a broken pipe. */
	if (!skb->len)
		return SK_DROP;
	s = bpf_map_lookup_elem(&splices, &id);
	if (!s)
		return SK_PASS;
	if (s->corrupted)
		return SK_DROP;
	left = cut_seen(skb, s);
	if (left < 0) {
		count_cause(UP_CAUSE_SPLICE_CORRUPTED);
		s->corrupted = 1;
		call_agent(id);
	}
	if (left <= 0)
		return SK_DROP;
	read_order(id, &order);
	if (order.engine != UP_SPLICE_ENGINE_EGRESS)
		goto pass;
	if (!s->down_flows && !may_flow(&order, s))
		goto pass;
	if (is_full(&order, s)) {
		s->down_spills += 1;
		goto pass;
	}
	if (bpf_sk_redirect_hash(skb, &near_legs, &id, 0) != SK_PASS) {
		count_cause(UP_CAUSE_SPLICE_TARGET_GONE);
		goto pass;
	}
	s->down_flows = 1;
	s->down_redirected += skb->len;
	if (s->down_since != s->down_passed)
		take_position(&s->down_position, &s->down_since, &order.down_position, s->down_passed);
	walk_packet(&s->down_position, skb);
	return SK_PASS;
pass:
	is_first = order.engine != UP_SPLICE_ENGINE_OFF &&
		   (s->down_flows || s->down_passed == order.down_passed);
	s->down_flows = 0;
	s->down_passed += skb->len;
	/* Whoever is called looks at that. */
	if (is_first)
		call_agent(id);
	return SK_PASS;
}

/* What this namespace has by its own address and its peer's: a listener too, of a connection that
 * is gone. */
static __always_inline struct bpf_sock *look_up(struct __sk_buff *skb,
						const struct up_endpoint *own,
						const struct up_endpoint *peer)
{
	struct bpf_sock_tuple t = {};

	if (own->family == 4) {
		t.ipv4.saddr = endpoint_v4(peer);
		t.ipv4.daddr = endpoint_v4(own);
		t.ipv4.sport = peer->port_be;
		t.ipv4.dport = own->port_be;
		return bpf_skc_lookup_tcp(skb, &t, sizeof(t.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	__builtin_memcpy(t.ipv6.saddr, peer->addr, 16);
	__builtin_memcpy(t.ipv6.daddr, own->addr, 16);
	t.ipv6.sport = peer->port_be;
	t.ipv6.dport = own->port_be;
	return bpf_skc_lookup_tcp(skb, &t, sizeof(t.ipv6), BPF_F_CURRENT_NETNS, 0);
}

/* The socket with these addresses and this cookie, to be released. No other may get into a map: a
 * listener there never wakes its owner again. */
static __always_inline struct bpf_sock *find(struct __sk_buff *skb, const struct up_endpoint *own,
					     const struct up_endpoint *peer, __u64 cookie)
{
	struct bpf_sock *sk = look_up(skb, own, peer);
	struct tcp_sock *t;

	if (!sk)
		return 0;
	t = bpf_skc_to_tcp_sock(sk);
	if (t && t->inet_conn.icsk_inet.sk.__sk_common.skc_cookie.counter == cookie)
		return sk;
	bpf_sk_release(sk);
	return 0;
}

/* What it means that a map does not take a socket: another's programs are on it, the map is full,
 * or it is closing. */
static __always_inline __u32 sockmap_refusal(struct up_splice_answer *a, long error, __u32 taken,
				     __u32 gone)
{
	a->error = (__u32)-error;
	if (!error)
		return UP_SPLICE_ENROLLED;
	if (error == -E2BIG || error == -ENOMEM)
		return UP_SPLICE_FULL;
	return error == -EOPNOTSUPP ? gone : taken;
}

static __always_inline __u32 enrol_near_app(struct __sk_buff *skb, struct up_splice_answer *a,
					  const struct up_splice_question *q)
{
	struct bpf_sock *sk = find(skb, &q->near_app, &q->near_leg, q->near_app_cookie);
	__u32 refusal = UP_SPLICE_NO_NEAR_APP;
	struct up_spliced *storage;
	struct tcp_sock *t;

	if (!sk)
		return refusal;
	t = bpf_skc_to_tcp_sock(sk);
	if (!t)
		goto out;
	/* A database's that has not been accepted yet. */
	refusal = UP_SPLICE_BUSY;
	if (!BPF_CORE_READ(t, inet_conn.icsk_inet.sk.sk_socket))
		goto out;
	refusal = UP_SPLICE_NEAR_APP_BLOCKS;
	if (blocks(t))
		goto out;
	refusal = UP_SPLICE_FULL;
	storage = bpf_sk_storage_get(&spliced, t, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!storage)
		goto out;
	storage->id = q->id;
	refusal = sockmap_refusal(a, bpf_map_update_elem(&near_apps, &q->id, sk, BPF_ANY),
			  UP_SPLICE_NEAR_APP_TAKEN, UP_SPLICE_NO_NEAR_APP);
out:
	bpf_sk_release(sk);
	return refusal;
}

static __always_inline __u32 enrol_near_leg(struct __sk_buff *skb, struct up_splice_answer *a,
					    const struct up_splice_question *q, struct up_splice *s)
{
	struct bpf_sock *sk = find(skb, &q->near_leg, &q->near_app, q->near_leg_cookie);
	__u32 refusal = UP_SPLICE_NO_NEAR_LEG;
	struct tcp_sock *t;

	if (!sk)
		return refusal;
	t = bpf_skc_to_tcp_sock(sk);
	if (!t)
		goto out;
	s->near_leg = (__u64)(long)t;
	s->base_seq = t->write_seq;
	refusal = sockmap_refusal(a, bpf_map_update_elem(&near_legs, &q->id, sk, BPF_ANY),
			  UP_SPLICE_NEAR_LEG_TAKEN, UP_SPLICE_NO_NEAR_LEG);
out:
	bpf_sk_release(sk);
	return refusal;
}

/* Whether two sockets are the ends of one connection: each has been sent what the other one sent, but for what
 * is under way. Addresses do not tell: a client's is kept where the agent dials for it. */
static __always_inline int are_ends(const struct tcp_sock *a, const struct tcp_sock *b)
{
	return a->rcv_nxt - b->snd_una <= b->write_seq - b->snd_una &&
	       b->rcv_nxt - a->snd_una <= a->write_seq - a->snd_una;
}

/* Enters the database's socket, if that is here and works without waiting. */
static __always_inline __u32 enrol_far_app(struct __sk_buff *skb,
					     const struct up_splice_question *q,
					     const struct tcp_sock *dialled)
{
	struct bpf_sock *sk = look_up(skb, &q->far_app, &q->far_leg);
	__u32 sender = UP_SPLICE_SENDER_ELSEWHERE;
	struct up_spliced *storage;
	struct tcp_sock *t;

	if (!sk)
		return sender;
	t = bpf_skc_to_tcp_sock(sk);
	if (!t || t->inet_conn.icsk_inet.sk.__sk_common.skc_state != BPF_TCP_ESTABLISHED)
		goto out;
	if (!are_ends(t, dialled) || !BPF_CORE_READ(t, inet_conn.icsk_inet.sk.sk_socket))
		goto out;
	sender = UP_SPLICE_SENDER_BLOCKS;
	if (blocks(t))
		goto out;
	sender = UP_SPLICE_SENDER_TAKEN;
	storage = bpf_sk_storage_get(&spliced, t, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!storage)
		goto out;
	storage->id = q->id;
	if (!bpf_map_update_elem(&far_apps, &q->id, sk, BPF_ANY))
		sender = UP_SPLICE_SENDER_IN;
out:
	bpf_sk_release(sk);
	return sender;
}

#define MAY_USE(q, by) ((q)->enrol >> (by) & 1)

static __always_inline __u32 enrol_far_leg(struct __sk_buff *skb, struct up_splice_answer *a,
					    const struct up_splice_question *q, struct up_splice *s)
{
	struct bpf_sock *sk = find(skb, &q->far_leg, &q->far_app, q->id);
	__u32 refusal = UP_SPLICE_NO_FAR_LEG;
	struct tcp_sock *t;
	long error;

	if (!sk)
		return refusal;
	t = bpf_skc_to_tcp_sock(sk);
	if (!t)
		goto out;
	s->far_leg = (__u64)(long)t;
	/* Before the verdict can run, or what it passes would go uncounted. */
	refusal = UP_SPLICE_FULL;
	if (bpf_map_update_elem(&splices, &q->id, s, BPF_ANY))
		goto out;
	refusal = UP_SPLICE_NO_ENGINE;
	a->sender = UP_SPLICE_SENDER_OFF;
	if (MAY_USE(q, UP_SPLICE_ENGINE_SENDER))
		a->sender = enrol_far_app(skb, q, t);
	if (a->sender == UP_SPLICE_SENDER_IN) {
		a->engine = UP_SPLICE_ENGINE_SENDER;
		error = bpf_map_update_elem(&far_sinks, &q->id, sk, BPF_ANY);
	} else if (MAY_USE(q, UP_SPLICE_ENGINE_EGRESS)) {
		a->engine = UP_SPLICE_ENGINE_EGRESS;
		error = bpf_map_update_elem(&far_legs, &q->id, sk, BPF_ANY);
	} else {
		goto forget;
	}
	refusal = sockmap_refusal(a, error, UP_SPLICE_FAR_LEG_TAKEN, UP_SPLICE_NO_FAR_LEG);
forget:
	/* Nobody would come for it. */
	if (refusal != UP_SPLICE_ENROLLED)
		bpf_map_delete_elem(&splices, &q->id);
out:
	bpf_sk_release(sk);
	return refusal;
}

/* What the agent has read a part of would be handed to the verdict whole. It reads nothing while
 * this runs, so what arrives after this look is whole. */
static __always_inline __u32 is_read(struct __sk_buff *skb, const struct up_splice_question *q,
				     struct up_splice *s)
{
	struct bpf_sock *sk = find(skb, &q->far_leg, &q->far_app, q->id);
	__u32 refusal = UP_SPLICE_NO_FAR_LEG;
	struct tcp_sock *t;

	if (!sk)
		return refusal;
	t = bpf_skc_to_tcp_sock(sk);
	if (t) {
		s->down_seq = t->copied_seq;
		refusal = t->rcv_nxt == t->copied_seq ? UP_SPLICE_ENROLLED : UP_SPLICE_BUSY;
	}
	bpf_sk_release(sk);
	return refusal;
}

static __always_inline int has_bytes(struct __sk_buff *skb, const struct up_endpoint *own,
				     const struct up_endpoint *peer)
{
	struct bpf_sock *sk = look_up(skb, own, peer);
	struct tcp_sock *t;
	int has = 0;

	if (!sk)
		return 0;
	t = bpf_skc_to_tcp_sock(sk);
	if (t)
		has = t->inet_conn.icsk_inet.sk.sk_receive_queue.qlen != 0;
	bpf_sk_release(sk);
	return has;
}

/* Nobody carries the flow: the applications' sockets become what they were. Nothing is in their psocks. */
static __always_inline void leave_apps(struct __sk_buff *skb, struct up_splice_answer *a,
				       const struct up_splice_question *q)
{
	bpf_map_delete_elem(&near_apps, &q->id);
	bpf_map_delete_elem(&far_apps, &q->id);
	a->to_nudge = has_bytes(skb, &q->near_app, &q->near_leg) ||
		      has_bytes(skb, &q->far_app, &q->far_leg);
}

/* The dialled socket last: when it is there, everything is. */
static __always_inline __u32 enrol_flow(struct __sk_buff *skb, struct up_splice_answer *a,
					 const struct up_splice_question *q)
{
	struct up_splice s = { .up_since = ~0ull, .down_since = ~0ull };
	__u32 refusal = is_read(skb, q, &s);

	/* The application's after the agent's: a refusal there costs nobody anything. */
	if (refusal == UP_SPLICE_ENROLLED)
		refusal = enrol_near_leg(skb, a, q, &s);
	if (refusal == UP_SPLICE_ENROLLED)
		refusal = enrol_near_app(skb, a, q);
	if (refusal != UP_SPLICE_ENROLLED)
		return refusal;
	refusal = enrol_far_leg(skb, a, q, &s);
	if (refusal != UP_SPLICE_ENROLLED)
		leave_apps(skb, a, q);
	return refusal;
}

static __always_inline void describe_splice(const struct up_splice *s, struct up_splice_answer *a)
{
	const struct tcp_sock *near_leg = tcp(s->near_leg), *far_leg = tcp(s->far_leg);

	a->near_leg_write_seq = BPF_CORE_READ(near_leg, write_seq);
	a->near_leg_copied_seq = BPF_CORE_READ(near_leg, copied_seq);
	a->far_leg_copied_seq = BPF_CORE_READ(far_leg, copied_seq);
	a->is_reset = is_reset(s->near_leg);
}

/* Run by the agent, with a question for a packet; the answer takes its place. */
SEC("classifier")
int splice_look(struct __sk_buff *skb)
{
	struct up_splice_question q = {};
	struct up_splice_answer a = {};
	struct up_splice *s;

	if (bpf_skb_load_bytes(skb, 0, &q, sizeof(q)))
		return -1;
	if (q.enrol)
		a.refusal = enrol_flow(skb, &a, &q);
	s = bpf_map_lookup_elem(&splices, &q.id);
	if (s)
		describe_splice(s, &a);
	else if (a.refusal == UP_SPLICE_ENROLLED)
		a.refusal = UP_SPLICE_UNKNOWN;
	return bpf_skb_store_bytes(skb, 0, &a, sizeof(a), 0);
}
