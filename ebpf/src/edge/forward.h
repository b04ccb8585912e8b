/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * A packet of a forwarded connection, on its way: by the host's own routes and neighbours, with
 * the addresses and ports that its entry says.
 *
 * Whatever cannot be done is found out before a byte is changed, so that what passes up is what
 * arrived.
 */
#pragma once

#include "count.h"
#include "nat.h"

#define AF_INET 2
#define AF_INET6 10

/* Asks the host's routes and neighbours. UP_EDGE_OTHER: `hop` is the next one. UP_EDGE_TOO_BIG:
 * `hop->most` is what it takes, or 0: the kernel does not say, which is older than 5.12. */
static __always_inline __u32 ask_hop(struct xdp_md *ctx, int is_ipv6, __u32 kind, __u16 bytes,
				     const struct up_edge_flow *flow, const __u8 src[16],
				     struct up_edge_hop *hop)
{
	struct bpf_fib_lookup fib = {};
	long answer;

	hop->ingress_ifindex = ctx->ingress_ifindex;
	hop->kind = kind;
	fib.l4_protocol = IPPROTO_TCP;
	fib.tot_len = bytes;
	fib.ifindex = ctx->ingress_ifindex;
	if (is_ipv6) {
		fib.family = AF_INET6;
		fib.flowinfo = kind;
		__builtin_memcpy(fib.ipv6_src, src, 16);
		__builtin_memcpy(fib.ipv6_dst, flow->to.dst, 16);
	} else {
		fib.family = AF_INET;
		fib.tos = kind;
		__builtin_memcpy(&fib.ipv4_src, src + 12, 4);
		__builtin_memcpy(&fib.ipv4_dst, &flow->to.dst[12], 4);
	}
	answer = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);
	if (answer == BPF_FIB_LKUP_RET_SUCCESS) {
		__builtin_memcpy(hop->to, fib.dmac, ETH_ALEN);
		__builtin_memcpy(hop->from, fib.smac, ETH_ALEN);
		hop->ifindex = fib.ifindex;
		/* One that is too wide for the field is 0 there. */
		hop->most = fib.mtu_result ? fib.mtu_result : 0xffff;
		return UP_EDGE_OTHER;
	}
	if (answer == BPF_FIB_LKUP_RET_FRAG_NEEDED) {
		hop->most = fib.mtu_result < bytes ? fib.mtu_result : 0;
		return UP_EDGE_TOO_BIG;
	}
	if (answer != BPF_FIB_LKUP_RET_NO_NEIGH)
		return UP_EDGE_NO_ROUTE;
	if (flow->direction != UP_EDGE_REPLY)
		return UP_EDGE_NO_NEIGHBOUR;
	/* The host's stack never speaks with the client, and may have forgotten it. */
	__builtin_memcpy(hop->to, flow->mac, ETH_ALEN);
	__builtin_memcpy(hop->from, flow->own_mac, ETH_ALEN);
	hop->ifindex = flow->ifindex;
	hop->most = bytes;
	return UP_EDGE_OTHER;
}

/* Finds the next hop as ask_hop does, but asks only when the route cache does not have it. */
static __always_inline __u32 find_hop(struct xdp_md *ctx, int is_ipv6, __u32 kind, __u16 bytes,
				      const struct up_edge_flow *flow, const __u8 src[16],
				      struct up_edge_hop *known, struct up_edge_hop *hop)
{
	__u32 why;

	if (known && known->ifindex && known->ingress_ifindex == ctx->ingress_ifindex &&
	    known->kind == kind && bytes <= known->most) {
		*hop = *known;
		return UP_EDGE_OTHER;
	}
	why = ask_hop(ctx, is_ipv6, kind, bytes, flow, src, hop);
	if (!why && known)
		*known = *hop;
	return why;
}

/* Whether the stack has sockets at a virtual address. */
static __always_inline int has_taken(void)
{
	__u32 only = 0;
	struct up_edge_settings *settings = bpf_map_lookup_elem(&edge_settings, &only);

	return settings && settings->schemes[settings->generation & 1].has_taken;
}

/* The stack can make something of what a client has sent, unless a virtual address is its own: then
 * it would answer with a reset. So it would what a backend has sent, for a port that only the table
 * knows. */
static __always_inline int refuse(const struct up_edge_flow *flow, __u32 verdict)
{
	if (flow->direction == UP_EDGE_REPLY || verdict == UP_EDGE_NO_NEIGHBOUR || has_taken())
		return dispose(verdict, XDP_DROP);
	return dispose(verdict, XDP_PASS);
}

/* The checksum of a segment of `bytes` that becomes `to`; -1: it cannot be had. */
static __always_inline __s64 new_check(struct xdp_md *ctx, const struct packet *p,
				       const struct up_edge_tuple *to, __u32 offset, __u32 bytes,
				       __u16 check, __u64 gain)
{
	__s64 sum;

	if (check != pseudo_header(&p->tuple, p->is_ipv6, bytes))
		return corrected(check, gain + change_of_ports(&p->tuple, to));
	if (runs_in_the_stack(ctx))
		return folded((__u64)check + gain);
	sum = sum_of_segment(ctx, offset, bytes);
	if (sum < 0)
		return -1;
	/* The field itself is to count as nothing. */
	return (__u16)~folded((__u64)sum + (__u16)~check + change_of_ports(&p->tuple, to) +
			      pseudo_header(to, p->is_ipv6, bytes));
}

/* A backend with the virtual address takes the packet as it is. */
static __always_inline const struct up_edge_tuple *becomes(const struct packet *p,
							   const struct up_edge_flow *flow)
{
	return flow->direction == UP_EDGE_DIRECT ? &p->tuple : &flow->to;
}

static __always_inline int go(struct ethhdr *eth, const struct up_edge_hop *hop,
			      const struct up_edge_flow *flow)
{
	__u32 verdict = flow->direction == UP_EDGE_REPLY ? UP_EDGE_TO_CLIENT : UP_EDGE_TO_BACKEND;

	__builtin_memcpy(eth->h_dest, hop->to, ETH_ALEN);
	__builtin_memcpy(eth->h_source, hop->from, ETH_ALEN);
	return dispose(verdict, bpf_redirect(hop->ifindex, 0));
}

VERIFIED_ONCE int forward4(struct xdp_md *ctx, const struct packet *p, const struct up_edge_flow *flow,
		   struct up_edge_hop *known)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct iphdr *ip = (void *)(eth + 1);
	struct tcphdr *tcp = (void *)(ip + 1);
	__u32 *words = (void *)ip;
	__u64 sum = 0, gain;
	struct up_edge_hop hop = {};
	__s64 check;
	__u32 why, bytes;
	const struct up_edge_tuple *to;
	__u16 old;

	if (!p || !flow)
		return XDP_PASS;
	to = becomes(p, flow);
	if ((void *)(tcp + 1) > (void *)(long)ctx->data_end)
		return refuse(flow, UP_EDGE_MALFORMED);
	for (int i = 0; i < 5; i++)
		sum += words[i];
	if (folded(sum) != 0xffff)
		return refuse(flow, UP_EDGE_MALFORMED);
	if (ip->ttl <= 1)
		return refuse(flow, UP_EDGE_TTL);
	bytes = bpf_ntohs(ip->tot_len);
	why = find_hop(ctx, 0, ip->tos, bytes, flow, to->src, known, &hop);
	if (why == UP_EDGE_TOO_BIG && hop.most)
		return -(int)hop.most;
	if (why)
		return refuse(flow, why);
	gain = change(p->tuple.src, to->src) + change(p->tuple.dst, to->dst);
	check = new_check(ctx, p, to, sizeof(*eth) + sizeof(*ip), bytes - sizeof(*ip), tcp->check,
			  gain);
	if (check < 0)
		return -UP_EDGE_SUM_BYTES * UP_EDGE_SUM_STEPS;
	tcp->check = check;
	tcp->source = to->sport_be;
	tcp->dest = to->dport_be;
	__builtin_memcpy(&ip->saddr, &to->src[12], 4);
	__builtin_memcpy(&ip->daddr, &to->dst[12], 4);
	old = *(__u16 *)&ip->ttl;
	ip->ttl--;
	ip->check = corrected(ip->check, gain + (__u16)~old + *(__u16 *)&ip->ttl);
	return go(eth, &hop, flow);
}

VERIFIED_ONCE int forward6(struct xdp_md *ctx, const struct packet *p, const struct up_edge_flow *flow,
		   struct up_edge_hop *known)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct ipv6hdr *ip = (void *)(eth + 1);
	struct tcphdr *tcp = (void *)(ip + 1);
	const struct up_edge_tuple *to;
	struct up_edge_hop hop = {};
	__s64 check;
	__u32 why, bytes;

	if (!p || !flow)
		return XDP_PASS;
	to = becomes(p, flow);
	if ((void *)(tcp + 1) > (void *)(long)ctx->data_end)
		return refuse(flow, UP_EDGE_MALFORMED);
	if (ip->hop_limit <= 1)
		return refuse(flow, UP_EDGE_TTL);
	bytes = bpf_ntohs(ip->payload_len);
	why = find_hop(ctx, 1, *(__be32 *)ip & bpf_htonl(0x0fffffff), bytes + sizeof(*ip), flow,
		       to->src, known, &hop);
	if (why == UP_EDGE_TOO_BIG && hop.most)
		return -(int)hop.most;
	if (why)
		return refuse(flow, why);
	check = new_check(ctx, p, to, sizeof(*eth) + sizeof(*ip), bytes, tcp->check,
			  change(p->tuple.src, to->src) + change(p->tuple.dst, to->dst));
	if (check < 0)
		return -UP_EDGE_SUM_BYTES * UP_EDGE_SUM_STEPS;
	tcp->check = check;
	tcp->source = to->sport_be;
	tcp->dest = to->dport_be;
	__builtin_memcpy(&ip->saddr, to->src, 16);
	__builtin_memcpy(&ip->daddr, to->dst, 16);
	ip->hop_limit--;
	return go(eth, &hop, flow);
}

/* A segment with nothing odd about it; `known`: where to remember the next hop, or null. A negative
 * answer is what the route takes at most: the sender is to be told (too_big.h). */
static __always_inline int forward(struct xdp_md *ctx, const struct packet *p,
				   const struct up_edge_flow *flow, struct up_edge_hop *known)
{
	return p->is_ipv6 ? forward6(ctx, p, flow, known) : forward4(ctx, p, flow, known);
}
