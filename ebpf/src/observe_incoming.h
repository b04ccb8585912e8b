/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Observed clients on other hosts: their connection is the database's own, and its accepted socket is
 * the one whose packets the meter reads.
 *
 * What sk_lookup decides at the SYN has no socket yet to be kept with. So the policy is asked again when
 * the handshake is done (sock_ops, PASSIVE_ESTABLISHED), for sockets beneath the agent's cgroup, where
 * the meter is attached. Of a database elsewhere nobody sees the packets: counted at the SYN.
 */
#pragma once

#include "decide.h"
#include "databases.h"

/* Marks the socket for the meter, if its client is on another host and a rule says so. */
static __noinline int observe_incoming(struct bpf_sock_ops *ops)
{
	struct up_incoming_dial dial = {};
	struct up_observed *o;
	struct decision d = {};
	struct up_agent_settings *s;
	struct bpf_sock *sk = ops->sk;
	__u32 *netns_index, zero = 0;

	if (!sk || !is_incoming_port(ops->local_port))
		return 0;
	netns_index = steered_netns(bpf_get_netns_cookie(ops));
	if (!netns_index)
		return 0;
	dial.netns_index = *netns_index;
	remote_end(&dial.client, ops);
	local_end(&dial.dialled, ops);
	/* What the agent dials on behalf of a client is not that client's connection. */
	if (is_own(dial.netns_index, &dial.client, &dial.dialled) ||
	    bpf_map_lookup_elem(&incoming_dials, &dial))
		return 0;
	s = bpf_map_lookup_elem(&settings, &zero);
	if (!s || s->unmetered || !decide_elsewhere(s, &dial.client, &dial.dialled, &d) ||
	    d.action != UP_ACTION_OBSERVE)
		return 0;
	o = bpf_sk_storage_get(&observed, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!o) {
		count_cause(UP_CAUSE_NO_MEMORY);
		return 0;
	}
	o->connect.opener.orig_dst = dial.dialled;
	o->connect.opener.uid = ~0u;
	o->connect.opener.gid = ~0u;
	o->connect.cookie = bpf_get_socket_cookie(ops);
	o->connect.slot = d.slot;
	o->connect.generation = d.generation;
	o->connect.taps = d.taps;
	o->connect.forgets = s->forgets;
	o->client = dial.client;
	o->request_seq = ops->rcv_nxt;
	o->answer_seq = ops->snd_nxt;
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
	return 0;
}

/* Whether nobody sees the packets of the connections that this listening socket accepts: they are of its
 * cgroup, and the meter is attached to the agent's. */
static __always_inline int is_unmetered(struct bpf_sock *listener, __u64 agents)
{
	const struct tcp_sock *t = bpf_skc_to_tcp_sock(listener);
	const struct cgroup *own, *above;
	__u64 ancestors;
	int level;

	if (!t || !bpf_core_field_exists(((struct cgroup *)0)->ancestors))
		return 0;
	own = BPF_CORE_READ(t, inet_conn.icsk_inet.sk.sk_cgrp_data.cgroup);
	level = BPF_CORE_READ(own, level);
	ancestors = (__u64)(long)own + bpf_core_field_offset(struct cgroup, ancestors);
	NO_UNROLL for (int i = 0; i < UP_CGROUP_DEPTH; i++) {
		if (i > level)
			return 1;
		above = 0;
		bpf_probe_read_kernel(&above, sizeof(above),
				      (void *)(long)(ancestors + i * sizeof(above)));
		if (BPF_CORE_READ(above, kn, id) == agents)
			return 0;
	}
	/* Deeper than anybody looks. */
	return 0;
}

/* Whether connections that the agent accepts by this listener, which may be null, can be counted. Takes over its
 * reference. */
static __always_inline int is_seen(struct bpf_sock *listener, __u64 agents)
{
	int unseen;

	if (!listener)
		return 0;
	unseen = is_unmetered(listener, agents);
	bpf_sk_release(listener);
	if (unseen)
		count_cause(UP_CAUSE_DATABASE_UNMETERED);
	return !unseen;
}
