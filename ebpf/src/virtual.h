/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * sk_lookup on a gateway: connections from other hosts to a virtual address that the agent has to
 * see, because a rule wants them enriched or asks for their session.
 *
 * Fires as incoming.h's programs do. Nobody listens at a virtual address, so there is no database
 * to ask for: the agent takes a connection while some backend behind the address takes new ones. It
 * takes all that come to such an address, also those that the edge forwards, when one of them could
 * not be: they are relayed.
 *
 * Reads settings, policies, rules, targets, sources, backend_slots, taken_addresses, taken_listeners. Writes
 * decisions, causes, denials. Where the agent cannot take a connection it is refused, whatever the rule's
 * `fail`: there is no database here that it could go to.
 */
#pragma once

#include "balance.h"
#include "limit_incoming.h"
#include "steer.h"

static __always_inline int on_virtual(struct bpf_sk_lookup *ctx, const struct up_agent_settings *s,
				      const struct up_endpoint *client, const struct up_endpoint *dst,
				      struct decision *d)
{
	__u32 cause = UP_CAUSES, index = dst->family == 6;

	if (d->limited_elsewhere &&
	    is_seen(bpf_map_lookup_elem(&taken_listeners, &index), s->cgroup_id))
		limit_address(d, client);
	if (d->action == UP_ACTION_DENY) {
		count_outcome(d, UP_OUTCOME_DENIED);
		return deny_incoming(ctx, client, dst, d, d->refused_for);
	}
	if (s->full)
		cause = UP_CAUSE_AGENT_FULL;
	else if (!d->balanced || !has_backend(d))
		cause = UP_CAUSE_NO_BACKEND;
	else if (!select_listener(ctx, bpf_map_lookup_elem(&taken_listeners, &index)))
		cause = UP_CAUSE_AGENT_AWAY;
	if (cause == UP_CAUSES) {
		count_outcome(d, UP_OUTCOME_INTERCEPTED);
		return SK_PASS;
	}
	count_cause(cause);
	count_outcome(d, UP_OUTCOME_FAILED_CLOSED);
	return deny_incoming(ctx, client, dst, d, cause);
}

SEC("sk_lookup")
int virtual_addresses(struct bpf_sk_lookup *ctx)
{
	struct up_endpoint client, dst;
	struct decision d = {};
	struct up_agent_settings *s;
	__u32 zero = 0;

	/* This host's own were decided by connect.h. */
	if (ctx->ingress_ifindex == LOOPBACK || !ends_of(ctx, &client, &dst) ||
	    !bpf_map_lookup_elem(&taken_addresses, &dst))
		return leave_alone();
	s = bpf_map_lookup_elem(&settings, &zero);
	if (!s || !decide_elsewhere(s, &client, &dst, &d))
		return leave_alone();
	/* Only the agent knows the way from here, also of a flow that is drawn out. */
	return on_virtual(ctx, s, &client, &dst, &d);
}
