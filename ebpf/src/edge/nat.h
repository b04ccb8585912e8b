/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Addresses, ports and time to live of a segment, rewritten; its checksums follow by what changed
 * (RFC 1624), which keeps a wrong one wrong.
 *
 * A sender on this host, or in a container on it, may have left the checksum to the hardware: then
 * there is only the pseudo-header's sum in the field. A driver's program sends such a packet on as
 * it is, so the checksum is computed here; in the stack the kernel will do it on the way out, so the
 * sum is corrected. A right checksum that looks like that sum, one in 65,536, is computed again and
 * comes out the same.
 */
#pragma once

#include "parse.h"

static __always_inline __u16 folded(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* What a checksum's sum gains where these 16 bytes change. */
static __always_inline __u64 change(const __u8 old[16], const __u8 new[16])
{
	const __u32 *o = (const __u32 *)old, *n = (const __u32 *)new;
	__u64 sum = 0;

	for (int i = 0; i < 4; i++)
		sum += (__u64)(__u32)~o[i] + n[i];
	return sum;
}

static __always_inline __u64 change_of_ports(const struct up_edge_tuple *old,
					     const struct up_edge_tuple *new)
{
	return (__u64)(__u16)~old->sport_be + new->sport_be + (__u16)~old->dport_be +
	       new->dport_be;
}

static __always_inline __u16 corrected(__u16 check, __u64 gain)
{
	return ~folded((__u64)(__u16)~check + gain);
}

static __always_inline __u16 pseudo_header_of(__u8 protocol, const struct up_edge_tuple *tuple,
					      int is_ipv6, __u32 bytes)
{
	const __u32 *src = (const __u32 *)tuple->src, *dst = (const __u32 *)tuple->dst;
	__u64 sum = bpf_htons(protocol) + (__u64)bpf_htonl(bytes) + src[3] + dst[3];

	if (is_ipv6)
		sum += (__u64)src[0] + src[1] + src[2] + dst[0] + dst[1] + dst[2];
	return folded(sum);
}

static __always_inline __u16 pseudo_header(const struct up_edge_tuple *tuple, int is_ipv6,
					   __u32 bytes)
{
	return pseudo_header_of(IPPROTO_TCP, tuple, is_ipv6, bytes);
}

static __always_inline int runs_in_the_stack(struct xdp_md *ctx)
{
	__u32 ifindex = ctx->ingress_ifindex;
	struct up_edge_interface *interface;

	interface = bpf_map_lookup_elem(&edge_interfaces, &ifindex);
	return interface && interface->generic;
}

/* The sum of a segment wherever its bytes are; -1: it is longer than any frame is. */
VERIFIED_ONCE __s64 sum_of_segment(struct xdp_md *ctx, __u32 offset, __u32 bytes)
{
	struct up_edge_scratch *scratch = scratch_of_this_cpu();
	__s64 sum = 0;

	if (!scratch)
		return -1;
	for (int i = 0; i < UP_EDGE_SUM_STEPS; i++) {
		__u32 part = bytes < UP_EDGE_SUM_BYTES ? bytes : UP_EDGE_SUM_BYTES;

		if (part == 0)
			return sum;
		/* Of 1 to that many: a 6.1 verifier does not believe a comparison with 0. */
		part -= 1;
		barrier_var(part);
		part &= UP_EDGE_SUM_BYTES - 1;
		barrier_var(part);
		part += 1;
		if (bpf_xdp_load_bytes(ctx, offset, scratch->bytes, part))
			return -1;
		*(__u32 *)(scratch->bytes + (part & ~3u)) &= bpf_htonl(~(0xffffffffu >> ((part & 3) * 8)));
		if (part % 4)
			part += 4 - part % 4;
		if (part > UP_EDGE_SUM_BYTES)
			return -1;
		sum = bpf_csum_diff(0, 0, (__be32 *)scratch->bytes, part, sum);
		if (sum < 0)
			return -1;
		offset += UP_EDGE_SUM_BYTES;
		bytes -= bytes < UP_EDGE_SUM_BYTES ? bytes : UP_EDGE_SUM_BYTES;
	}
	return bytes ? -1 : sum;
}
