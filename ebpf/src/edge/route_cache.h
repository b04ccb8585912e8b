/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The route cache: each processor remembers of the connections that it has just seen a copy of the
 * table's entry and the next hop, so that most packets need neither the table nor the host's routes.
 *
 * A cached route is good for an eighth of a second or so: then the table hears that the connection is used, and the
 * host's routes and neighbours are asked again. It ends before that when any entry whose tuple has
 * the same slot comes or goes, or the policy changes.
 */
#pragma once

#include "forward.h"

/* A tick of a cached route is 2^27 ns, and the table hears that often of a connection: a flood of new ones drives
 * out those that it has not heard of for longer. Slots have their ticks at different times. */
#define TICK_SHIFT 27
#define SLOT_SHIFT 12

static __always_inline __u32 slot_of(const struct up_edge_tuple *tuple)
{
	__u64 words[4], hash;

	__builtin_memcpy(words, tuple->src, 16);
	__builtin_memcpy(words + 2, tuple->dst, 16);
	hash = (words[0] ^ words[1]) * 0xff51afd7ed558ccdull;
	hash ^= (words[2] ^ words[3]) * 0xc4ceb9fe1a85ec53ull;
	hash ^= hash >> 32;
	hash ^= (__u32)tuple->sport_be << 16 | tuple->dport_be;
	hash *= 0x9e3779b97f4a7c15ull;
	return hash >> 40 & (UP_EDGE_ROUTES - 1);
}

/* To be called after an entry of this tuple has come or gone. */
static __always_inline void note_change(const struct up_edge_tuple *tuple)
{
	__u32 slot = slot_of(tuple), *changes = bpf_map_lookup_elem(&edge_changes, &slot);

	if (changes)
		__sync_fetch_and_add(changes, 1);
}

/* A tuple's slot in the cache, and the marks of a route that is entered there now. */
struct cached_route {
	struct up_edge_route *entry;
	__u32 changes;
	__u64 tick;
};

/* To be called before the table is asked, so that a change after that outdates the route. */
static __always_inline void find_cached(const struct up_edge_tuple *tuple, struct cached_route *cached)
{
	__u32 slot = slot_of(tuple), index = bpf_get_smp_processor_id() * UP_EDGE_ROUTES + slot;
	__u32 *changes = bpf_map_lookup_elem(&edge_changes, &slot);

	cached->entry = changes ? bpf_map_lookup_elem(&edge_routes, &index) : 0;
	cached->changes = changes ? *(volatile __u32 *)changes : 0;
	cached->tick = (bpf_ktime_get_coarse_ns() + ((__u64)slot << SLOT_SHIFT)) >> TICK_SHIFT;
}

static __always_inline int is_same_tuple(const struct up_edge_tuple *a,
					 const struct up_edge_tuple *b)
{
	const __u32 *x = (const __u32 *)a, *y = (const __u32 *)b;
	__u32 other = 0;

	for (int i = 0; i < 9; i++)
		other |= x[i] ^ y[i];
	return !other;
}

/* Whether the cached route is this packet's. What ends a connection is for its entry to know. */
static __always_inline int is_known(const struct up_edge_settings *settings,
				    const struct packet *p, const struct cached_route *cached)
{
	const struct up_edge_route *entry = cached->entry;

	return entry && entry->tick == cached->tick && entry->changes == cached->changes &&
	       entry->flow.generation == settings->generation && !p->oddity &&
	       !(p->flags & (FLAG_FIN | FLAG_SYN | FLAG_RST)) &&
	       is_same_tuple(&entry->tuple, &p->tuple);
}

/* Returns where the next hop is to be remembered. */
static __always_inline struct up_edge_hop *remember(const struct up_edge_settings *settings,
						    const struct packet *p,
						    const struct up_edge_flow *flow,
						    const struct cached_route *cached)
{
	struct up_edge_route *entry = cached->entry;

	if (!entry)
		return 0;
	entry->tuple = p->tuple;
	entry->changes = cached->changes;
	entry->tick = cached->tick;
	entry->flow = *flow;
	/* A reply's entry does not say. */
	entry->flow.generation = settings->generation;
	entry->hop.ifindex = 0;
	return &entry->hop;
}
