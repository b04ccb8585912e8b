/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What the client of a forwarded connection is told when the agent has given its backend up: a reset,
 * made of its own next packet, as the backend would answer it. Nobody keeps what it would take to tell
 * it unasked.
 */
#pragma once

#include "forward.h"

#define RESET_TTL 64
#define RESET_BYTES sizeof(struct tcphdr)

/* The header becomes one that refuses what it acknowledges (RFC 9293, 3.5.2). Returns the sum over it. */
static __always_inline __s64 refuse_segment(struct tcphdr *tcp, const struct up_edge_tuple *back)
{
	__be32 acknowledged = tcp->ack_seq;

	__builtin_memset(tcp, 0, sizeof(*tcp));
	tcp->source = back->sport_be;
	tcp->dest = back->dport_be;
	tcp->seq = acknowledged;
	tcp->doff = sizeof(*tcp) / 4;
	tcp->rst = 1;
	return bpf_csum_diff(0, 0, (__be32 *)tcp, sizeof(*tcp), 0);
}

static __always_inline __u16 check_of(struct xdp_md *ctx, const struct packet *p,
				      const struct up_edge_tuple *back, int is_left, __s64 sum)
{
	__u16 pseudo = pseudo_header(back, p->is_ipv6, RESET_BYTES);

	/* Where the kernel completes the checksum on the way out, it still will. */
	if (is_left && runs_in_the_stack(ctx))
		return pseudo;
	return ~folded((__u64)sum + pseudo);
}

/* `all`: the bytes that stay of the frame. */
static __always_inline int send_back(struct xdp_md *ctx, __u32 all)
{
	__u32 bytes = bpf_xdp_get_buff_len(ctx);

	if (bytes > all && bpf_xdp_adjust_tail(ctx, (int)all - (int)bytes))
		return dispose(UP_EDGE_RESET, XDP_DROP);
	return dispose(UP_EDGE_RESET, bpf_redirect(ctx->ingress_ifindex, 0));
}

static __always_inline void turn_round(struct ethhdr *eth)
{
	__u8 mac[ETH_ALEN];

	__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, mac, ETH_ALEN);
}

static __always_inline int reset4(struct xdp_md *ctx, const struct packet *p,
				  const struct up_edge_tuple *back)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct iphdr *ip = (void *)(eth + 1);
	struct tcphdr *tcp = (void *)(ip + 1);
	__u32 *words = (void *)ip;
	__u64 sum = 0;
	int is_left;

	if ((void *)(tcp + 1) > (void *)(long)ctx->data_end)
		return dispose(UP_EDGE_RESET, XDP_DROP);
	is_left = tcp->check ==
		  pseudo_header(&p->tuple, 0, bpf_ntohs(ip->tot_len) - sizeof(*ip));
	tcp->check = check_of(ctx, p, back, is_left, refuse_segment(tcp, back));
	__builtin_memcpy(&ip->saddr, &back->src[12], 4);
	__builtin_memcpy(&ip->daddr, &back->dst[12], 4);
	ip->tot_len = bpf_htons(sizeof(*ip) + RESET_BYTES);
	ip->ttl = RESET_TTL;
	ip->check = 0;
	for (int i = 0; i < 5; i++)
		sum += words[i];
	ip->check = ~folded(sum);
	turn_round(eth);
	return send_back(ctx, sizeof(*eth) + sizeof(*ip) + RESET_BYTES);
}

static __always_inline int reset6(struct xdp_md *ctx, const struct packet *p,
				  const struct up_edge_tuple *back)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct ipv6hdr *ip = (void *)(eth + 1);
	struct tcphdr *tcp = (void *)(ip + 1);
	int is_left;

	if ((void *)(tcp + 1) > (void *)(long)ctx->data_end)
		return dispose(UP_EDGE_RESET, XDP_DROP);
	is_left = tcp->check == pseudo_header(&p->tuple, 1, bpf_ntohs(ip->payload_len));
	tcp->check = check_of(ctx, p, back, is_left, refuse_segment(tcp, back));
	__builtin_memcpy(&ip->saddr, back->src, 16);
	__builtin_memcpy(&ip->daddr, back->dst, 16);
	ip->payload_len = bpf_htons(RESET_BYTES);
	ip->hop_limit = RESET_TTL;
	turn_round(eth);
	return send_back(ctx, sizeof(*eth) + sizeof(*ip) + RESET_BYTES);
}

/* A packet of a client, of a connection that was given up; nothing is odd about it. */
VERIFIED_ONCE int answer_with_reset(struct xdp_md *ctx, const struct packet *p,
			    const struct up_edge_tuple *back)
{
	if (!p || !back || p->flags & FLAG_RST || !(p->flags & FLAG_ACK))
		return dispose(UP_EDGE_RESET, XDP_DROP);
	return p->is_ipv6 ? reset6(ctx, p, back) : reset4(ctx, p, back);
}
