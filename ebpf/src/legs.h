/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Short legs: the connection between an application on this host and the agent, of a flow that the agent
 * reads, skips TCP as a connection on the shortcut does (docs/decisions/0033-short-legs.md).
 *
 *   client's socket ──▶ accepted socket        dialled socket ──▶ database's socket
 *   client's socket ◀── accepted socket        dialled socket ◀── database's socket
 *
 * Both sockets of a leg are ends of a shortcut: take_shortcut chooses for each of their messages, within the
 * same bounds, nudge_readers and find_stalled look after their readers, and find_stalled finds the moment at which
 * one that is to leave may. What differs is how they enter. The agent enters them when it knows that it reads
 * the flow, with leg_look, which it runs. An application's socket that blocks is not entered: a recv(2) that
 * waits at that moment would wait for TCP alone, for ever.
 *
 * Reads and writes shortcut_ends, shortcut_socks. Ends die when the agent says that the leg has ended. When the agent is dead its socket is closed: the
 * application sees what is in its queue, and then the end.
 */
#pragma once

#include "shortcut.h"
#include "splice.h"

static __always_inline __u64 cookie_of(const struct tcp_sock *tp)
{
	return SOCK_OF(tp).__sk_common.skc_cookie.counter;
}

static __always_inline int is_established(const struct tcp_sock *tp)
{
	return SOCK_OF(tp).__sk_common.skc_state == BPF_TCP_ESTABLISHED;
}

/* What the kernel's answer about a sockmap means for a leg. */
static __always_inline __u32 leg_refusal(struct up_leg_answer *a, long error)
{
	a->error = (__u32)-error;
	return error == -E2BIG || error == -ENOMEM ? UP_LEG_FULL : UP_LEG_TAKEN;
}

/* Enters one end, in whose sockmap there is nobody under this cookie yet. */
static __always_inline long enter_end(struct bpf_sock *sk, const struct tcp_sock *tp,
				      const struct tcp_sock *peer, __u8 leg)
{
	struct up_shortcut_end end = { .leg = leg };
	__u64 key = cookie_of(tp);
	long error;

	end.peer = cookie_of(peer);
	end.peer_sock = (__u64)(long)peer;
	error = bpf_map_update_elem(&shortcut_ends, &key, &end, BPF_NOEXIST);
	if (error)
		return error;
	error = bpf_map_update_elem(&shortcut_socks, &key, sk, BPF_NOEXIST);
	if (error)
		bpf_map_delete_elem(&shortcut_ends, &key);
	return error;
}

static __always_inline void take_end_out(const struct tcp_sock *tp)
{
	__u64 key = cookie_of(tp);

	bpf_map_delete_elem(&shortcut_socks, &key);
	bpf_map_delete_elem(&shortcut_ends, &key);
}

/* Why the sockets of a leg are not entered, or UP_LEG_IN when they are. */
static __always_inline __u32 enter_leg(struct bpf_sock *app, struct bpf_sock *own,
				       struct up_leg_answer *a)
{
	struct tcp_sock *app_tp = bpf_skc_to_tcp_sock(app), *own_tp = bpf_skc_to_tcp_sock(own);
	long error;

	if (!app_tp || !own_tp || !is_established(app_tp) || !is_established(own_tp))
		return UP_LEG_GONE;
	if (!are_ends(app_tp, own_tp))
		return UP_LEG_GONE;
	if (blocks(app_tp))
		return UP_LEG_BLOCKS;
	if (app_tp->inet_conn.icsk_ulp_ops)
		return UP_LEG_TAKEN;
	/* The agent's first, which sends nothing meanwhile: a refusal costs the application nothing then. */
	error = enter_end(own, own_tp, app_tp, UP_LEG_OWN);
	if (error)
		return leg_refusal(a, error);
	error = enter_end(app, app_tp, own_tp, UP_LEG_APP);
	if (!error)
		return UP_LEG_IN;
	take_end_out(own_tp);
	return leg_refusal(a, error);
}

static __always_inline void ask_to_leave(__u64 cookie)
{
	struct up_shortcut_end *end = bpf_map_lookup_elem(&shortcut_ends, &cookie);

	if (end)
		end->reader.leaves = 1;
}

static __always_inline __u32 enter(struct __sk_buff *skb, const struct up_leg_question *q,
				   struct up_leg_answer *a)
{
	struct bpf_sock *app = find(skb, &q->app, &q->own, q->app_cookie), *own;
	__u32 refusal = UP_LEG_GONE;

	if (!app)
		return refusal;
	own = find(skb, &q->own, &q->app, q->own_cookie);
	if (own) {
		refusal = enter_leg(app, own, a);
		bpf_sk_release(own);
	}
	bpf_sk_release(app);
	return refusal;
}

/* Whether the application's end has outlived the agent's, and does not know it yet: a look asks for it. */
static __always_inline int was_not_told(const struct tcp_sock *tp, __u64 cookie)
{
	struct up_shortcut_end *end = bpf_map_lookup_elem(&shortcut_ends, &cookie);

	return end && is_orphan(tp, end);
}

/* The agent has closed its socket, so nobody puts anything into the application's psock any more. Forgets both ends,
 * unless the application has bytes to read, or was not told: then it leaves at a later look, is nudged by its end
 * (nudge_left), and is to be asked about again. */
static __always_inline __u32 end_leg(struct __sk_buff *skb, const struct up_leg_question *q)
{
	__u64 own_cookie = q->own_cookie, app_cookie = q->app_cookie;
	struct bpf_sock *app = find(skb, &q->app, &q->own, app_cookie);
	struct tcp_sock *tp;
	int reads = 0;

	bpf_map_delete_elem(&shortcut_ends, &own_cookie);
	tp = app ? bpf_skc_to_tcp_sock(app) : 0;
	if (tp)
		reads = SOCK_OF(tp).sk_receive_queue.qlen;
	if (tp && !reads && (__u64)SOCK_OF(tp).sk_user_data & USER_DATA_PSOCK)
		reads = queued((__u64)SOCK_OF(tp).sk_user_data) || was_not_told(tp, app_cookie);
	if (app)
		bpf_sk_release(app);
	if (reads) {
		ask_to_leave(app_cookie);
		return UP_LEG_LINGERS;
	}
	/* One that is not found is closed, or was reset: then its application may read yet what is in its psock. */
	if (tp)
		bpf_map_delete_elem(&shortcut_socks, &app_cookie);
	bpf_map_delete_elem(&shortcut_ends, &app_cookie);
	return UP_LEG_GONE;
}

/* Run by the agent, with a question for a packet; the answer takes its place. */
SEC("classifier")
int leg_look(struct __sk_buff *skb)
{
	struct up_leg_answer a = {};
	struct up_leg_question q = {};

	if (bpf_skb_load_bytes(skb, 0, &q, sizeof(q)))
		return -1;
	switch (q.ask) {
	case UP_LEG_ENTER:
		a.refusal = enter(skb, &q, &a);
		break;
	case UP_LEG_LEAVE:
		ask_to_leave(q.app_cookie);
		ask_to_leave(q.own_cookie);
		break;
	case UP_LEG_END:
		a.refusal = end_leg(skb, &q);
		break;
	}
	return bpf_skb_store_bytes(skb, 0, &a, sizeof(a), 0);
}
