/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * sk_lookup: connections from other hosts to a database on this one.
 *
 * Fires for a packet that belongs to no connection, before the kernel looks for a listening socket;
 * so for the SYN of a new one (and for stray packets, which are decided, and counted, alike).
 * Looks the rule up by the client's address and the one that it dialled, and lets the packet go on to
 * the database (bypass; observe: observe_incoming.h), has the kernel answer with RST (deny), or hands it to the agent's
 * listener (enrich). What comes in over the loopback is this host's own and was decided by
 * connect.h; but for the agent's dials on behalf of such a client. They come from the client's
 * own address and port, which at the database's address are the accepted socket's already; so they
 * go to an address of the agent's (incoming_dials), from where they are handed to the database.
 *
 * The agent takes a connection only while the database listens: else the kernel refuses it as ever.
 *
 * A client with as many connections as its rule lets it have is refused (limit_incoming.h).
 *
 * Reads settings, policies, rules, targets, sources, incoming_listeners, incoming_strays, databases,
 * incoming_dials, own_addresses, taken_addresses. Writes decisions, causes, denials. When the agent is dead its listener has left the map: the rule's `fail`
 * decides.
 */
#pragma once

#include "limit_incoming.h"
#include "steer.h"

/* Of a listening socket that has been selected: nobody here sees the packets of its connections. */
#define SELECTED_UNSEEN 2

/* Whether the kernel takes the listening socket under this key: it refuses one of the wrong family.
 * `agents`: a cgroup, beneath which its connections would be metered and counted. */
static __always_inline int select_database_at(struct bpf_sk_lookup *ctx,
					      struct up_database_key *key, __u64 agents)
{
	struct bpf_sock *sk = bpf_map_lookup_elem(&databases, key);
	int unseen;
	long error;

	if (!sk)
		return 0;
	error = bpf_sk_assign(ctx, sk, BPF_SK_LOOKUP_F_REPLACE);
	unseen = !error && agents && is_unmetered(sk, agents);
	bpf_sk_release(sk);
	if (unseen) {
		count_cause(UP_CAUSE_DATABASE_UNMETERED);
		return SELECTED_UNSEEN;
	}
	return !error;
}

/* Selects the socket that listens at `at`, as the kernel would: a specific address goes before an
 * unspecified one, and IPv4 may be served by an IPv6 socket. */
static __noinline int select_database(struct bpf_sk_lookup *ctx, __u32 netns_index,
				      const struct up_endpoint *at, __u64 agents)
{
	struct up_database_key key = { .netns_index = netns_index };
	__u32 unspecified[4] = {};
	int selected;

	if (!at)
		return 0;
	key.at = *at;
	selected = select_database_at(ctx, &key, agents);
	if (selected)
		return selected;
	if (at->family == 4) {
		endpoint4(&key.at, 0, at->port_be);
		selected = select_database_at(ctx, &key, agents);
		if (selected)
			return selected;
	}
	endpoint6(&key.at, unspecified, at->port_be);
	return select_database_at(ctx, &key, agents);
}

static __always_inline int select_agent(struct bpf_sk_lookup *ctx, __u32 netns_index, int family)
{
	__u32 index = 2 * netns_index + (family == 6);

	return select_listener(ctx, bpf_map_lookup_elem(&incoming_listeners, &index));
}

/* What a database sends on a connection of which the agent's end is gone: it may not have believed a reset
 * that came ahead of what was sent before, asks once whether it was meant, and waits for ever. The kernel would
 * answer, but has no route from a client's address; that of a transparent listener's packets it has. Where the
 * agent could not have that listener, what came is counted. */
static __always_inline int on_stray(struct bpf_sk_lookup *ctx, __u32 netns_index,
				    const struct up_endpoint *from)
{
	__u32 mask = ~0u << (32 - UP_DIALLED_NETWORK_4_BITS);

	if (from->family == 4 &&
	    (bpf_ntohl(endpoint_v4(from)) & mask) == UP_DIALLED_NETWORK_4 &&
	    !select_listener(ctx, bpf_map_lookup_elem(&incoming_strays, &netns_index)))
		count_cause(UP_CAUSE_STRAY_UNANSWERED);
	return SK_PASS;
}

/* The agent's dial on behalf of a client reaches the database that it is meant for, or nobody. */
static __always_inline int on_dial(struct bpf_sk_lookup *ctx, __u32 netns_index,
				   const struct up_endpoint *client,
				   const struct up_endpoint *dialled)
{
	struct up_incoming_dial dial = { .client = *client, .dialled = *dialled, .netns_index = netns_index };
	struct up_endpoint *database = bpf_map_lookup_elem(&incoming_dials, &dial);

	if (!database)
		return on_stray(ctx, netns_index, client);
	return select_database(ctx, netns_index, database, 0) ? SK_PASS : refuse(ctx);
}

/* Denies a connection of a client that has as many as it may. `database_unmetered`: nobody would see this one. */
static __always_inline void limit_incoming(struct bpf_sk_lookup *ctx, __u32 netns_index,
					   const struct up_agent_settings *s,
					   const struct up_endpoint *client,
					   const struct up_endpoint *dst, struct decision *d)
{
	__u32 index = 2 * netns_index + (dst->family == 6);
	int seen;

	if (d->action == UP_ACTION_ENRICH) {
		seen = is_seen(bpf_map_lookup_elem(&incoming_listeners, &index), s->cgroup_id);
	} else {
		seen = select_database(ctx, netns_index, dst, s->cgroup_id) == 1;
		bpf_sk_assign(ctx, NULL, BPF_SK_LOOKUP_F_REPLACE);
	}
	if (seen)
		limit_address(d, client);
}

static __always_inline int on_decided(struct bpf_sk_lookup *ctx, __u32 netns_index,
				      const struct up_agent_settings *s, const struct up_endpoint *client,
				      const struct up_endpoint *dst, struct decision *d)
{
	__u32 cause = UP_CAUSES;

	if (d->limited_elsewhere)
		limit_incoming(ctx, netns_index, s, client, dst, d);
	if (d->action == UP_ACTION_BYPASS) {
		count_outcome(d, UP_OUTCOME_UNTOUCHED);
		return leave_alone();
	}
	if (d->action == UP_ACTION_OBSERVE) {
		count_outcome(d, UP_OUTCOME_UNTOUCHED);
		if (s->unmetered) {
			count_cause(UP_CAUSE_OBSERVE_OFF);
			return leave_alone();
		}
		if (d->limited_elsewhere)
			return leave_alone();
		/* Selected for a moment: only so is it known which one it is. */
		select_database(ctx, netns_index, dst, s->cgroup_id);
		bpf_sk_assign(ctx, NULL, BPF_SK_LOOKUP_F_REPLACE);
		return leave_alone();
	}
	if (d->action == UP_ACTION_DENY) {
		count_outcome(d, UP_OUTCOME_DENIED);
		return deny_incoming(ctx, client, dst, d, d->refused_for);
	}
	if (s->full)
		cause = UP_CAUSE_AGENT_FULL;
	/* Selected for a moment: only so is it known whether it would take the connection. */
	else if (!select_database(ctx, netns_index, dst, 0))
		cause = UP_CAUSE_DATABASE_AWAY;
	else if (!select_agent(ctx, netns_index, dst->family))
		cause = UP_CAUSE_AGENT_AWAY;
	if (cause == UP_CAUSES) {
		count_outcome(d, UP_OUTCOME_INTERCEPTED);
		return SK_PASS;
	}
	count_cause(cause);
	if (d->fail == UP_FAIL_CLOSED) {
		count_outcome(d, UP_OUTCOME_FAILED_CLOSED);
		return deny_incoming(ctx, client, dst, d, cause);
	}
	count_outcome(d, UP_OUTCOME_FAILED_OPEN);
	return leave_alone();
}

static __always_inline int on_incoming(struct bpf_sk_lookup *ctx, __u32 netns_index)
{
	struct up_endpoint client, dst;
	struct decision d = {};
	struct up_agent_settings *s;
	__u32 zero = 0, *taken;

	if (!ends_of(ctx, &client, &dst))
		return leave_alone();
	/* What is sent to an address of its own host crosses the loopback, but is shown as if it had come
	 * in where that address is. */
	if (ctx->ingress_ifindex == LOOPBACK || is_own(netns_index, &client, &dst))
		return on_dial(ctx, netns_index, &client, &dst);
	/* virtual.h decides. */
	taken = bpf_map_lookup_elem(&taken_addresses, &dst);
	if (taken && *taken == netns_index + 1)
		return leave_alone();
	s = bpf_map_lookup_elem(&settings, &zero);
	if (!s || !decide_elsewhere(s, &client, &dst, &d))
		return leave_alone();
	if (d.drawn_out)
		d.action = UP_ACTION_BYPASS;
	return on_decided(ctx, netns_index, s, &client, &dst, &d);
}

/* One for each namespace: nothing in its context tells a program where it runs. */
#define INCOMING(n)                                                                                 \
	SEC("sk_lookup")                                                                           \
	int incoming_##n(struct bpf_sk_lookup *ctx)                                                \
	{                                                                                          \
		return on_incoming(ctx, n);                                                        \
	}
INCOMING(0)
INCOMING(1)
INCOMING(2)
INCOMING(3)
INCOMING(4)
INCOMING(5)
INCOMING(6)
INCOMING(7)
_Static_assert(UP_MAX_INCOMING == 8, "a program for each namespace");

/* For each TCP socket of the namespace that the agent has this run in, locked: those that listen come
 * first, and the walk ends, in EAGAIN, at the first that does not. */
SEC("iter/tcp")
int find_databases(struct bpf_iter__tcp *ctx)
{
	struct sock_common *sk = ctx->sk_common;
	struct up_database_key key = {};
	__u32 port, *netns_index;

	if (!sk)
		return 0;
	if (sk->skc_state != BPF_TCP_LISTEN)
		return 1;
	port = sk->skc_num;
	if (!is_incoming_port(port))
		return 0;
	netns_index = steered_netns(sk->skc_net.net->net_cookie);
	if (!netns_index)
		return 0;
	key.netns_index = *netns_index;
	local_end_of(&key.at, sk);
	bpf_map_update_elem(&databases, &key, sk, BPF_NOEXIST);
	return 0;
}
