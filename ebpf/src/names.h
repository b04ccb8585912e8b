/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * cgroup/getpeername4|6, cgroup/getsockname4|6, cgroup/getsockopt: what the application
 * is told about its socket.
 *
 * They fire after the kernel has answered and change the answer only for sockets that
 * were intercepted or balanced: the peer is the address that was dialled, the local address is the
 * one that the socket would have had without us (the port is the socket's own already),
 * SO_ORIGINAL_DST is the address that was dialled.
 *
 * Read flows and virtuals, write nothing. They go when the agent goes, and so do the flows that
 * they serve; but for spliced ones, for which the keeper holds what it can of them, and for balanced
 * ones: getpeername's are pinned.
 */
#pragma once

#include "common.h"

static __always_inline struct up_flow *flow_of(struct bpf_sock_addr *ctx)
{
	if (!ctx->sk)
		return 0;
	return bpf_sk_storage_get(&flows, ctx->sk, 0, 0);
}

/* The address that the application dialled, if its socket's peer is another. */
static __always_inline const struct up_endpoint *dialled_by(struct bpf_sock_addr *ctx)
{
	struct up_flow *flow = flow_of(ctx);

	if (flow)
		return &flow->connect.opener.orig_dst;
	if (!ctx->sk)
		return 0;
	return bpf_sk_storage_get(&virtuals, ctx->sk, 0, 0);
}

static __always_inline void show6(struct bpf_sock_addr *ctx, const struct up_endpoint *e)
{
	__u32 addr[4];

	__builtin_memcpy(addr, e->addr, sizeof(addr));
	ctx->user_ip6[0] = addr[0];
	ctx->user_ip6[1] = addr[1];
	ctx->user_ip6[2] = addr[2];
	ctx->user_ip6[3] = addr[3];
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	const struct up_endpoint *dialled = dialled_by(ctx);

	if (dialled) {
		ctx->user_ip4 = endpoint_v4(dialled);
		ctx->user_port = dialled->port_be;
	}
	return ALLOW;
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	const struct up_endpoint *dialled = dialled_by(ctx);

	if (dialled) {
		show6(ctx, dialled);
		ctx->user_port = dialled->port_be;
	}
	return ALLOW;
}

SEC("cgroup/getsockname4")
int getsockname4(struct bpf_sock_addr *ctx)
{
	struct up_flow *flow = flow_of(ctx);

	if (flow && flow->local.family)
		ctx->user_ip4 = endpoint_v4(&flow->local);
	return ALLOW;
}

SEC("cgroup/getsockname6")
int getsockname6(struct bpf_sock_addr *ctx)
{
	struct up_flow *flow = flow_of(ctx);

	if (flow && flow->local.family)
		show6(ctx, &flow->local);
	return ALLOW;
}

#define SOL_IP 0
#define SOL_IPV6 41
/* netfilter's, both families */
#define SO_ORIGINAL_DST 80
/* The kernel copies at most this much of an option for a hook. */
#define HOOK_OPTION_BYTES 4096

struct sockaddr4 {
	__u16 family;
	__be16 port;
	__be32 addr;
	__u8 zero[8];
};

struct sockaddr6 {
	__u16 family;
	__be16 port;
	__be32 flowinfo;
	__u8 addr[16];
	__u32 scope;
};

static __always_inline void answer4(struct bpf_sockopt *ctx, const struct up_endpoint *dst)
{
	struct sockaddr4 *out = ctx->optval;

	if ((void *)(out + 1) > ctx->optval_end)
		return;
	__builtin_memset(out, 0, sizeof(*out));
	out->family = AF_INET;
	out->port = dst->port_be;
	out->addr = endpoint_v4(dst);
	ctx->optlen = sizeof(*out);
	ctx->retval = 0;
}

static __always_inline void answer6(struct bpf_sockopt *ctx, const struct up_endpoint *dst)
{
	struct sockaddr6 *out = ctx->optval;

	if ((void *)(out + 1) > ctx->optval_end)
		return;
	__builtin_memset(out, 0, sizeof(*out));
	out->family = AF_INET6;
	out->port = dst->port_be;
	__builtin_memcpy(out->addr, dst->addr, sizeof(out->addr));
	ctx->optlen = sizeof(*out);
	ctx->retval = 0;
}

SEC("cgroup/getsockopt")
int original_dst(struct bpf_sockopt *ctx)
{
	const struct up_endpoint *dialled;
	struct up_flow *flow;

	/* Too long for a hook to see: have the kernel keep its own answer. */
	if (ctx->optlen > HOOK_OPTION_BYTES)
		ctx->optlen = 0;
	if (ctx->optname != SO_ORIGINAL_DST || !ctx->sk)
		return ALLOW;
	if (ctx->level != SOL_IP && ctx->level != SOL_IPV6)
		return ALLOW;
	flow = bpf_sk_storage_get(&flows, ctx->sk, 0, 0);
	dialled = flow ? &flow->connect.opener.orig_dst : bpf_sk_storage_get(&virtuals, ctx->sk, 0, 0);
	if (!dialled)
		return ALLOW;
	if (ctx->level == SOL_IP && dialled->family == 4)
		answer4(ctx, dialled);
	else if (ctx->level == SOL_IPV6)
		answer6(ctx, dialled);
	return ALLOW;
}
