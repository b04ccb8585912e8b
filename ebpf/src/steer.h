/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* What the programs at sk_lookup share: who connects to whom, and what can be answered. */
#pragma once

#include "denial.h"

#define LOOPBACK 1

/* The kernel's own selection goes on, whatever another program has selected. */
static __always_inline int leave_alone(void)
{
	return SK_PASS;
}

static __always_inline int refuse(struct bpf_sk_lookup *ctx)
{
	bpf_sk_assign(ctx, NULL, BPF_SK_LOOKUP_F_REPLACE);
	return SK_DROP;
}

/* Refuses what a rule denies, or the agent cannot serve (`cause`), and tells the agent. */
static __always_inline int deny_incoming(struct bpf_sk_lookup *ctx, const struct up_endpoint *client,
					 const struct up_endpoint *dst, const struct decision *d,
					 __u32 cause)
{
	struct up_denial *denial = begin_denial(d, cause, dst);

	if (denial) {
		denial->client = *client;
		bpf_ringbuf_submit(denial, 0);
	}
	return refuse(ctx);
}

/* Takes over the reference to `listener`, which may be null. The kernel refuses one of the wrong
 * family. */
static __always_inline int select_listener(struct bpf_sk_lookup *ctx, struct bpf_sock *listener)
{
	long error;

	if (!listener)
		return 0;
	error = bpf_sk_assign(ctx, listener, BPF_SK_LOOKUP_F_REPLACE);
	bpf_sk_release(listener);
	return !error;
}

/* False: it is not TCP's. */
static __always_inline int ends_of(struct bpf_sk_lookup *ctx, struct up_endpoint *client,
				   struct up_endpoint *dst)
{
	__u32 addr[4];

	if (ctx->protocol != IPPROTO_TCP)
		return 0;
	if (ctx->family == AF_INET) {
		endpoint4(client, ctx->remote_ip4, ctx->remote_port);
		endpoint4(dst, ctx->local_ip4, bpf_htons((__u16)ctx->local_port));
		return 1;
	}
	addr[0] = ctx->remote_ip6[0];
	addr[1] = ctx->remote_ip6[1];
	addr[2] = ctx->remote_ip6[2];
	addr[3] = ctx->remote_ip6[3];
	endpoint6(client, addr, ctx->remote_port);
	addr[0] = ctx->local_ip6[0];
	addr[1] = ctx->local_ip6[1];
	addr[2] = ctx->local_ip6[2];
	addr[3] = ctx->local_ip6[3];
	endpoint6(dst, addr, bpf_htons((__u16)ctx->local_port));
	return 1;
}
