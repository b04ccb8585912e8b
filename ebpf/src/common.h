/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Small things that every hook needs: counting, addresses. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>

#include "abi.h"
#include "maps.h"

#define AF_INET 2
#define AF_INET6 10
#define SOCK_STREAM 1

/* What a cgroup hook answers. */
#define REFUSE 0
#define ALLOW 1

static __always_inline void count_cause(__u32 cause)
{
	__u64 *n = bpf_map_lookup_elem(&causes, &cause);

	if (n)
		*n += 1;
}

static __always_inline void endpoint4(struct up_endpoint *e, __be32 addr, __be16 port)
{
	__builtin_memset(e, 0, sizeof(*e));
	e->addr[10] = 0xff;
	e->addr[11] = 0xff;
	__builtin_memcpy(&e->addr[12], &addr, sizeof(addr));
	e->port_be = port;
	e->family = 4;
}

/* `addr` as four words in network order; a mapped one becomes an IPv4 endpoint. */
static __always_inline void endpoint6(struct up_endpoint *e, const __u32 addr[4], __be16 port)
{
	if (addr[0] == 0 && addr[1] == 0 && addr[2] == bpf_htonl(0xffff)) {
		endpoint4(e, addr[3], port);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	__builtin_memcpy(e->addr, addr, sizeof(e->addr));
	e->port_be = port;
	e->family = 6;
}

static __always_inline __be32 endpoint_v4(const struct up_endpoint *e)
{
	__be32 addr;

	__builtin_memcpy(&addr, &e->addr[12], sizeof(addr));
	return addr;
}

/* Of a sock_ops program's socket. */
static __always_inline void local_end(struct up_endpoint *e, struct bpf_sock_ops *ops)
{
	__be16 port = bpf_htons((__u16)ops->local_port);
	__u32 addr[4];

	if (ops->family == AF_INET) {
		endpoint4(e, ops->local_ip4, port);
		return;
	}
	addr[0] = ops->local_ip6[0];
	addr[1] = ops->local_ip6[1];
	addr[2] = ops->local_ip6[2];
	addr[3] = ops->local_ip6[3];
	endpoint6(e, addr, port);
}

static __always_inline void remote_end(struct up_endpoint *e, struct bpf_sock_ops *ops)
{
	__be16 port = bpf_htons((__u16)bpf_ntohl(ops->remote_port));
	__u32 addr[4];

	if (ops->family == AF_INET) {
		endpoint4(e, ops->remote_ip4, port);
		return;
	}
	addr[0] = ops->remote_ip6[0];
	addr[1] = ops->remote_ip6[1];
	addr[2] = ops->remote_ip6[2];
	addr[3] = ops->remote_ip6[3];
	endpoint6(e, addr, port);
}
