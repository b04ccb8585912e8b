/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* In the place of libbpf's header: the kernel's helpers as far as the programs that read need them, for this host. What they see
 * is what a caller of host.c has put there. */
#pragma once

#include <stddef.h>
#include <linux/types.h>

#define SEC(name)
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#define __noinline __attribute__((noinline))
#define __uint(name, val) int (*name)[val]
#define __type(name, val) val *name
#define __array(name, val) val *name[]

/* decide.h has it for clang, which need not be told here. */
#define NO_UNROLL

/* Each asm of these headers tells the verifier something: for this host it is nothing. */
#define asm
#define volatile(...)

void *bpf_map_lookup_elem(void *map, const void *key);
long bpf_map_update_elem(void *map, const void *key, const void *value, __u64 flags);
long bpf_map_delete_elem(void *map, const void *key);
long bpf_skb_load_bytes(const void *skb, __u32 off, void *to, __u32 bytes);
long bpf_msg_pull_data(struct sk_msg_md *msg, __u32 start, __u32 end, __u64 flags);
long bpf_loop(__u32 most, void *step, void *ctx, __u64 flags);
__u64 bpf_ktime_get_ns(void);
__u32 bpf_get_smp_processor_id(void);
void *bpf_ringbuf_reserve(void *ring, __u64 bytes, __u64 flags);
void bpf_ringbuf_submit(void *record, __u64 flags);
struct bpf_tcp_sock *bpf_tcp_sock(struct bpf_sock *sk);
__u64 bpf_xdp_get_buff_len(struct xdp_md *ctx);

/* The socket of packets here has no storage. */
static inline void *bpf_sk_storage_get(void *map, void *sk, void *value, __u64 flags)
{
	(void)map, (void)sk, (void)value, (void)flags;
	return NULL;
}
static inline long bpf_sk_storage_delete(void *map, void *sk)
{
	(void)map, (void)sk;
	return -1;
}
static inline struct bpf_sock *bpf_sk_fullsock(struct bpf_sock *sk)
{
	return sk;
}
