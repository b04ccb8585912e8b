/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* The kernel's own types, as far as programs read them. The offsets are the running
 * kernel's: the loader fills them in. */
#pragma once

#include "common.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	__u64 counter;
} atomic64_t;

struct list_head {
	struct list_head *next;
};

struct wait_queue_entry {
	void *private;
	struct list_head entry;
};

struct wait_queue_head {
	struct list_head head;
};

struct socket_wq {
	struct wait_queue_head wait;
};

struct net_device {
	int ifindex;
};

struct dst_entry {
	struct net_device *dev;
};

struct proto {
	/* An atomic_long_t: what each CPU keeps ready may make it negative. */
	__s64 *memory_allocated;
};

struct sk_buff {
	char cb[48];
};

struct tcp_skb_cb {
	__u32 seq;
};

struct sk_buff_head {
	__u32 qlen;
};

struct sk_psock {
	__u32 msg_tot_len;
};

struct file {
	unsigned int f_flags;
};

struct socket {
	struct file *file;
};

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
	__u64 net_cookie;
};

typedef struct {
	__u32 val;
} kuid_t;

/* Attributes that were changed: absent while they are as at the beginning. */
struct kernfs_iattrs {
	kuid_t ia_uid;
};

struct kernfs_node {
	__u64 id;
	const char *name;
	struct kernfs_iattrs *iattr;
};

struct cgroup {
	struct kernfs_node *kn;
	int level;
	struct cgroup *ancestors[];
};

struct sock_cgroup_data {
	struct cgroup *cgroup;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	union {
		__u32 u6_addr32[4];
	} in6_u;
};

typedef struct {
	int counter;
} atomic_t;

typedef struct refcount_struct {
	atomic_t refs;
} refcount_t;

struct hlist_node {
	struct hlist_node *next, **pprev;
};

struct timer_list {
	struct hlist_node entry;
};

struct sock_common {
	atomic64_t skc_cookie;
	refcount_t skc_refcnt;
	struct proto *skc_prot;
	possible_net_t skc_net;
	unsigned short skc_family;
	unsigned char skc_state;
	__be32 skc_rcv_saddr;
	struct in6_addr skc_v6_rcv_saddr;
	__u16 skc_num;
};

struct sock {
	struct sock_common __sk_common;
	struct socket *sk_socket;
	struct sk_buff_head sk_receive_queue;
	struct socket_wq *sk_wq;
	struct dst_entry *sk_dst_cache;
	struct {
		int owned;
	} sk_lock;
	int sk_rcvlowat;
	int sk_rcvbuf;
	__u8 sk_userlocks : 4;
	int sk_wmem_queued;
	int sk_sndbuf;
	void *sk_user_data;
	/* Keepalive probes. */
	struct timer_list sk_timer;
	struct sock_cgroup_data sk_cgrp_data;
};

struct inet_sock {
	struct sock sk;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	struct timer_list icsk_retransmit_timer;
	struct timer_list icsk_delack_timer;
	/* An upper layer's: kTLS, MPTCP. */
	void *icsk_ulp_ops;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 write_seq;
	__u32 copied_seq;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 rcv_nxt;
	__u32 rcv_wup;
	__u32 rcv_wnd;
	__u8 bpf_sock_ops_cb_flags;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	void *map;
	struct sock *sk;
	void *value;
};

struct bpf_iter__sockmap {
	struct bpf_iter_meta *meta;
	void *map;
	void *key;
	struct sock *sk;
};

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};

#pragma clang attribute pop

/* asm-generic/fcntl.h */
#define O_NONBLOCK 04000

/* In a sockmap a recv(2) that blocks returns EAGAIN when it is woken for anything else than bytes,
 * such as room to send. No application expects that, unless its socket does not block anyway. */
static __always_inline int blocks(const struct tcp_sock *client)
{
	const struct sock *sk = &client->inet_conn.icsk_inet.sk;

	return !(BPF_CORE_READ(sk, sk_socket, file, f_flags) & O_NONBLOCK);
}

/* As an iterator shows a socket. */
static __always_inline void local_end_of(struct up_endpoint *e, const struct sock_common *sk)
{
	__be16 port = bpf_htons(sk->skc_num);
	__u32 addr[4];

	if (sk->skc_family == AF_INET) {
		endpoint4(e, sk->skc_rcv_saddr, port);
		return;
	}
	addr[0] = sk->skc_v6_rcv_saddr.in6_u.u6_addr32[0];
	addr[1] = sk->skc_v6_rcv_saddr.in6_u.u6_addr32[1];
	addr[2] = sk->skc_v6_rcv_saddr.in6_u.u6_addr32[2];
	addr[3] = sk->skc_v6_rcv_saddr.in6_u.u6_addr32[3];
	endpoint6(e, addr, port);
}

/* For tests of kTLS that is set up late, which not every kernel has: enrolled sockets with this port of their
 * own pass for another protocol's. 0: none does. */
const volatile __u32 upper_layer_port = 0;

static __always_inline int passes_for_upper_layer(__u32 port)
{
	return upper_layer_port && upper_layer_port == port;
}

/* Of sk_user_data: what it points to, in its lowest bits. */
#define USER_DATA_FLAGS 7ul
#define USER_DATA_PSOCK 4ul
