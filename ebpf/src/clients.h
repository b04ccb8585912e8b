/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* How many connections each client of a rule with a limit has. */
#pragma once

#include "decide.h"

/* A connection of this client has ended; it may be told twice. */
static __always_inline void leave_client(struct client *of)
{
	struct client key = *of;
	__u64 *n;

	if (key.limit_id == UP_NOBODY)
		return;
	of->limit_id = UP_NOBODY;
	n = bpf_map_lookup_elem(&client_connections, &key);
	if (n && __sync_fetch_and_add(n, -1) <= 1)
		bpf_map_delete_elem(&client_connections, &key);
}

/* How many connections the client has; NULL when nobody can count them. */
static __always_inline __u64 *connections_of(const struct client *key)
{
	__u64 *n = bpf_map_lookup_elem(&client_connections, key);
	__u64 none = 0;

	if (n)
		return n;
	bpf_map_update_elem(&client_connections, key, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&client_connections, key);
}
