/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What the sender of a packet is told that is larger than the next hop takes (RFC 1191, RFC 8201): an
 * ICMP error, made of that packet as it arrived. It is from the address that the packet was for,
 * because that is from where its sender has answers, too.
 *
 * Whether a packet may be cut into fragments is not asked: nobody here would cut it.
 */
#pragma once

#include "count.h"
#include "nat.h"

#define ERROR_TTL 64
/* Internetwork control (RFC 1812, 4.3.2.5). */
#define ERROR_TOS 0xc0
#define IP_DONT_FRAGMENT 0x4000
#define ICMP_UNREACHABLE 3
#define ICMP_TOO_BIG 4
#define ICMP6_TOO_BIG 2
/* With their IP header: RFC 1812, 4.3.2.3; RFC 4443, 2.4. */
#define ERROR4_BYTES 576
#define ERROR6_BYTES 1280

/* Puts `room` bytes before the packet and cuts it to `quoted`; Ethernet's header stays behind, directly
 * before the packet. */
static __always_inline int make_room(struct xdp_md *ctx, __u32 room, __u32 quoted)
{
	int surplus;

	if (bpf_xdp_adjust_head(ctx, -(int)room))
		return 0;
	surplus = (int)bpf_xdp_get_buff_len(ctx) - (int)(ETH_HLEN + room + quoted);
	return surplus <= 0 || !bpf_xdp_adjust_tail(ctx, -surplus);
}

/* The sum over the segment as it is quoted, of which `bytes` are left. */
static __always_inline __s64 sum_of_quoted(struct xdp_md *ctx, __u32 offset, __u32 bytes,
					   __u16 check, int is_left)
{
	/* The kernel will complete its checksum on the way out, over whatever is there then. */
	if (is_left && runs_in_the_stack(ctx))
		return (__u16)~check;
	return sum_of_segment(ctx, offset, bytes);
}

/* Ethernet's header for the way back; to be called before the others are written, which take the place
 * where it is now. */
static __always_inline void turn_back(struct ethhdr *eth, const struct ethhdr *old)
{
	__builtin_memcpy(eth->h_dest, old->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, old->h_dest, ETH_ALEN);
	eth->h_proto = old->h_proto;
}

VERIFIED_ONCE int too_big4(struct xdp_md *ctx, const struct packet *p, __u32 mtu)
{
	const __u32 room = sizeof(struct iphdr) + sizeof(struct icmp);
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct iphdr *ip = (void *)(eth + 1), *about;
	struct tcphdr *tcp = (void *)(ip + 1);
	struct icmp *icmp;
	__u32 quoted, *words;
	__u64 header = 0;
	__u16 check;
	__s64 sum;
	int is_left;

	if (!p || (void *)(tcp + 1) > (void *)(long)ctx->data_end)
		return dispose(UP_EDGE_TOO_BIG, XDP_DROP);
	quoted = bpf_ntohs(ip->tot_len);
	check = tcp->check;
	is_left = check == pseudo_header(&p->tuple, 0, quoted - sizeof(*ip));
	if (quoted > ERROR4_BYTES - room)
		quoted = ERROR4_BYTES - room;
	if (quoted < sizeof(*ip) || !make_room(ctx, room, quoted))
		return dispose(UP_EDGE_TOO_BIG, XDP_DROP);
	/* The quoted header sums to nothing: its checksum is right. */
	sum = sum_of_quoted(ctx, ETH_HLEN + room + sizeof(*ip), quoted - sizeof(*ip), check,
			    is_left);
	eth = (void *)(long)ctx->data;
	ip = (void *)(eth + 1);
	icmp = (void *)(ip + 1);
	about = (void *)(icmp + 1);
	if (sum < 0 || (void *)(about + 1) > (void *)(long)ctx->data_end)
		return dispose(UP_EDGE_TOO_BIG, XDP_DROP);
	turn_back(eth, (void *)eth + room);
	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 4;
	ip->ihl = sizeof(*ip) / 4;
	ip->tos = ERROR_TOS;
	ip->tot_len = bpf_htons(room + quoted);
	ip->frag_off = bpf_htons(IP_DONT_FRAGMENT);
	ip->ttl = ERROR_TTL;
	ip->protocol = IPPROTO_ICMP;
	ip->saddr = about->daddr;
	ip->daddr = about->saddr;
	words = (void *)ip;
	for (int i = 0; i < 5; i++)
		header += words[i];
	ip->check = ~folded(header);
	icmp->type = ICMP_UNREACHABLE;
	icmp->code = ICMP_TOO_BIG;
	icmp->check = 0;
	icmp->rest = bpf_htonl(mtu);
	words = (void *)icmp;
	icmp->check = ~folded((__u64)sum + words[0] + words[1]);
	return dispose(UP_EDGE_TOO_BIG, bpf_redirect(ctx->ingress_ifindex, 0));
}

VERIFIED_ONCE int too_big6(struct xdp_md *ctx, const struct packet *p, __u32 mtu)
{
	const __u32 room = sizeof(struct ipv6hdr) + sizeof(struct icmp);
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct ipv6hdr *ip = (void *)(eth + 1), *about;
	struct tcphdr *tcp = (void *)(ip + 1);
	struct icmp *icmp;
	__u32 quoted, *words;
	__u16 check;
	__s64 sum;
	int is_left;

	if (!p || (void *)(tcp + 1) > (void *)(long)ctx->data_end)
		return dispose(UP_EDGE_TOO_BIG, XDP_DROP);
	quoted = bpf_ntohs(ip->payload_len);
	check = tcp->check;
	is_left = check == pseudo_header(&p->tuple, 1, quoted);
	if (quoted > ERROR6_BYTES - room - sizeof(*ip))
		quoted = ERROR6_BYTES - room - sizeof(*ip);
	if (!make_room(ctx, room, sizeof(*ip) + quoted))
		return dispose(UP_EDGE_TOO_BIG, XDP_DROP);
	sum = sum_of_quoted(ctx, ETH_HLEN + room + sizeof(*ip), quoted, check, is_left);
	eth = (void *)(long)ctx->data;
	ip = (void *)(eth + 1);
	icmp = (void *)(ip + 1);
	about = (void *)(icmp + 1);
	if (sum < 0 || (void *)(about + 1) > (void *)(long)ctx->data_end)
		return dispose(UP_EDGE_TOO_BIG, XDP_DROP);
	turn_back(eth, (void *)eth + room);
	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 6;
	ip->payload_len = bpf_htons(sizeof(*icmp) + sizeof(*about) + quoted);
	ip->nexthdr = IPPROTO_ICMPV6;
	ip->hop_limit = ERROR_TTL;
	__builtin_memcpy(&ip->saddr, &about->daddr, 16);
	__builtin_memcpy(&ip->daddr, &about->saddr, 16);
	icmp->type = ICMP6_TOO_BIG;
	icmp->code = 0;
	icmp->check = 0;
	icmp->rest = bpf_htonl(mtu);
	words = (void *)about;
	for (int i = 0; i < 10; i++)
		sum += words[i];
	words = (void *)icmp;
	sum += (__u64)words[0] + words[1] +
	       pseudo_header_of(IPPROTO_ICMPV6, &p->tuple, 1,
				sizeof(*icmp) + sizeof(*about) + quoted);
	icmp->check = ~folded(sum);
	return dispose(UP_EDGE_TOO_BIG, bpf_redirect(ctx->ingress_ifindex, 0));
}

/* Nothing of the packet was changed. */
static __always_inline int tell_too_big(struct xdp_md *ctx, const struct packet *p, __u32 mtu)
{
	return p->is_ipv6 ? too_big6(ctx, p, mtu) : too_big4(ctx, p, mtu);
}
