/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * cgroup/sock_release, and what the connect hooks ask of it: how many connections one client has by a rule with a
 * limit.
 *
 * Fires when an application closes a socket, or ends. A socket counts from its connect(), whatever becomes of that. Attached
 * when a policy with a limit comes, and pinned: the count goes on while no agent is there. Whatever cannot be counted passes, and a
 * cause says so. Two sockets of a client, of which one closes and is its last while the other connects, may count as
 * one too few, until the client has none. Of clients on other hosts: limit_incoming.h. Reads and writes client_connections,
 * counted.
 */
#pragma once

#include "clients.h"


/* Counts this connection, which is denied if its client has as many as it may. Not inlined: the hooks' stack is full. */
static __noinline int limit_client(struct bpf_sock *sk, struct decision *d)
{
	__u32 index = d->generation * UP_MAX_RULES + d->slot;
	struct up_rule *rule = bpf_map_lookup_elem(&rules, &index);
	struct client key = {};
	struct client *of;
	__u64 *n;

	if (!rule)
		return 0;
	of = bpf_sk_storage_get(&counted, sk, 0, 0);
	/* It was connected before, in vain. */
	if (of) {
		leave_client(of);
		bpf_sk_storage_delete(&counted, sk);
	}
	key.limit_id = rule->limit_id;
	key.who[0] = rule->limit_by == UP_LIMIT_BY_PROCESS ? bpf_get_current_pid_tgid() >> 32 :
							     (__u32)bpf_get_current_uid_gid();
	n = connections_of(&key);
	if (!n) {
		count_cause(UP_CAUSE_CLIENTS_FULL);
		return 0;
	}
	if (__sync_fetch_and_add(n, 1) >= rule->limit) {
		__sync_fetch_and_add(n, -1);
		count_cause(UP_CAUSE_CLIENT_LIMIT);
		d->action = UP_ACTION_DENY;
		d->refused_for = UP_CAUSE_CLIENT_LIMIT;
		return 0;
	}
	of = bpf_sk_storage_get(&counted, sk, &key, BPF_SK_STORAGE_GET_F_CREATE);
	if (!of) {
		__sync_fetch_and_add(n, -1);
		count_cause(UP_CAUSE_NO_MEMORY);
	}
	return 0;
}

SEC("cgroup/sock_release")
int on_release(struct bpf_sock *ctx)
{
	struct client *of = bpf_sk_storage_get(&counted, ctx, 0, 0);

	if (of)
		leave_client(of);
	return 1;
}
