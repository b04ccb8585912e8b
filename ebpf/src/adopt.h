/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * iter/tcp: connections that were there before a rule observed them.
 *
 * The agent lists the connections of each namespace (sock_diag), finds by the policy which are to be observed, and
 * enters those into `adoptions` by their sockets' cookies. Run over a namespace's sockets, this marks each of
 * them for the meter, as connect() would have done. Nothing is done to the connection. Each direction is
 * joined at the next packet that begins with a header (meter.h, resume). Of a connection that was observed, and is to be
 * tapped, the kernel knows where headers are.
 *
 * A connection of which the kernel cannot be asked to tell the end is not adopted: nobody would ever
 * take its meter away.
 *
 * Reads adoptions, and writes in each what became of it; writes observed, meters.
 */
#pragma once

#include "common.h"
#include "kernel.h"
#include "meter.h"

#ifndef TCP_BPF_SOCK_OPS_CB_FLAGS
#define TCP_BPF_SOCK_OPS_CB_FLAGS 1008
#endif
#ifndef SOL_TCP
#define SOL_TCP 6
#endif

/* The next byte of a direction is this one, and not known to begin anything. */
static __always_inline void join_reading(struct up_cursor *at, __u32 seq)
{
	at->next = seq;
	at->top = seq;
	at->sync = UP_SYNC_LOST;
	at->framing = UP_FRAMING_ANY;
}

/* A connection that is observed is tapped from now on, if its rule wants that. Its counts go on. What is tapped already
 * keeps the rule with which it began. */
static __always_inline __u32 tap_observed(struct tcp_sock *tp, struct up_meter *m, const struct up_connect *by)
{
	struct up_observed *o = bpf_sk_storage_get(&observed, tp, 0, 0);

	if (!o || m->ended || m->connect.taps || !by->taps)
		return UP_ADOPTED_BEFORE;
	m->connect.slot = o->connect.slot = by->slot;
	m->connect.generation = o->connect.generation = by->generation;
	m->connect.forgets = o->connect.forgets = by->forgets;
	m->connect.taps = o->connect.taps = by->taps;
	return UP_ADOPTED_YES;
}

static __always_inline __u32 adopt(struct sock_common *skc, struct tcp_sock *tp, struct up_adoption *a,
				   __u64 cookie)
{
	int flags = tp->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG;
	__u32 is_incoming = a->observed.client.family != 0;
	struct up_observed *o;
	struct up_meter *m;

	m = bpf_map_lookup_elem(&meters, &cookie);
	if (m)
		return tap_observed(tp, m, &a->observed.connect);
	if (bpf_setsockopt(skc, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags)))
		return UP_ADOPTED_NO_END;
	m = begin(&a->observed.connect, cookie);
	if (!m)
		return UP_ADOPTED_NO_ROOM;
	m->client = a->client;
	/* Whether it is, its answer to the handshake says. */
	m->version = 5;
	m->joined = 1;
	join_reading(&m->requests.at, is_incoming ? tp->rcv_nxt : tp->snd_nxt);
	join_reading(&m->responses.at, is_incoming ? tp->snd_nxt : tp->rcv_nxt);
	o = bpf_sk_storage_get(&observed, tp, &a->observed, BPF_SK_STORAGE_GET_F_CREATE);
	if (!o) {
		bpf_map_delete_elem(&meters, &cookie);
		return UP_ADOPTED_NO_ROOM;
	}
	/* It may be there from an earlier rule. */
	*o = a->observed;
	return UP_ADOPTED_YES;
}

SEC("iter/tcp")
int adopt_connections(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct up_adoption *a;
	struct tcp_sock *tp;
	__u64 cookie;

	if (!skc || skc->skc_state != BPF_TCP_ESTABLISHED)
		return 0;
	cookie = skc->skc_cookie.counter;
	a = bpf_map_lookup_elem(&adoptions, &cookie);
	tp = a ? (struct tcp_sock *)bpf_skc_to_tcp_sock(skc) : 0;
	if (a && tp)
		a->outcome = adopt(skc, tp, a, cookie);
	return 0;
}
