/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * ICMP errors about forwarded connections: unreachable, too big, time exceeded. They come to the
 * gateway, as the sender of what is quoted in them, and are for whoever really sent it; the quoted
 * header becomes what that one has sent (RFC 5508, section 4.2).
 */
#pragma once

#include "connections.h"

/* Of the quoted TCP header, as much as every router sends. */
struct quoted {
	__be16 source;
	__be16 dest;
	__be32 seq;
	__be32 ack_seq;
	__be16 flags;
	__be16 window;
	__u16 check;
};
#define QUOTED_BYTES 8

/* Types that are errors about a packet (RFC 792, RFC 4443). */
static __always_inline int is_error(__u8 type, int is_ipv6)
{
	if (is_ipv6)
		return type >= 1 && type <= 4;
	return type == 3 || type == 11 || type == 12;
}

/* Rewrites the quoted ports, and the quoted checksum if it was quoted; returns what the sum over
 * the message gains by both. `gain` is that of the quoted addresses. */
static __always_inline __u64 requote(struct quoted *tcp, int has_check,
				     const struct up_edge_tuple *old,
				     const struct up_edge_tuple *new, __u64 gain)
{
	__u64 ports = change_of_ports(old, new), all = ports;
	__u16 check;

	tcp->source = new->sport_be;
	tcp->dest = new->dport_be;
	if (has_check) {
		check = corrected(tcp->check, gain + ports);
		all += (__u64)(__u16)~tcp->check + check;
		tcp->check = check;
	}
	return all;
}

/* The entry of the packets that come from where the quoted one went. */
static __always_inline struct up_edge_flow *flow_of(const struct up_edge_tuple *quoted)
{
	struct up_edge_tuple key;

	reversed(quoted, &key);
	return bpf_map_lookup_elem(&edge_flows, &key);
}

VERIFIED_ONCE int error4(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct iphdr *ip = (void *)(eth + 1);
	struct icmp *icmp = (void *)(ip + 1);
	struct iphdr *inner = (void *)(icmp + 1);
	struct quoted *tcp = (void *)(inner + 1);
	struct up_edge_tuple old = {}, new;
	struct up_edge_flow *flow;
	__u64 gain, all, addresses;
	__u8 src[16], dst[16];
	__u16 check, ttl;
	__u32 why, bytes;
	struct up_edge_hop hop = {};

	if ((void *)tcp + QUOTED_BYTES > end || !is_error(icmp->type, 0))
		return dispose(UP_EDGE_OTHER, XDP_PASS);
	bytes = bpf_ntohs(ip->tot_len);
	if (bytes < sizeof(*ip) + sizeof(*icmp) + sizeof(*inner) + QUOTED_BYTES ||
	    inner->version != 4 || inner->ihl != 5 || inner->protocol != IPPROTO_TCP ||
	    inner->frag_off & bpf_htons(IP_OFFSET))
		return dispose(UP_EDGE_OTHER, XDP_PASS);
	mapped(old.src, inner->saddr);
	mapped(old.dst, inner->daddr);
	old.sport_be = tcp->source;
	old.dport_be = tcp->dest;
	flow = flow_of(&old);
	if (!flow)
		return dispose(UP_EDGE_OTHER, XDP_PASS);
	if (ip->ttl <= 1)
		return refuse(flow, UP_EDGE_TTL);
	mapped(src, ip->saddr);
	why = ask_hop(ctx, 0, ip->tos, bytes, flow, src, &hop);
	if (why)
		return refuse(flow, why);
	ttl = *(__u16 *)&ip->ttl;
	ip->ttl--;
	all = (__u64)(__u16)~ttl + *(__u16 *)&ip->ttl;
	if (flow->direction != UP_EDGE_DIRECT) {
		reversed(&flow->to, &new);
		mapped(dst, ip->daddr);
		__builtin_memcpy(&ip->daddr, &flow->to.dst[12], 4);
		all += change(dst, flow->to.dst);
		addresses = change(old.src, new.src) + change(old.dst, new.dst);
		__builtin_memcpy(&inner->saddr, &new.src[12], 4);
		__builtin_memcpy(&inner->daddr, &new.dst[12], 4);
		check = corrected(inner->check, addresses);
		gain = addresses + (__u16)~inner->check + check;
		inner->check = check;
		gain += requote(tcp, (void *)(tcp + 1) <= end && bytes >= sizeof(*ip) +
				sizeof(*icmp) + sizeof(*inner) + sizeof(*tcp), &old, &new,
				addresses);
		icmp->check = corrected(icmp->check, gain);
	}
	ip->check = corrected(ip->check, all);
	__builtin_memcpy(eth->h_dest, hop.to, ETH_ALEN);
	__builtin_memcpy(eth->h_source, hop.from, ETH_ALEN);
	return dispose(UP_EDGE_ICMP_ERROR, bpf_redirect(hop.ifindex, 0));
}

VERIFIED_ONCE int error6(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ipv6hdr *ip = (void *)(eth + 1);
	struct icmp *icmp = (void *)(ip + 1);
	struct ipv6hdr *inner = (void *)(icmp + 1);
	struct quoted *tcp = (void *)(inner + 1);
	struct up_edge_tuple old = {}, new;
	struct up_edge_flow *flow;
	__u64 gain;
	__u32 why, bytes;
	struct up_edge_hop hop = {};

	if ((void *)tcp + QUOTED_BYTES > end || !is_error(icmp->type, 1))
		return dispose(UP_EDGE_OTHER, XDP_PASS);
	bytes = bpf_ntohs(ip->payload_len);
	if (bytes < sizeof(*icmp) + sizeof(*inner) + QUOTED_BYTES || inner->version != 6 ||
	    inner->nexthdr != IPPROTO_TCP)
		return dispose(UP_EDGE_OTHER, XDP_PASS);
	__builtin_memcpy(old.src, &inner->saddr, 16);
	__builtin_memcpy(old.dst, &inner->daddr, 16);
	old.sport_be = tcp->source;
	old.dport_be = tcp->dest;
	flow = flow_of(&old);
	if (!flow)
		return dispose(UP_EDGE_OTHER, XDP_PASS);
	if (ip->hop_limit <= 1)
		return refuse(flow, UP_EDGE_TTL);
	why = ask_hop(ctx, 1, *(__be32 *)ip & bpf_htonl(0x0fffffff), bytes + sizeof(*ip), flow,
		       (__u8 *)&ip->saddr, &hop);
	if (why)
		return refuse(flow, why);
	ip->hop_limit--;
	if (flow->direction != UP_EDGE_DIRECT) {
		reversed(&flow->to, &new);
		gain = change(old.src, new.src) + change(old.dst, new.dst);
		gain += requote(tcp, (void *)(tcp + 1) <= end &&
				bytes >= sizeof(*icmp) + sizeof(*inner) + sizeof(*tcp), &old, &new,
				gain);
		gain += change((__u8 *)&ip->daddr, flow->to.dst);
		__builtin_memcpy(&inner->saddr, new.src, 16);
		__builtin_memcpy(&inner->daddr, new.dst, 16);
		__builtin_memcpy(&ip->daddr, flow->to.dst, 16);
		icmp->check = corrected(icmp->check, gain);
	}
	__builtin_memcpy(eth->h_dest, hop.to, ETH_ALEN);
	__builtin_memcpy(eth->h_source, hop.from, ETH_ALEN);
	return dispose(UP_EDGE_ICMP_ERROR, bpf_redirect(hop.ifindex, 0));
}
