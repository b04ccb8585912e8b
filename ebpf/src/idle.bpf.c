/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* For the edge's measurements and tests: what running a program costs that does nothing; one that has
 * the kernel send its frames, as a driver hands them over; one that tags frames, because not every
 * kernel has devices for VLANs; hooks on connect() that are not ours. */
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

/* Another program's hooks, as a cluster network's are: a service's address becomes a backend's, and sockets
 * are told of the service. Addresses and port in network order. */
volatile const __u32 service, backend, service_port;

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, __u32);
} to_backend SEC(".maps");

SEC("cgroup/connect4")
int to_service(struct bpf_sock_addr *ctx)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);
	__u32 was = service;

	if (ctx->user_ip4 == service && ctx->user_port == service_port) {
		bpf_map_update_elem(&to_backend, &cookie, &was, BPF_ANY);
		ctx->user_ip4 = backend;
	}
	return 1;
}

/* fd00::, with the service's number; its backend is ::1. */
#define SERVICE6_HEAD bpf_htonl(0xfd000000)
#define BACKEND6 bpf_htonl(1)

SEC("cgroup/connect6")
int to_service6(struct bpf_sock_addr *ctx)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);
	__u32 was = service;

	if (ctx->user_ip6[0] == SERVICE6_HEAD && ctx->user_ip6[3] == service &&
	    ctx->user_port == service_port) {
		bpf_map_update_elem(&to_backend, &cookie, &was, BPF_ANY);
		ctx->user_ip6[0] = 0;
		ctx->user_ip6[3] = BACKEND6;
	}
	return 1;
}

SEC("cgroup/getpeername6")
int of_service6(struct bpf_sock_addr *ctx)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);

	if (bpf_map_lookup_elem(&to_backend, &cookie) && !ctx->user_ip6[0] &&
	    ctx->user_ip6[3] == BACKEND6 && ctx->user_port == service_port) {
		ctx->user_ip6[0] = SERVICE6_HEAD;
		ctx->user_ip6[3] = service;
	}
	return 1;
}

SEC("cgroup/getpeername4")
int of_service(struct bpf_sock_addr *ctx)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);

	if (bpf_map_lookup_elem(&to_backend, &cookie) && ctx->user_ip4 == backend &&
	    ctx->user_port == service_port)
		ctx->user_ip4 = service;
	return 1;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
