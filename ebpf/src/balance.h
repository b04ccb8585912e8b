/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * connect() to a virtual address becomes one to a backend, here, before a source address is chosen:
 * no packet is ever rewritten, and no agent is needed.
 *
 * A connection draws a slot at random. The agent fills backend_slots by its backends' health and weight;
 * when it is dead they stand as it left them. The address that was dialled is kept with the socket,
 * for getpeername().
 */
#pragma once

#include "decide.h"

/* The backend for a new connection, or 0 when none takes any. */
static __always_inline const struct up_endpoint *draw(const struct decision *d)
{
	__u32 rule = d->generation * UP_MAX_BALANCED + d->balanced - 1;
	struct up_backend_slots *slots = bpf_map_lookup_elem(&backend_slots, &rule);
	__u64 *count;
	__u32 index;
	__u8 backend;

	if (!slots)
		return 0;
	backend = slots->backends[bpf_get_prandom_u32() & (UP_BACKEND_SLOTS - 1)];
	if (backend >= UP_MAX_BACKENDS)
		return 0;
	index = rule * UP_MAX_BACKENDS + backend;
	count = bpf_map_lookup_elem(&balanced, &index);
	if (count)
		__sync_fetch_and_add(count, 1);
	return bpf_map_lookup_elem(&backends, &index);
}

/* Whether any backend takes new connections: all slots have one, or none has. */
static __always_inline int has_backend(const struct decision *d)
{
	__u32 rule = d->generation * UP_MAX_BALANCED + d->balanced - 1;
	struct up_backend_slots *slots = bpf_map_lookup_elem(&backend_slots, &rule);

	return slots && slots->backends[0] != UP_NO_BACKEND;
}

/* Without the memory for it the application is told the backend's own address: a connection is
 * worth more than its name. */
static __always_inline void keep_virtual(struct bpf_sock *sk, const struct up_endpoint *dst)
{
	struct up_endpoint *kept =
		bpf_sk_storage_get(&virtuals, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (kept)
		*kept = *dst;
	else
		count_cause(UP_CAUSE_NO_MEMORY);
}
