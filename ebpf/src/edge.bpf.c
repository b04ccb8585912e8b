/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The edge: what arrives on an interface, before the stack sees it (XDP).
 *
 * Asks the rules that speak of connections from elsewhere (those that name `from` or `to`) of each
 * TCP packet that opens a connection, and drops what they deny, or what opens connections faster
 * than its source may. Of a port that a denying rule names, all packets are asked about, so that
 * established connections of a denied client end, too; where such a rule names no port, only SYNs
 * are, because the answers to this host's own connections would look the same.
 *
 * A connection to a virtual address whose rule needs no agent goes on to one of its backends, in
 * both directions, by its entry in edge_flows (edge/connections.h), or by what this processor
 * remembers of that (edge/route_cache.h).
 *
 * Reads the maps of edge/maps.h that the agent writes; writes counters, the sources' due times, the
 * table of connections and the ways.
 * Needs no agent: program and maps are pinned. Whatever is malformed or unknown passes: only policy
 * drops. Every packet is counted once, in edge_packets.
 */
#include "edge/icmp.h"
#include "edge/rate.h"
#include "edge/too_big.h"

/* A packet that may open a connection. */
static __always_inline int opening(struct xdp_md *ctx, const struct up_edge_settings *settings,
				   struct packet *p)
{
	__u32 ifindex = ctx->ingress_ifindex;
	struct up_edge_interface *interface;
	struct match match;

	if (!first_match(settings, p, &match))
		return dispose(UP_EDGE_OTHER, XDP_PASS);
	if (match.rule->action == UP_ACTION_DENY) {
		count_outcome(&match, UP_EDGE_OUTCOME_DENIED);
		return dispose(UP_EDGE_DENIED, XDP_DROP);
	}
	interface = bpf_map_lookup_elem(&edge_interfaces, &ifindex);
	if (interface && interface->syn_interval_ns && is_too_fast(interface, p)) {
		count_outcome(&match, UP_EDGE_OUTCOME_LIMITED);
		return dispose(UP_EDGE_LIMITED, XDP_DROP);
	}
	if (match.rule->forwards && interface && interface->forward)
		return open(ctx, settings, p, &match, interface->forward);
	if (settings->forwards)
		leave_to_the_stack(p);
	count_outcome(&match, UP_EDGE_OUTCOME_ALLOWED);
	return dispose(UP_EDGE_ALLOWED, XDP_PASS);
}

/* A packet of a connection that is open, or of none. */
static __always_inline int following(const struct up_edge_settings *settings, struct packet *p)
{
	struct up_edge_port *port = port_of(settings, p->tuple.dport_be);
	struct match match;

	if (port && port->strict && first_match(settings, p, &match) &&
	    match.rule->action == UP_ACTION_DENY && match.rule->strict) {
		count_outcome(&match, UP_EDGE_OUTCOME_DENIED);
		return dispose(UP_EDGE_DENIED, XDP_DROP);
	}
	return dispose(UP_EDGE_OTHER, XDP_PASS);
}

/* An XDP action; a negative one is the largest packet that its route takes. */
static __always_inline int decide(struct xdp_md *ctx, struct packet *p)
{
	struct up_edge_settings *settings;
	struct up_edge_flow *flow;
	struct cached_route cached;
	__u32 only = 0;
	int kind;

	settings = bpf_map_lookup_elem(&edge_settings, &only);
	kind = parse(ctx, p);
	if (!settings || kind == KIND_OTHER)
		return dispose(UP_EDGE_OTHER, XDP_PASS);
	if (kind == KIND_ICMP) {
		if (!settings->forwards)
			return dispose(UP_EDGE_OTHER, XDP_PASS);
		return p->is_ipv6 ? error6(ctx) : error4(ctx);
	}
	if (p->opens)
		return opening(ctx, settings, p);
	if (settings->forwards) {
		find_cached(&p->tuple, &cached);
		if (is_known(settings, p, &cached))
			return forward(ctx, p, &cached.entry->flow, &cached.entry->hop);
		flow = find_flow(ctx, settings, p);
		if (flow)
			return go_on(ctx, settings, p, flow, &cached);
	}
	return following(settings, p);
}

SEC("xdp.frags")
int edge(struct xdp_md *ctx)
{
	struct packet p = {};
	int action = decide(ctx, &p);

	return action < 0 ? tell_too_big(ctx, &p, -action) : action;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
