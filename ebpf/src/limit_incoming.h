/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * sock_ops, and what sk_lookup asks of it: how many connections one client on another host has by a rule with a limit.
 *
 * Fires for events of sockets. A connection counts on the socket that accepts it, the database's or the agent's, from the end
 * of its handshake to CLOSE (for sockets beneath the agent's cgroup; others have no limit, counted `database_unmetered` at the
 * SYN). At the SYN there is no socket yet. What is under way then counts by itself, so that who opens many at once gets no more than
 * he may; for UP_HANDSHAKE_NS, so that a handshake that nobody ends costs its client nothing for long, and a flood of
 * SYNs fills no table but one in which the oldest gives way. Where so many connect at once that it does, or
 * handshakes end unfinished just then, a client may get a few more.
 *
 * Whatever cannot be counted passes, and a cause says so. Attached when a policy with such a limit comes, and pinned: the
 * count goes on while no agent is there. Reads and writes client_connections, clients_connecting, counted; reads what decides of
 * incoming connections.
 */
#pragma once

#include "clients.h"
#include "observe_incoming.h"

/* False: its rule is not there. */
static __always_inline int client_by_address(const struct decision *d, const struct up_endpoint *client,
					     struct client *key, __u32 *limit)
{
	__u32 index = d->generation * UP_MAX_RULES + d->slot;
	struct up_rule *rule = bpf_map_lookup_elem(&rules, &index);

	if (!rule)
		return 0;
	key->limit_id = rule->limit_id;
	__builtin_memcpy(key->who, client->addr, sizeof(key->who));
	*limit = rule->limit;
	return 1;
}

/* At the SYN: denies it, if the client has as many connections as it may. If not, this one is under way. */
static __noinline int limit_address(struct decision *d, const struct up_endpoint *client)
{
	struct connecting begun = { .last_ns = bpf_ktime_get_ns() };
	struct client key = {};
	struct connecting *c;
	__u64 *n, all;
	__u32 limit;

	if (!d || !client || !client_by_address(d, client, &key, &limit))
		return 0;
	c = bpf_map_lookup_elem(&clients_connecting, &key);
	if (!c) {
		bpf_map_update_elem(&clients_connecting, &key, &begun, BPF_NOEXIST);
		c = bpf_map_lookup_elem(&clients_connecting, &key);
	}
	if (!c)
		return 0;
	if (begun.last_ns > c->last_ns + UP_HANDSHAKE_NS)
		c->n = 0;
	all = __sync_fetch_and_add(&c->n, 1);
	n = bpf_map_lookup_elem(&client_connections, &key);
	if (n)
		all += *n;
	if (all >= limit) {
		__sync_fetch_and_add(&c->n, -1);
		count_cause(UP_CAUSE_CLIENT_LIMIT);
		d->action = UP_ACTION_DENY;
		d->refused_for = UP_CAUSE_CLIENT_LIMIT;
		return 0;
	}
	c->last_ns = begun.last_ns;
	return 0;
}

/* At the end of the handshake of a connection that a rule with a limit has let pass. */
static __noinline int enter_client(struct bpf_sock_ops *ops, const struct decision *d,
				   const struct up_endpoint *client)
{
	struct bpf_sock *sk = ops->sk;
	struct client key = {};
	struct connecting *c;
	struct client *of;
	__u32 limit;
	__u64 *n;

	if (!sk || !d || !client || !client_by_address(d, client, &key, &limit))
		return 0;
	n = connections_of(&key);
	if (n)
		__sync_fetch_and_add(n, 1);
	c = bpf_map_lookup_elem(&clients_connecting, &key);
	/* What was forgotten since its SYN is not there to be taken off. */
	if (c && (__s32)__sync_fetch_and_add(&c->n, -1) <= 0)
		__sync_fetch_and_add(&c->n, 1);
	if (!n) {
		count_cause(UP_CAUSE_CLIENTS_FULL);
		return 0;
	}
	of = bpf_sk_storage_get(&counted, sk, &key, BPF_SK_STORAGE_GET_F_CREATE);
	if (!of) {
		__sync_fetch_and_add(n, -1);
		count_cause(UP_CAUSE_NO_MEMORY);
		return 0;
	}
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
	return 0;
}

/* Counts a connection that this host has accepted. The agent's own dials, on behalf of a client, have entries. */
static __always_inline void enter_accepted(struct bpf_sock_ops *ops)
{
	struct up_incoming_dial dial = {};
	struct up_agent_settings *s;
	struct decision d = {};
	__u32 *netns_index, zero = 0;

	if (!is_incoming_port(ops->local_port))
		return;
	remote_end(&dial.client, ops);
	local_end(&dial.dialled, ops);
	netns_index = steered_netns(bpf_get_netns_cookie(ops));
	if (netns_index)
		dial.netns_index = *netns_index;
	else if (!bpf_map_lookup_elem(&taken_addresses, &dial.dialled))
		return;
	if (is_own(dial.netns_index, &dial.client, &dial.dialled) ||
	    bpf_map_lookup_elem(&incoming_dials, &dial))
		return;
	s = bpf_map_lookup_elem(&settings, &zero);
	if (s && decide_elsewhere(s, &dial.client, &dial.dialled, &d) && d.limited_elsewhere)
		enter_client(ops, &d, &dial.client);
}

SEC("sockops")
int on_client_event(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	struct client *of;

	if (!sk)
		return 1;
	if (ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB) {
		enter_accepted(ops);
	} else if (ops->op == BPF_SOCK_OPS_STATE_CB && ops->args[1] == BPF_TCP_CLOSE) {
		of = bpf_sk_storage_get(&counted, sk, 0, 0);
		if (of)
			leave_client(of);
	}
	return 1;
}
