/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * How fast one source may open connections: a token bucket, kept as the time at which the next SYN
 * would be due. A SYN moves that on by an interval; a source that is more than its burst ahead of
 * the clock waits.
 */
#pragma once

#include "parse.h"

/* Two processors at once: one of them tries again. */
#define RATE_TRIES 4

static __always_inline void source_of(const struct packet *p, struct up_edge_source *source)
{
	__builtin_memcpy(source->addr, p->tuple.src, 16);
	/* One host has a whole /64 of IPv6's addresses to send from. */
	if (p->is_ipv6)
		__builtin_memset(&source->addr[8], 0, 8);
}

static __always_inline int is_too_fast(const struct up_edge_interface *interface,
				       const struct packet *p)
{
	__u64 now = bpf_ktime_get_ns(), next;
	struct up_edge_source source;
	__u64 *due;

	source_of(p, &source);
	due = bpf_map_lookup_elem(&edge_syns, &source);
	if (!due) {
		next = now + interface->syn_interval_ns;
		bpf_map_update_elem(&edge_syns, &source, &next, BPF_ANY);
		return 0;
	}
	for (int i = 0; i < RATE_TRIES; i++) {
		__u64 before = *(volatile __u64 *)due;

		next = (before > now ? before : now) + interface->syn_interval_ns;
		if (next > now + interface->syn_burst_ns)
			return 1;
		if (__sync_val_compare_and_swap(due, before, next) == before)
			return 0;
	}
	return 1;
}
