/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Which sockets are the databases that clients on other hosts connect to.
 *
 * A listening socket at a port that the policy names (incoming_ports), in a namespace whose incoming
 * connections are steered, is entered into a sockhash by its address: when it begins to listen, if it
 * does so beneath the agent's cgroup (socket_events.h), and else when the agent next has the iterator go
 * over the namespace's sockets. It leaves by closing. Of several at one address the first is entered,
 * and the next one when that has closed.
 */
#pragma once

#include "common.h"
#include "kernel.h"

/* The number of a namespace, or NULL if its incoming connections are not steered. */
static __always_inline __u32 *steered_netns(__u64 netns_cookie)
{
	return bpf_map_lookup_elem(&incoming_netns, &netns_cookie);
}

static __always_inline int is_incoming_port(__u32 port)
{
	__u32 any = 0;

	return bpf_map_lookup_elem(&incoming_ports, &port) ||
	       bpf_map_lookup_elem(&incoming_ports, &any);
}

/* Whether a connection is of this very host by its addresses. One from an address to itself is never from
 * elsewhere; that is how the agent dials on its own behalf. */
static __always_inline int is_own(__u32 netns_index, const struct up_endpoint *client,
				  const struct up_endpoint *dst)
{
	struct up_database_key key = { .at = *client, .netns_index = netns_index };

	if (!__builtin_memcmp(client->addr, dst->addr, sizeof(client->addr)))
		return 1;
	/* Of 127.0.0.0/8, which nobody else may send from, only the first may be assigned. */
	if (client->family == 4 && client->addr[12] == IN_LOOPBACKNET)
		return 1;
	key.at.port_be = 0;
	return bpf_map_lookup_elem(&own_addresses, &key) != NULL;
}

/* In listen(2). */
static __always_inline void enter_database(struct bpf_sock_ops *ops)
{
	struct up_database_key key = {};
	__u32 port = ops->local_port;
	__u32 *netns_index;

	if (!is_incoming_port(port))
		return;
	netns_index = steered_netns(bpf_get_netns_cookie(ops));
	if (!netns_index)
		return;
	key.netns_index = *netns_index;
	local_end(&key.at, ops);
	bpf_sock_hash_update(ops, &databases, &key, BPF_NOEXIST);
}
