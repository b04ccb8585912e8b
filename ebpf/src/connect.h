/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * cgroup/connect4, cgroup/connect6: the decision.
 *
 * Fires in connect(2), in the caller's context, before a source address or port is
 * chosen, once per attempt (IPv4-mapped destinations arrive in connect6). Looks the
 * flow's rule up and leaves the socket alone (bypass; observe marks it for the meter), refuses it (deny: EPERM), or
 * sends it to the agent's listener (enrich) and keeps the original destination with the
 * socket. What dials a virtual address and is not sent to the agent goes to a backend (balance.h). Where the session decides, and has decided of another connection of the process, it is
 * left alone (recall.h). Of a rule with a holdout some flows are left alone and metered, as its others are, so that
 * `underpass overhead` can compare them.
 *
 * Reads settings, netns_agents, full_quotas, shortcut_limits, policies, rules, targets, uids, gids, processes, cgroups, namespaces,
 * remembered, backend_slots, backends, client_connections. Writes client_connections, counted,
 * flows, observed, shortcut_wishes, virtuals, balanced, decisions, causes, unserved, denials; deletes from releases.
 *
 * When the agent is dead its listener is gone, which the socket look-up sees at once:
 * the rule's `fail` decides. No heartbeat, no race with a timer.
 */
#pragma once

#include "balance.h"
#include "denial.h"
#include "limit.h"
#include "quota.h"
#include "recall.h"

/* Is the agent listening in this very namespace? The cookie, which is no other socket's ever, tells
 * its listener from a stranger's on the same port. */
static __noinline int agent_listens(struct bpf_sock_addr *ctx, const struct up_netns_agent *o,
				    int family)
{
	__u64 cookie = family == 4 ? o->cookie4 : o->cookie6;
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *listener;
	struct tcp_sock *t;
	int found = 0;
	__u32 size;

	if (family == 4) {
		tuple.ipv4.daddr = endpoint_v4(&o->listener4);
		tuple.ipv4.dport = o->listener4.port_be;
		size = sizeof(tuple.ipv4);
	} else {
		__builtin_memcpy(tuple.ipv6.daddr, o->listener6.addr, 16);
		tuple.ipv6.dport = o->listener6.port_be;
		size = sizeof(tuple.ipv6);
	}
	listener = bpf_sk_lookup_tcp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!listener)
		return 0;
	t = listener->state == BPF_TCP_LISTEN ? bpf_skc_to_tcp_sock(listener) : 0;
	if (t)
		found = BPF_CORE_READ(t, inet_conn.icsk_inet.sk.__sk_common.skc_cookie.counter) == cookie;
	bpf_sk_release(listener);
	return found;
}

/* Why the agent could not dial what this socket dials, or UP_CAUSES when it can. */
static __always_inline __u32 elsewhere(const struct bpf_sock *sk, const struct up_endpoint *dst)
{
	/* Bound to a device, it would never reach the loopback. */
	if (sk->bound_dev_if)
		return UP_CAUSE_BOUND_TO_DEVICE;
	/* The scope of fe80::/10 is not visible here, so it could not be dialled again. */
	if (dst->family == 6 && dst->addr[0] == 0xfe && (dst->addr[1] & 0xc0) == 0x80)
		return UP_CAUSE_LINK_LOCAL;
	return UP_CAUSES;
}

/* The agent is to come here. When there is no room it has been called often enough. */
static __always_inline void call_for_netns_agent(__u64 netns_cookie)
{
	struct up_unserved *call = bpf_ringbuf_reserve(&unserved, sizeof(*call), 0);
	__u64 ids = bpf_get_current_pid_tgid();

	if (!call)
		return;
	call->netns_cookie = netns_cookie;
	call->inode = netns_inode();
	call->tgid = ids >> 32;
	call->tid = (__u32)ids;
	call->pad = 0;
	bpf_ringbuf_submit(call, 0);
}

/* Its sockets in this namespace; NULL, and why, if it has none. */
static __always_inline struct up_netns_agent *netns_agent(const struct up_agent_settings *s, __u64 netns_cookie,
						 __u32 *cause)
{
	struct up_netns_agent *o = bpf_map_lookup_elem(&netns_agents, &netns_cookie);

	if (o)
		return o;
	if (s->tgid) {
		*cause = UP_CAUSE_NO_NETNS_AGENT;
		call_for_netns_agent(netns_cookie);
	} else {
		*cause = UP_CAUSE_FOREIGN_NETNS;
	}
	return 0;
}

/* Why the agent does not take this flow, or UP_CAUSES when it does. */
static __always_inline __u32 agent_refuses(struct bpf_sock_addr *ctx, const struct up_agent_settings *s,
					   const struct up_netns_agent *o,
					   const struct up_endpoint *dst, const struct holder *holder)
{
	if (s->full)
		return UP_CAUSE_AGENT_FULL;
	if (!agent_listens(ctx, o, dst->family))
		return UP_CAUSE_AGENT_AWAY;
	return s->full_quotas ? quota_refuses(holder) : UP_CAUSES;
}

static __always_inline void describe(struct up_connect *connect, struct bpf_sock_addr *ctx,
				     const struct up_agent_settings *s, const struct up_endpoint *dst,
				     const struct decision *d, const __u8 comm[UP_COMM_BYTES])
{
	opener(&connect->opener, bpf_get_netns_cookie(ctx), dst, comm);
	connect->cookie = bpf_get_socket_cookie(ctx);
	connect->slot = d->slot;
	connect->generation = d->generation;
	connect->taps = d->taps;
	connect->group = d->group;
	/* Read after the generation: no earlier policy passes for one that has been forgotten. */
	connect->forgets = s->forgets;
}

static __always_inline int keep_flow(struct bpf_sock_addr *ctx, struct bpf_sock *sk,
				     const struct up_agent_settings *s, const struct up_netns_agent *o,
				     const struct up_endpoint *dst, const struct decision *d,
				     const struct holder *holder, const __u8 comm[UP_COMM_BYTES],
				     int bound)
{
	struct up_flow *flow = bpf_sk_storage_get(&flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (!flow)
		return 0;
	__builtin_memset(flow, 0, sizeof(*flow));
	describe(&flow->connect, ctx, s, dst, d, comm);
	flow->key.listener = dst->family == 4 ? o->cookie4 : o->cookie6;
	flow->connect.bound = bound;
	flow->connect.bound_port = sk->src_port != 0;
	flow->connect.unlimited = holder->unlimited;
	flow->connect.holder_cgroup_id = holder->cgroup_id;
	return 1;
}

/* Marks the socket for the meter. */
static __always_inline void observe(struct bpf_sock_addr *ctx, struct bpf_sock *sk,
				    const struct up_agent_settings *s, const struct up_endpoint *dst,
				    const struct decision *d, const __u8 comm[UP_COMM_BYTES])
{
	struct up_observed *o;

	if (s->unmetered) {
		count_cause(UP_CAUSE_OBSERVE_OFF);
		return;
	}
	o = bpf_sk_storage_get(&observed, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (o)
		describe(&o->connect, ctx, s, dst, d, comm);
	else
		count_cause(UP_CAUSE_NO_MEMORY);
}

/* Whether so few flows of the rule have begun on this processor, under this policy, that none of them had to be held out yet.
 * There is nothing to compare then, and whoever has few connections would miss each. */
static __always_inline int has_few_flows(const struct decision *d)
{
	__u32 index = d->generation * UP_RULE_SLOTS + d->slot;
	struct up_decisions *n = bpf_map_lookup_elem(&decisions, &index);
	__u64 flows = 0;

	if (!n)
		return 1;
	for (int i = 0; i < UP_OUTCOMES; i++)
		flows += n->by_outcome[i];
	return flows < (1ull << 32) / d->holdout;
}

/* Draws whether this flow is left alone so that others of its rule can be compared with it, and which those are. Nothing is
 * held out that cannot be compared. */
static __always_inline void draw_group(const struct up_agent_settings *s, struct decision *d)
{
	__u64 drawn;

	if (!d->holdout || s->unmetered || d->drawn_out || has_few_flows(d))
		return;
	drawn = bpf_get_prandom_u32();
	if (drawn >= (__u64)d->holdout * (1 + UP_TREATED_PER_HELD_OUT))
		return;
	if (drawn >= d->holdout) {
		d->group = d->action == UP_ACTION_ENRICH ? UP_GROUP_TREATED_INLINE : UP_GROUP_TREATED;
		return;
	}
	d->group = UP_GROUP_HELD_OUT;
	d->action = UP_ACTION_OBSERVE;
	d->taps = UP_TAP_NOTHING;
}

/* Why a flow from here cannot take the shortcut, or UP_CAUSES when it can. */
static __always_inline __u32 shortcut_refuses(struct bpf_sock_addr *ctx, const struct up_agent_settings *s)
{
	__u32 zero = 0;
	struct up_shortcut_limits *limits = bpf_map_lookup_elem(&shortcut_limits, &zero);

	if (!limits || limits->until_ns < bpf_ktime_get_coarse_ns())
		return UP_CAUSE_SHORTCUT_OFF;
	if (bpf_get_netns_cookie(ctx) != s->netns_cookie)
		return UP_CAUSE_FOREIGN_NETNS;
	return UP_CAUSES;
}

/* Marks the socket for the shortcut, which begins when it is established (shortcut.h). */
static __always_inline void wish_shortcut(struct bpf_sock_addr *ctx, struct bpf_sock *sk,
					  const struct up_agent_settings *s,
					  const struct up_endpoint *dst, const struct decision *d,
					  const __u8 comm[UP_COMM_BYTES])
{
	__u32 cause = shortcut_refuses(ctx, s);
	struct up_shortcut_wish *wish;

	wish = bpf_sk_storage_get(&shortcut_wishes, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!wish) {
		count_cause(cause == UP_CAUSES ? UP_CAUSE_NO_MEMORY : cause);
		return;
	}
	describe(&wish->connect, ctx, s, dst, d, comm);
	wish->wished_ns = bpf_ktime_get_ns();
	wish->refusal = 0;
	if (cause == UP_CAUSES)
		return;
	count_cause(cause);
	wish->refusal = 1 + cause;
}

/* A socket that was intercepted, failed to connect and is used again: forget the past. */
static __always_inline void forget(struct bpf_sock_addr *ctx, struct bpf_sock *sk)
{
	__u64 cookie;

	bpf_sk_storage_delete(&observed, sk);
	bpf_sk_storage_delete(&shortcut_wishes, sk);
	bpf_sk_storage_delete(&virtuals, sk);
	if (bpf_sk_storage_delete(&flows, sk))
		return;
	cookie = bpf_get_socket_cookie(ctx);
	bpf_map_delete_elem(&releases, &cookie);
}

/* Whether a flow does not pass for this cause. What whoever connects brings about himself, at will, does not
 * let him past a rule that protects, whatever its `fail` says: that is for failures of the agent's. */
static __always_inline int is_closed(const struct decision *d, __u32 cause)
{
	int is_chosen = cause == UP_CAUSE_BOUND_TO_DEVICE || cause == UP_CAUSE_LINK_LOCAL ||
			cause == UP_CAUSE_USER_FULL || cause == UP_CAUSE_CGROUP_FULL;

	return d->fail == UP_FAIL_CLOSED || (d->protects && is_chosen);
}

static __always_inline int deny(struct bpf_sock_addr *ctx, const struct up_endpoint *dst,
				const struct decision *d, const __u8 comm[UP_COMM_BYTES], __u32 cause)
{
	struct up_denial *denial = begin_denial(d, cause, dst);

	if (denial) {
		opener(&denial->opener, bpf_get_netns_cookie(ctx), dst, comm);
		bpf_ringbuf_submit(denial, 0);
	}
	return REFUSE;
}

/* What the agent should have served, or no backend takes. */
static __always_inline int fail(struct bpf_sock_addr *ctx, const struct up_endpoint *dst,
				const struct decision *d, const __u8 comm[UP_COMM_BYTES], __u32 cause)
{
	count_cause(cause);
	if (is_closed(d, cause)) {
		count_outcome(d, UP_OUTCOME_FAILED_CLOSED);
		return deny(ctx, dst, d, comm, cause);
	}
	count_outcome(d, UP_OUTCOME_FAILED_OPEN);
	return ALLOW;
}

/* Whether this is a dial of the agent's. */
static __always_inline int is_agents_own(const struct up_agent_settings *s, const struct bpf_sock *sk,
					 __u64 netns_cookie)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;

	if (sk->mark == s->mark && (netns_cookie == s->netns_cookie ||
				    bpf_map_lookup_elem(&incoming_netns, &netns_cookie)))
		return 1;
	return s->tgid && (tgid == s->tgid || tgid == s->before_tgid) &&
	       netns_cookie != s->netns_cookie && bpf_map_lookup_elem(&netns_agents, &netns_cookie);
}

/* Returns what the hook answers; sets `to` when the destination is to be another: the agent's
 * listener, or a backend. */
static __always_inline int on_connect(struct bpf_sock_addr *ctx, const struct up_agent_settings *s,
				      const struct up_endpoint *dst, int bound,
				      const struct up_endpoint **to)
{
	struct bpf_sock *sk = ctx->sk;
	__u8 comm[UP_COMM_BYTES] = {};
	struct up_netns_agent *o = 0;
	struct decision d = {};
	struct holder holder = {};
	__u32 outcome = UP_OUTCOME_UNTOUCHED;
	__u32 cause = UP_CAUSES;
	__u64 netns;

	*to = 0;
	if (!sk || ctx->type != SOCK_STREAM || ctx->protocol != IPPROTO_TCP)
		return ALLOW;
	netns = bpf_get_netns_cookie(ctx);
	if (is_agents_own(s, sk, netns))
		return ALLOW;
	forget(ctx, sk);
	process_name(comm);
	if (!decide(s, dst, comm, &d))
		return ALLOW;
	if (d.drawn_out)
		d.action = UP_ACTION_BYPASS;
	draw_group(s, &d);
	if (d.limited)
		limit_client(sk, &d);
	if (d.action == UP_ACTION_ENRICH)
		cause = elsewhere(sk, dst);
	if (d.action == UP_ACTION_ENRICH && cause == UP_CAUSES)
		o = netns_agent(s, netns, &cause);
	if (d.recalls && o && recall(s, netns, dst, comm, &d))
		outcome = UP_OUTCOME_REMEMBERED;
	if (d.balanced && (d.action == UP_ACTION_BYPASS || d.action == UP_ACTION_OBSERVE)) {
		*to = draw(&d);
		if (!*to)
			return fail(ctx, dst, &d, comm, UP_CAUSE_NO_BACKEND);
		keep_virtual(sk, dst);
		if (outcome == UP_OUTCOME_UNTOUCHED)
			outcome = UP_OUTCOME_BALANCED;
	}
	if (d.action == UP_ACTION_BYPASS) {
		count_outcome(&d, outcome);
		if (d.shortcut)
			wish_shortcut(ctx, sk, s, dst, &d, comm);
		return ALLOW;
	}
	if (d.action == UP_ACTION_OBSERVE) {
		count_outcome(&d, outcome);
		observe(ctx, sk, s, dst, &d, comm);
		return ALLOW;
	}
	if (d.action == UP_ACTION_DENY) {
		count_outcome(&d, UP_OUTCOME_DENIED);
		return deny(ctx, dst, &d, comm, d.refused_for);
	}
	if (cause == UP_CAUSES && d.balanced && !has_backend(&d))
		cause = UP_CAUSE_NO_BACKEND;
	if (cause == UP_CAUSES && o)
		find_holder(&holder);
	if (cause == UP_CAUSES)
		cause = o ? agent_refuses(ctx, s, o, dst, &holder) : UP_CAUSE_AGENT_AWAY;
	if (cause == UP_CAUSES && o && !keep_flow(ctx, sk, s, o, dst, &d, &holder, comm, bound))
		cause = UP_CAUSE_NO_MEMORY;
	if (cause == UP_CAUSES && o) {
		count_outcome(&d, UP_OUTCOME_INTERCEPTED);
		if (d.group)
			observe(ctx, sk, s, dst, &d, comm);
		*to = dst->family == 4 ? &o->listener4 : &o->listener6;
		return ALLOW;
	}
	/* Straight to the database is to a backend, if one takes it. */
	if (d.balanced && !is_closed(&d, cause)) {
		*to = draw(&d);
		if (*to)
			keep_virtual(sk, dst);
	}
	return fail(ctx, dst, &d, comm, cause);
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
	struct up_agent_settings *s = bpf_map_lookup_elem(&settings, &zero);
	const struct up_endpoint *to;
	struct up_endpoint dst;
	int answer;

	if (!s || !ctx->sk)
		return ALLOW;
	endpoint4(&dst, meant4(ctx), (__be16)ctx->user_port);
	answer = on_connect(ctx, s, &dst, ctx->sk->src_ip4 != 0, &to);
	if (to) {
		ctx->user_ip4 = endpoint_v4(to);
		ctx->user_port = to->port_be;
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
	struct up_agent_settings *s = bpf_map_lookup_elem(&settings, &zero);
	__u32 addr[4], bound;
	struct up_endpoint dst;
	const struct up_endpoint *to;
	int answer;

	if (!s || !ctx->sk)
		return ALLOW;
	meant6(ctx, addr);
	endpoint6(&dst, addr, (__be16)ctx->user_port);
	bound = ctx->sk->src_ip6[0] | ctx->sk->src_ip6[1] | ctx->sk->src_ip6[2] |
		ctx->sk->src_ip6[3];
	answer = on_connect(ctx, s, &dst, bound != 0, &to);
	if (to) {
		__builtin_memcpy(addr, to->addr, sizeof(addr));
		ctx->user_ip6[0] = addr[0];
		ctx->user_ip6[1] = addr[1];
		ctx->user_ip6[2] = addr[2];
		ctx->user_ip6[3] = addr[3];
		ctx->user_port = to->port_be;
	}
	return answer;
}
