/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * cgroup/connect4, cgroup/connect6: the decision.
 *
 * Fires in connect(2), in the caller's context, before a source address or port is
 * chosen, once per attempt (IPv4-mapped destinations arrive in connect6). Looks the
 * flow's rule up and leaves the socket alone (bypass; observe marks it for the meter), refuses it (deny: EPERM), or
 * sends it to the agent's listener (enrich) and keeps the original destination with the
 * socket. Where the session decides, and has decided of another connection of the process, it is
 * left alone (recall.h).
 *
 * Reads settings, shortcut_limits, policies, rules, targets, uids, processes, cgroups,
 * remembered. Writes
 * flows, observed, shortcut_wishes, decisions, causes; deletes from releases.
 *
 * When the agent is dead its listener is gone, which the socket look-up sees at once:
 * the rule's `fail` decides. No heartbeat, no race with a timer.
 */
#include "recall.h"

/* Is the agent listening in this very namespace? The mark tells its listener from a
 * stranger's on the same port. */
static __always_inline int agent_listens(struct bpf_sock_addr *ctx, const struct up_settings *s,
					 int family)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *listener;
	__u32 size;
	int found;

	if (family == 4) {
		tuple.ipv4.daddr = endpoint_v4(&s->listener4);
		tuple.ipv4.dport = s->listener4.port_be;
		size = sizeof(tuple.ipv4);
	} else {
		__builtin_memcpy(tuple.ipv6.daddr, s->listener6.addr, 16);
		tuple.ipv6.dport = s->listener6.port_be;
		size = sizeof(tuple.ipv6);
	}
	listener = bpf_sk_lookup_tcp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!listener)
		return 0;
	found = listener->state == BPF_TCP_LISTEN && listener->mark == s->mark;
	bpf_sk_release(listener);
	return found;
}

/* Why the agent could not dial what this socket dials, or UP_CAUSES when it can. */
static __always_inline __u32 elsewhere(struct bpf_sock_addr *ctx, struct bpf_sock *sk,
				       const struct up_settings *s, const struct up_endpoint *dst)
{
	if (bpf_get_netns_cookie(ctx) != s->netns_cookie)
		return UP_CAUSE_FOREIGN_NETNS;
	/* Bound to a device, it would never reach the loopback. */
	if (sk->bound_dev_if)
		return UP_CAUSE_BOUND_TO_DEVICE;
	/* The scope of fe80::/10 is not visible here, so it could not be dialled again. */
	if (dst->family == 6 && dst->addr[0] == 0xfe && (dst->addr[1] & 0xc0) == 0x80)
		return UP_CAUSE_LINK_LOCAL;
	return UP_CAUSES;
}

/* Why the agent does not take this flow, or UP_CAUSES when it does. */
static __always_inline __u32 agent_refuses(struct bpf_sock_addr *ctx, const struct up_settings *s,
					   const struct up_endpoint *dst)
{
	if (s->full)
		return UP_CAUSE_AGENT_FULL;
	if (!agent_listens(ctx, s, dst->family))
		return UP_CAUSE_AGENT_AWAY;
	return UP_CAUSES;
}

static __always_inline void describe(struct up_leg *leg, struct bpf_sock_addr *ctx,
				     const struct up_endpoint *dst, const struct decision *d,
				     const __u8 comm[UP_COMM_BYTES])
{
	opener(&leg->opener, dst, comm);
	leg->cookie = bpf_get_socket_cookie(ctx);
	leg->slot = d->slot;
	leg->generation = d->generation;
}

static __always_inline int keep_flow(struct bpf_sock_addr *ctx, struct bpf_sock *sk,
				     const struct up_settings *s, const struct up_endpoint *dst,
				     const struct decision *d, const __u8 comm[UP_COMM_BYTES],
				     int bound)
{
	struct up_flow *flow = bpf_sk_storage_get(&flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (!flow)
		return 0;
	__builtin_memset(flow, 0, sizeof(*flow));
	describe(&flow->leg, ctx, dst, d, comm);
	flow->leg.forgets = s->forgets;
	flow->leg.bound = bound;
	flow->leg.bound_port = sk->src_port != 0;
	return 1;
}

/* Marks the socket for the meter. */
static __always_inline void observe(struct bpf_sock_addr *ctx, struct bpf_sock *sk,
				    const struct up_endpoint *dst, const struct decision *d,
				    const __u8 comm[UP_COMM_BYTES])
{
	struct up_leg *leg = bpf_sk_storage_get(&observed, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (leg)
		describe(leg, ctx, dst, d, comm);
	else
		count_cause(UP_CAUSE_NO_MEMORY);
}

/* Marks the socket for the shortcut, which begins when it is established (shortcut.bpf.c). */
static __always_inline void wish_shortcut(struct bpf_sock_addr *ctx, struct bpf_sock *sk,
					  const struct up_settings *s)
{
	__u32 zero = 0;
	struct up_shortcut_limits *limits = bpf_map_lookup_elem(&shortcut_limits, &zero);

	if (!limits || limits->until_ns < bpf_ktime_get_coarse_ns())
		count_cause(UP_CAUSE_SHORTCUT_OFF);
	else if (bpf_get_netns_cookie(ctx) != s->netns_cookie)
		count_cause(UP_CAUSE_FOREIGN_NETNS);
	else if (!bpf_sk_storage_get(&shortcut_wishes, sk, 0, BPF_SK_STORAGE_GET_F_CREATE))
		count_cause(UP_CAUSE_NO_MEMORY);
}

/* A socket that was intercepted, failed to connect and is used again: forget the past. */
static __always_inline void forget(struct bpf_sock_addr *ctx, struct bpf_sock *sk)
{
	__u64 cookie;

	bpf_sk_storage_delete(&observed, sk);
	bpf_sk_storage_delete(&shortcut_wishes, sk);
	if (bpf_sk_storage_delete(&flows, sk))
		return;
	cookie = bpf_get_socket_cookie(ctx);
	bpf_map_delete_elem(&releases, &cookie);
}

/* Returns what the hook answers; sets `intercept` when the destination is to be the agent. */
static __always_inline int on_connect(struct bpf_sock_addr *ctx, const struct up_settings *s,
				      const struct up_endpoint *dst, int bound, int *intercept)
{
	struct bpf_sock *sk = ctx->sk;
	__u8 comm[UP_COMM_BYTES] = {};
	struct decision d = {};
	__u32 outcome = UP_OUTCOME_UNTOUCHED;
	__u32 cause = UP_CAUSES;

	*intercept = 0;
	if (!sk || ctx->type != SOCK_STREAM || ctx->protocol != IPPROTO_TCP)
		return ALLOW;
	if (sk->mark == s->mark && bpf_get_netns_cookie(ctx) == s->netns_cookie)
		return ALLOW;
	forget(ctx, sk);
	process_name(comm);
	if (!decide(s, dst, comm, &d))
		return ALLOW;
	if (d.action == UP_ACTION_ENRICH)
		cause = elsewhere(ctx, sk, s, dst);
	if (d.recalls && cause == UP_CAUSES && recall(s, dst, comm, &d))
		outcome = UP_OUTCOME_REMEMBERED;
	if (d.action == UP_ACTION_BYPASS) {
		count_outcome(&d, outcome);
		if (d.shortcut)
			wish_shortcut(ctx, sk, s);
		return ALLOW;
	}
	if (d.action == UP_ACTION_OBSERVE) {
		count_outcome(&d, UP_OUTCOME_UNTOUCHED);
		observe(ctx, sk, dst, &d, comm);
		return ALLOW;
	}
	if (d.action == UP_ACTION_DENY) {
		count_outcome(&d, UP_OUTCOME_DENIED);
		return REFUSE;
	}
	if (cause == UP_CAUSES)
		cause = agent_refuses(ctx, s, dst);
	if (cause == UP_CAUSES && !keep_flow(ctx, sk, s, dst, &d, comm, bound))
		cause = UP_CAUSE_NO_MEMORY;
	if (cause == UP_CAUSES) {
		count_outcome(&d, UP_OUTCOME_INTERCEPTED);
		*intercept = 1;
		return ALLOW;
	}
	count_cause(cause);
	if (d.fail == UP_FAIL_CLOSED) {
		count_outcome(&d, UP_OUTCOME_FAILED_CLOSED);
		return REFUSE;
	}
	count_outcome(&d, UP_OUTCOME_FAILED_OPEN);
	return ALLOW;
}

/* connect(2) to the unspecified address means this host: the address that the socket is
 * bound to, else the loopback (ip_route_connect, tcp_v6_connect). A rule must see the
 * address that is meant, or 0.0.0.0 would be a way around it. */
static __always_inline __be32 meant4(const struct bpf_sock_addr *ctx)
{
	__be32 bound = ctx->sk->src_ip4;

	if (ctx->user_ip4)
		return ctx->user_ip4;
	return bound ? bound : bpf_htonl(INADDR_LOOPBACK);
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	__u32 zero = 0;
	struct up_settings *s = bpf_map_lookup_elem(&settings, &zero);
	struct up_endpoint dst;
	int answer, intercept;

	if (!s || !ctx->sk)
		return ALLOW;
	endpoint4(&dst, meant4(ctx), (__be16)ctx->user_port);
	answer = on_connect(ctx, s, &dst, ctx->sk->src_ip4 != 0, &intercept);
	if (intercept) {
		ctx->user_ip4 = endpoint_v4(&s->listener4);
		ctx->user_port = s->listener4.port_be;
	}
	return answer;
}

/* The same for IPv6, whose sockets may be bound to an IPv4-mapped address. */
static __always_inline void meant6(const struct bpf_sock_addr *ctx, __u32 addr[4])
{
	__u32 bound4 = 0;

	if (ctx->sk->src_ip6[0] == 0 && ctx->sk->src_ip6[1] == 0 &&
	    ctx->sk->src_ip6[2] == bpf_htonl(0xffff))
		bound4 = ctx->sk->src_ip6[3];
	addr[0] = ctx->user_ip6[0];
	addr[1] = ctx->user_ip6[1];
	addr[2] = ctx->user_ip6[2];
	addr[3] = ctx->user_ip6[3];
	if (addr[0] | addr[1] | addr[3])
		return;
	if (addr[2] == bpf_htonl(0xffff)) {
		addr[3] = bound4 ? bound4 : bpf_htonl(INADDR_LOOPBACK);
	} else if (!addr[2] && bound4) {
		addr[2] = bpf_htonl(0xffff);
		addr[3] = bpf_htonl(INADDR_LOOPBACK);
	} else if (!addr[2]) {
		addr[3] = bpf_htonl(1);
	}
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	__u32 zero = 0;
	struct up_settings *s = bpf_map_lookup_elem(&settings, &zero);
	__u32 addr[4], bound;
	struct up_endpoint dst;
	const struct up_endpoint *listener;
	int answer, intercept;

	if (!s || !ctx->sk)
		return ALLOW;
	meant6(ctx, addr);
	endpoint6(&dst, addr, (__be16)ctx->user_port);
	bound = ctx->sk->src_ip6[0] | ctx->sk->src_ip6[1] | ctx->sk->src_ip6[2] |
		ctx->sk->src_ip6[3];
	answer = on_connect(ctx, s, &dst, bound != 0, &intercept);
	if (intercept) {
		listener = dst.family == 4 ? &s->listener4 : &s->listener6;
		__builtin_memcpy(addr, listener->addr, sizeof(addr));
		ctx->user_ip6[0] = addr[0];
		ctx->user_ip6[1] = addr[1];
		ctx->user_ip6[2] = addr[2];
		ctx->user_ip6[3] = addr[3];
		ctx->user_port = listener->port_be;
	}
	return answer;
}
