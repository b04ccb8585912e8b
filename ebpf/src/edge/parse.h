/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * From a frame to what the rules ask about. Reads headers only, which are in the frame's first
 * buffer; the rest of a frame may be in others.
 *
 * What stands between a packet and being forwarded is its oddity: the filter sees past it, as far
 * as it goes, so that a denied client gains nothing by odd packets.
 */
#pragma once

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>

#include "maps.h"

#define IP_MORE_FRAGMENTS 0x2000
#define IP_OFFSET 0x1fff

enum kind {
	KIND_OTHER,
	KIND_TCP,
	/* ICMP or ICMPv6, without anything between it and a plain IP header. */
	KIND_ICMP,
};

struct packet {
	struct up_edge_tuple tuple;
	/* Of the TCP header behind the sequence numbers: its length, and its flags. */
	__u8 flags;
	__u8 is_ipv6;
	/* It may open a connection. */
	__u8 opens;
	/* The verdict of one that would be forwarded, were it not odd; UP_EDGE_OTHER: it is not. */
	__u8 oddity;
};

#define FLAG_FIN 0x01
#define FLAG_SYN 0x02
#define FLAG_RST 0x04
#define FLAG_ACK 0x10

struct vlan_tag {
	__be16 tag;
	__be16 protocol;
};

struct icmp {
	__u8 type;
	__u8 code;
	__u16 check;
	__be32 rest;
};

struct extension {
	__u8 next;
	__u8 length;
	__be16 offset;
};

static __always_inline void mapped(__u8 into[16], __be32 addr)
{
	__u32 *words = (__u32 *)into;

	words[0] = 0;
	words[1] = 0;
	words[2] = bpf_htonl(0xffff);
	words[3] = addr;
}

static __always_inline void odd(struct packet *p, __u8 verdict)
{
	if (!p->oddity)
		p->oddity = verdict;
}

/* The ports are there even in a first fragment of 8 bytes; then nobody knows whether it opens a
 * connection, and it counts as if it did. */
static __always_inline int parse_tcp(void *at, void *end, __u32 bytes, int is_cut,
				     struct packet *p)
{
	struct tcphdr *tcp = at;
	__be16 *ports = at;

	if ((void *)(ports + 2) > end)
		return KIND_OTHER;
	p->tuple.sport_be = ports[0];
	p->tuple.dport_be = ports[1];
	p->opens = 1;
	if ((void *)(tcp + 1) > end || is_cut) {
		odd(p, is_cut ? UP_EDGE_FRAGMENT : UP_EDGE_MALFORMED);
		return KIND_TCP;
	}
	p->flags = ((__u8 *)at)[13];
	p->opens = (p->flags & (FLAG_SYN | FLAG_ACK)) == FLAG_SYN;
	if (tcp->doff < 5 || tcp->doff * 4u > bytes)
		odd(p, UP_EDGE_MALFORMED);
	/* A packet that is nothing, or two things at once. */
	if (!(p->flags & (FLAG_SYN | FLAG_RST | FLAG_ACK)) ||
	    (p->flags & FLAG_SYN && p->flags & (FLAG_FIN | FLAG_RST)))
		odd(p, UP_EDGE_MALFORMED);
	return KIND_TCP;
}

/* Whether a packet is as long as it says; most are in one buffer. */
static __always_inline int has_bytes(struct xdp_md *ctx, void *at, void *end, __u32 bytes)
{
	if (at + bytes <= end)
		return 1;
	return (__u64)(at - (void *)(long)ctx->data) + bytes <= bpf_xdp_get_buff_len(ctx);
}

static __always_inline int parse_ipv4(struct xdp_md *ctx, void *at, void *end, struct packet *p)
{
	struct iphdr *ip = at;
	__u32 header, total;
	int is_cut;

	if ((void *)(ip + 1) > end || ip->version != 4)
		return KIND_OTHER;
	header = ip->ihl * 4;
	total = bpf_ntohs(ip->tot_len);
	if (header < sizeof(*ip) || total < header || !has_bytes(ctx, at, end, total))
		return KIND_OTHER;
	mapped(p->tuple.src, ip->saddr);
	mapped(p->tuple.dst, ip->daddr);
	is_cut = !!(ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_OFFSET));
	if (ip->frag_off & bpf_htons(IP_OFFSET))
		return KIND_OTHER;
	if (ip->protocol == IPPROTO_ICMP)
		return header == sizeof(*ip) && !is_cut ? KIND_ICMP : KIND_OTHER;
	if (ip->protocol != IPPROTO_TCP)
		return KIND_OTHER;
	if (header != sizeof(*ip))
		odd(p, UP_EDGE_IP_OPTIONS);
	return parse_tcp(at + header, end, total - header, is_cut, p);
}

static __always_inline int parse_ipv6(struct xdp_md *ctx, void *at, void *end, struct packet *p)
{
	struct ipv6hdr *ip = at;
	__u32 total, header = sizeof(*ip);
	__u8 next;
	int is_cut = 0;

	if ((void *)(ip + 1) > end || ip->version != 6)
		return KIND_OTHER;
	total = header + bpf_ntohs(ip->payload_len);
	if (!has_bytes(ctx, at, end, total))
		return KIND_OTHER;
	p->is_ipv6 = 1;
	__builtin_memcpy(p->tuple.src, &ip->saddr, 16);
	__builtin_memcpy(p->tuple.dst, &ip->daddr, 16);
	next = ip->nexthdr;
	for (int i = 0; i < UP_EDGE_EXTENSIONS; i++) {
		struct extension *extension = at + header;

		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING &&
		    next != IPPROTO_DSTOPTS && next != IPPROTO_FRAGMENT)
			break;
		if ((void *)(extension + 2) > end)
			return KIND_OTHER;
		odd(p, next == IPPROTO_FRAGMENT ? UP_EDGE_FRAGMENT : UP_EDGE_EXTENSION_HEADER);
		if (next == IPPROTO_FRAGMENT) {
			if (extension->offset & bpf_htons(0xfff8))
				return KIND_OTHER;
			is_cut = !!(extension->offset & bpf_htons(1));
			header += 8;
		} else {
			header += 8 + extension->length * 8;
		}
		next = extension->next;
	}
	if (header > total)
		return KIND_OTHER;
	if (next == IPPROTO_ICMPV6)
		return p->oddity ? KIND_OTHER : KIND_ICMP;
	if (next != IPPROTO_TCP)
		return KIND_OTHER;
	return parse_tcp(at + header, end, total - header, is_cut, p);
}

static __always_inline int parse(struct xdp_md *ctx, struct packet *p)
{
	void *end = (void *)(long)ctx->data_end;
	void *at = (void *)(long)ctx->data;
	struct ethhdr *eth = at;
	__be16 protocol;

	if ((void *)(eth + 1) > end)
		return KIND_OTHER;
	protocol = eth->h_proto;
	at = eth + 1;
	for (int i = 0; i < UP_EDGE_TAGS; i++) {
		struct vlan_tag *tag = at;

		if (protocol != bpf_htons(ETH_P_8021Q) && protocol != bpf_htons(ETH_P_8021AD))
			break;
		if ((void *)(tag + 1) > end)
			return KIND_OTHER;
		odd(p, UP_EDGE_VLAN);
		protocol = tag->protocol;
		at = tag + 1;
	}
	if (protocol == bpf_htons(ETH_P_IP))
		return parse_ipv4(ctx, at, end, p);
	if (protocol == bpf_htons(ETH_P_IPV6))
		return parse_ipv6(ctx, at, end, p);
	return KIND_OTHER;
}
