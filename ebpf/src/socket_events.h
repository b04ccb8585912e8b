/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * sock_ops: the events of an intercepted socket from connect() to its end.
 *
 * TCP_CONNECT_CB fires in connect(2) when source address and port are chosen, before the
 * SYN leaves: the pending connect is entered under the client's address and the listener's cookie, which is
 * all that the SYN will show at the other end. ACTIVE_ESTABLISHED_CB fires before the application learns
 * that it is connected: the name that the agent released moves to the socket, where it
 * lives as long as the socket does, and the pending connect has served, but for what may overtake the
 * handshake's last packet (hold.h). The change to CLOSE takes the
 * pending connect out that failed, and says that an observed flow has ended. Sockets that are
 * neither cost two failed look-ups. TCP_LISTEN_CB fires in listen(2): a database that begins to
 * listen is known at once (databases.h). PASSIVE_ESTABLISHED_CB fires before a database's socket can
 * be accepted: if its client is on another host and observed, it is marked for the meter
 * (observe_incoming.h).
 *
 * Reads observed, releases, what decides of incoming connections; writes flows, pending_connects, fresh, meters, observed,
 * causes; deletes from pending_connects, releases. When the agent
 * is dead it enters nothing, because connect no longer intercepts.
 */
#pragma once

#include "observe_incoming.h"
#include "tap.h"

static __always_inline void enter_pending(struct bpf_sock_ops *ops, struct bpf_sock *sk)
{
	struct up_flow *flow = bpf_sk_storage_get(&flows, sk, 0, 0);

	if (!flow)
		return;
	local_end(&flow->key.client, ops);
	if (bpf_map_update_elem(&pending_connects, &flow->key, &flow->connect, BPF_ANY))
		count_cause(UP_CAUSE_PENDING_CONNECTS_FULL);
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
}

/* Removes only the pending connect that this very socket entered: its port may be another's by now. */
static __always_inline void remove_pending(struct bpf_sock *sk)
{
	struct up_flow *flow = bpf_sk_storage_get(&flows, sk, 0, 0);
	struct up_connect *connect;

	if (!flow)
		return;
	connect = bpf_map_lookup_elem(&pending_connects, &flow->key);
	if (connect && connect->cookie == flow->connect.cookie)
		bpf_map_delete_elem(&pending_connects, &flow->key);
}

static __always_inline void keep_name(struct bpf_sock *sk)
{
	struct up_flow *flow = bpf_sk_storage_get(&flows, sk, 0, 0);
	struct up_release *release;
	__u64 cookie;

	if (!flow)
		return;
	cookie = flow->connect.cookie;
	release = bpf_map_lookup_elem(&releases, &cookie);
	if (!release)
		return;
	flow->local = release->local;
	bpf_map_delete_elem(&releases, &cookie);
}

/* From now on the client may send, and the agent's socket is yet to come: hold.h says when. */
static __always_inline void enter_fresh(struct bpf_sock *sk)
{
	struct up_flow *flow = bpf_sk_storage_get(&flows, sk, 0, 0);
	__u64 not_yet = 0;

	if (flow)
		bpf_map_update_elem(&fresh, &flow->key, &not_yet, BPF_ANY);
}

/* A flow over which nothing went has nothing to say: the agent need not come for it. */
static __always_inline void end_meter(struct bpf_sock *sk)
{
	struct up_observed *o = bpf_sk_storage_get(&observed, sk, 0, 0);
	struct up_meter *m;
	__u64 cookie;

	if (!o)
		return;
	cookie = o->connect.cookie;
	if (o->connect.taps)
		tap_end(cookie);
	m = bpf_map_lookup_elem(&meters, &cookie);
	if (!m)
		return;
	if (m->requests.bytes || m->responses.bytes)
		m->ended = 1;
	else
		bpf_map_delete_elem(&meters, &cookie);
}

SEC("sockops")
int on_socket_event(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;

	if (!sk)
		return 1;
	if (ops->op == BPF_SOCK_OPS_TCP_CONNECT_CB) {
		enter_pending(ops, sk);
		if (bpf_sk_storage_get(&observed, sk, 0, 0))
			bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags |
							       BPF_SOCK_OPS_STATE_CB_FLAG);
	} else if (ops->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB) {
		keep_name(sk);
		enter_fresh(sk);
		remove_pending(sk);
	} else if (ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB) {
		observe_incoming(ops);
	} else if (ops->op == BPF_SOCK_OPS_TCP_LISTEN_CB) {
		enter_database(ops);
	} else if (ops->op == BPF_SOCK_OPS_STATE_CB && ops->args[1] == BPF_TCP_CLOSE) {
		end_meter(sk);
		remove_pending(sk);
	}
	return 1;
}
