/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Denials: what the agent is told of connections that are refused here, so that an operator sees who was
 * refused and why.
 *
 * So many in a second, by processor: who is refused decides how often, and each one wakes the agent. All are counted
 * in `decisions` and `causes`. Writes denials, denial_turns.
 */
#pragma once

#include "decide.h"

/* A record to be completed and submitted; NULL when this one is only counted. `cause`: UP_CAUSES if the rule
 * denies. */
static __always_inline struct up_denial *begin_denial(const struct decision *d, __u32 cause,
						      const struct up_endpoint *dst)
{
	__u32 zero = 0;
	struct up_denial_turn *turn = bpf_map_lookup_elem(&denial_turns, &zero);
	__u64 now = bpf_ktime_get_ns();
	struct up_denial *denial;

	if (!turn)
		return 0;
	if (now - turn->begun_ns >= UP_DENIAL_PERIOD_NS) {
		turn->begun_ns = now;
		turn->told = 0;
	}
	denial = turn->told < UP_DENIALS_TOLD ? bpf_ringbuf_reserve(&denials, sizeof(*denial), 0) : 0;
	if (!denial) {
		turn->untold += 1;
		return 0;
	}
	__builtin_memset(denial, 0, sizeof(*denial));
	denial->opener.orig_dst = *dst;
	denial->slot = d->slot;
	denial->generation = d->generation;
	denial->cause = cause;
	denial->untold = turn->untold;
	turn->told += 1;
	turn->untold = 0;
	return denial;
}
