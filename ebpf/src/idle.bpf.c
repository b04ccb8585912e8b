/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* For the edge's measurements and tests: what running a program costs that does nothing; one that has
 * the kernel send its frames, as a driver hands them over; one that tags frames, because not every
 * kernel has devices for VLANs. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

SEC("xdp.frags")
int idle(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_DROP;
}

/* Whereto. */
volatile const __u32 device;

SEC("xdp.frags")
int toss(struct xdp_md *ctx)
{
	(void)ctx;
	return bpf_redirect(device, 0);
}

/* A priority, and no VLAN: who has no devices for any takes the packet. */
#define TAG (5 << 13)

SEC("classifier")
int tag(struct __sk_buff *skb)
{
	return bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), TAG) ? TC_ACT_SHOT : TC_ACT_OK;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
