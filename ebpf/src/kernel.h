/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* The kernel's own types, as far as the splice reads them. The offsets are the running kernel's:
 * the loader fills them in. */
#pragma once

#include <linux/types.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	__s64 counter;
} atomic64_t;

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
	struct sk_buff_head ingress_skb;
};

struct sock_common {
	atomic64_t skc_cookie;
};

struct file {
	unsigned int f_flags;
};

struct socket {
	struct file *file;
};

struct sock {
	struct sock_common __sk_common;
	struct socket *sk_socket;
	int sk_wmem_queued;
	int sk_sndbuf;
	void *sk_user_data;
};

struct inet_sock {
	struct sock sk;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	const void *icsk_ulp_ops;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 write_seq;
	__u32 copied_seq;
	__u32 snd_una;
	__u32 rcv_nxt;
};

#pragma clang attribute pop
