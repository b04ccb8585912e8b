/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The table of forwarded connections. Each has an entry for the packets of its client, which
 * says what they become; one that is rewritten has another for its backend's, which says the
 * reverse. An entry dies when it was not used for longest, or when its tuple or port is wanted again
 * and the connection has ended or was never answered.
 */
#pragma once

#include "filter.h"
#include "reset.h"
#include "route_cache.h"

#define NS_PER_S 1000000000ull
#define EEXIST 17

static __always_inline __u64 mix(__u64 word)
{
	word ^= word >> 33;
	word *= 0xff51afd7ed558ccdull;
	word ^= word >> 33;
	word *= 0xc4ceb9fe1a85ec53ull;
	return word ^ word >> 33;
}

/* As maglev.rs has it. */
static __always_inline __u64 hash_of(const struct up_edge_tuple *tuple)
{
	__be64 words[4];
	__u64 hash = 0;

	__builtin_memcpy(words, tuple->src, 16);
	__builtin_memcpy(words + 2, tuple->dst, 16);
	for (int i = 0; i < 4; i++)
		hash = mix(hash ^ bpf_be64_to_cpu(words[i]));
	return mix(hash ^ ((__u32)bpf_ntohs(tuple->sport_be) << 16 | bpf_ntohs(tuple->dport_be)));
}

static __always_inline struct up_edge_backend *choose(const struct up_edge_rule *rule, __u64 hash)
{
	struct up_edge_turns *turns;
	__u32 table = rule->table, turn, index;

	turns = bpf_map_lookup_elem(&edge_turns, &table);
	if (!turns)
		return 0;
	turn = (hash >> 32) * UP_EDGE_TURNS >> 32;
	index = turns->backend[turn & (UP_EDGE_TURN_BYTES - 1)];
	if (index >= UP_MAX_BACKENDS)
		return 0;
	index += table * UP_MAX_BACKENDS;
	return bpf_map_lookup_elem(&edge_backends, &index);
}

/* The tuple of the packets that come the other way. */
static __always_inline void reversed(const struct up_edge_tuple *tuple, struct up_edge_tuple *into)
{
	__builtin_memcpy(into->src, tuple->dst, 16);
	__builtin_memcpy(into->dst, tuple->src, 16);
	into->sport_be = tuple->dport_be;
	into->dport_be = tuple->sport_be;
}

static __always_inline int is_same(const __u8 a[16], const __u8 b[16])
{
	const __u64 *x = (const __u64 *)a, *y = (const __u64 *)b;

	return x[0] == y[0] && x[1] == y[1];
}

static __always_inline int has_ended(const struct up_edge_flow *request)
{
	if (request->direction == UP_EDGE_DIRECT)
		return request->ended;
	return request->ended & (UP_EDGE_ENDED_BY_RESET | UP_EDGE_ENDED_BY_AGENT) ||
	       request->ended == (UP_EDGE_ENDED_BY_CLIENT | UP_EDGE_ENDED_BY_BACKEND);
}

/* Whether a reply's entry, and with it a port of the gateway's, may go to another connection. If
 * so, its request's is removed. */
VERIFIED_ONCE int give_up(const struct up_edge_tuple *reply_key)
{
	struct up_edge_tuple request_key, key;
	struct up_edge_flow *reply, *request;

	if (!reply_key)
		return 0;
	__builtin_memcpy(&key, reply_key, sizeof(key));
	reply = bpf_map_lookup_elem(&edge_flows, &key);
	if (!reply)
		return 1;
	if (reply->direction != UP_EDGE_REPLY)
		return 0;
	reversed(&reply->to, &request_key);
	request = bpf_map_lookup_elem(&edge_flows, &request_key);
	/* None, or one that the same client has opened since, by another port. */
	if (!request || request->to.sport_be != key.dport_be ||
	    !is_same(request->to.dst, key.src))
		return 1;
	if (!has_ended(request) &&
	    (request->answered ||
	     (__u32)(bpf_ktime_get_ns() / NS_PER_S) - request->opened_s < UP_EDGE_UNANSWERED_S))
		return 0;
	bpf_map_delete_elem(&edge_flows, &request_key);
	note_change(&request_key);
	return 1;
}

/* An entry that has not been looked up yet is the first to give way, before older ones that have. */
static __always_inline void note_use(const struct up_edge_tuple *tuple)
{
	bpf_map_lookup_elem(&edge_flows, tuple);
}

/* Enters the reply's entry under a port of the gateway's that is free. Returns why not, or
 * UP_EDGE_OTHER. */
static __always_inline __u32 take_port(const struct up_edge_settings *settings,
				       struct up_edge_scratch *scratch, __u64 hash)
{
	__u32 offset;

	if (!settings->ports)
		return UP_EDGE_NO_PORT;
	offset = (hash & 0xffff) * settings->ports >> 16;
	for (int i = 0; i < UP_EDGE_PORT_TRIES; i++) {
		__u16 port = settings->first_port + offset;
		long error;

		scratch->reply_key.dport_be = bpf_htons(port);
		error = bpf_map_update_elem(&edge_flows, &scratch->reply_key, &scratch->reply,
					    BPF_NOEXIST);
		if (error == -EEXIST && give_up(&scratch->reply_key))
			error = bpf_map_update_elem(&edge_flows, &scratch->reply_key,
						    &scratch->reply, BPF_ANY);
		if (!error) {
			note_use(&scratch->reply_key);
			note_change(&scratch->reply_key);
			scratch->request.to.sport_be = scratch->reply_key.dport_be;
			return UP_EDGE_OTHER;
		}
		if (error != -EEXIST)
			return UP_EDGE_TABLE_FULL;
		offset = (offset + UP_EDGE_PORT_STEP) % settings->ports;
	}
	return UP_EDGE_NO_PORT;
}

/* Enters a connection to `backend`, whose entry is in `scratch->request` then. Returns why not, or
 * UP_EDGE_OTHER. */
static __always_inline __u32 enter(struct xdp_md *ctx, const struct up_edge_settings *settings,
				   struct packet *p, const struct up_edge_backend *backend,
				   __u8 how, __u64 hash, struct up_edge_scratch *scratch)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct up_edge_flow *request = &scratch->request, *reply = &scratch->reply;
	__u32 why;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return UP_EDGE_MALFORMED;
	__builtin_memset(request, 0, sizeof(*request));
	__builtin_memset(reply, 0, sizeof(*reply));
	__builtin_memcpy(request->to.dst, backend->addr, 16);
	request->to.dport_be = backend->port_be;
	request->generation = settings->generation;
	request->opened_s = bpf_ktime_get_ns() / NS_PER_S;
	request->direction = UP_EDGE_DIRECT;
	if (how == UP_EDGE_FORWARD_SNAT) {
		if (!backend->has_source)
			return UP_EDGE_NO_ROUTE;
		request->direction = UP_EDGE_REQUEST;
		__builtin_memcpy(request->to.src, backend->source, 16);
		reply->direction = UP_EDGE_REPLY;
		reversed(&p->tuple, &reply->to);
		__builtin_memcpy(reply->mac, eth->h_source, ETH_ALEN);
		__builtin_memcpy(reply->own_mac, eth->h_dest, ETH_ALEN);
		reply->ifindex = ctx->ingress_ifindex;
		reversed(&request->to, &scratch->reply_key);
		why = take_port(settings, scratch, hash);
		if (why)
			return why;
	}
	if (!bpf_map_update_elem(&edge_flows, &p->tuple, request, BPF_ANY)) {
		note_use(&p->tuple);
		note_change(&p->tuple);
		return UP_EDGE_OTHER;
	}
	if (how == UP_EDGE_FORWARD_SNAT) {
		bpf_map_delete_elem(&edge_flows, &scratch->reply_key);
		note_change(&scratch->reply_key);
	}
	return UP_EDGE_TABLE_FULL;
}

static __always_inline int is_established(const struct up_edge_flow *flow)
{
	return flow && flow->answered && !has_ended(flow);
}

/* The stack gets a SYN: an entry of an earlier connection is not to catch what comes behind it. */
static __always_inline void leave_to_the_stack(const struct packet *p)
{
	struct up_edge_flow *flow = bpf_map_lookup_elem(&edge_flows, &p->tuple);

	if (!flow || is_established(flow))
		return;
	bpf_map_delete_elem(&edge_flows, &p->tuple);
	note_change(&p->tuple);
}

static __always_inline int pass_up(const struct packet *p, const struct match *match, __u32 verdict)
{
	leave_to_the_stack(p);
	count_outcome(match, UP_EDGE_OUTCOME_PASSED_UP);
	return dispose(verdict, XDP_PASS);
}

/* A SYN to a virtual address. */
static __always_inline int open(struct xdp_md *ctx, const struct up_edge_settings *settings,
				struct packet *p, const struct match *match, __u8 how)
{
	struct up_edge_scratch *scratch = scratch_of_this_cpu();
	struct up_edge_backend *backend;
	struct up_edge_flow *flow;
	__u64 hash;
	__u32 why;

	if (p->oddity)
		return pass_up(p, match, p->oddity);
	flow = bpf_map_lookup_elem(&edge_flows, &p->tuple);
	if (is_established(flow))
		return forward(ctx, p, flow, 0);
	hash = hash_of(&p->tuple);
	backend = choose(match->rule, hash);
	if (!backend)
		return pass_up(p, match, UP_EDGE_NO_BACKEND);
	if (!scratch)
		return pass_up(p, match, UP_EDGE_TABLE_FULL);
	if (flow && flow->to.dport_be == backend->port_be &&
	    is_same(flow->to.dst, backend->addr)) {
		/* Sent again; or a new one from where one has ended, which may go the same way. */
		if (flow->ended)
			count_outcome(match, UP_EDGE_OUTCOME_FORWARDED);
		flow->ended = 0;
		flow->answered = 0;
		note_change(&p->tuple);
		return forward(ctx, p, flow, 0);
	}
	if (flow) {
		reversed(&flow->to, &scratch->reply_key);
		bpf_map_delete_elem(&edge_flows, &scratch->reply_key);
		bpf_map_delete_elem(&edge_flows, &p->tuple);
		note_change(&scratch->reply_key);
		note_change(&p->tuple);
	}
	why = enter(ctx, settings, p, backend, how, hash, scratch);
	if (why)
		return pass_up(p, match, why);
	count_outcome(match, UP_EDGE_OUTCOME_FORWARDED);
	return forward(ctx, p, &scratch->request, 0);
}

/* The table knows entries, not connections: it may have let go of one half of a rewritten one. Here the
 * other half is heard of as used, or made again from this one. False: there is no such connection any
 * more, because another one has got its port. */
VERIFIED_ONCE int has_other_half(struct xdp_md *ctx, const struct packet *p,
			 const struct up_edge_flow *half, __u32 generation)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct up_edge_tuple key, back;
	struct up_edge_flow made = {};
	struct up_edge_flow *other;

	if (!p || !half || (void *)(eth + 1) > (void *)(long)ctx->data_end)
		return 0;
	if (half->direction == UP_EDGE_DIRECT)
		return 1;
	reversed(&half->to, &key);
	reversed(&p->tuple, &back);
	other = bpf_map_lookup_elem(&edge_flows, &key);
	if (other)
		return half->direction == UP_EDGE_REPLY || is_same_tuple(&other->to, &back);
	made.to = back;
	if (half->direction == UP_EDGE_REQUEST) {
		made.direction = UP_EDGE_REPLY;
		__builtin_memcpy(made.mac, eth->h_source, ETH_ALEN);
		__builtin_memcpy(made.own_mac, eth->h_dest, ETH_ALEN);
		made.ifindex = ctx->ingress_ifindex;
	} else {
		made.direction = UP_EDGE_REQUEST;
		/* The policy has not been asked about it. */
		made.generation = generation - 1;
		made.opened_s = bpf_ktime_get_ns() / NS_PER_S;
		made.answered = 1;
	}
	bpf_map_update_elem(&edge_flows, &key, &made, BPF_NOEXIST);
	note_change(&key);
	return 1;
}

/* The entry of a packet; NULL: there is none. */
static __always_inline struct up_edge_flow *find_flow(struct xdp_md *ctx,
						      const struct up_edge_settings *settings,
						      const struct packet *p)
{
	struct up_edge_flow *flow = bpf_map_lookup_elem(&edge_flows, &p->tuple);

	if (!flow || has_other_half(ctx, p, flow, settings->generation))
		return flow;
	bpf_map_delete_elem(&edge_flows, &p->tuple);
	note_change(&p->tuple);
	return 0;
}

/* FIN and RST, noted where the next SYN looks: at the request's entry. */
static __always_inline void note_end(const struct packet *p, struct up_edge_flow *flow)
{
	struct up_edge_tuple key;
	__u8 by = UP_EDGE_ENDED_BY_CLIENT;

	if (flow->direction == UP_EDGE_REPLY) {
		reversed(&flow->to, &key);
		flow = bpf_map_lookup_elem(&edge_flows, &key);
		if (!flow)
			return;
		by = UP_EDGE_ENDED_BY_BACKEND;
	}
	flow->ended |= p->flags & FLAG_RST ? UP_EDGE_ENDED_BY_RESET : by;
}

/* A packet of a connection in the table. */
static __always_inline int go_on(struct xdp_md *ctx, const struct up_edge_settings *settings,
				 struct packet *p, struct up_edge_flow *flow,
				 const struct cached_route *cached)
{
	struct up_edge_tuple back;
	struct match match;

	if (flow->direction != UP_EDGE_REPLY) {
		if (flow->generation != settings->generation) {
			if (first_match(settings, p, &match) &&
			    match.rule->action == UP_ACTION_DENY) {
				count_outcome(&match, UP_EDGE_OUTCOME_DENIED);
				return dispose(UP_EDGE_DENIED, XDP_DROP);
			}
			flow->generation = settings->generation;
		}
		if (!flow->answered)
			flow->answered = 1;
	}
	if (p->oddity)
		return refuse(flow, p->oddity);
	if (flow->ended & UP_EDGE_ENDED_BY_AGENT) {
		reversed(&p->tuple, &back);
		return answer_with_reset(ctx, p, &back);
	}
	if (p->flags & (FLAG_FIN | FLAG_RST))
		note_end(p, flow);
	return forward(ctx, p, flow, remember(settings, p, flow, cached));
}
