/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * A socket filter on the agent's listeners: the SYN waits for the database.
 *
 * Fires for each packet of the listener. The SYN of an intercepted flow is copied to the
 * agent and dropped; the client's connect() stays where it would be while a real
 * handshake is under way. The agent dials the database and then lets the very same SYN
 * pass (it enters the socket into `releases` and sends the copy again), or answers it as
 * the database's host or the network would have (RST, ICMP), or not at all. So a refused,
 * unreachable or silent database fails in connect(), with the errno that it always had.
 *
 * Everything else passes, but for data that meets the listener right after its handshake.
 * Strangers who dial the listener themselves are accepted, counted and closed by the agent.
 * Accepted sockets inherit the filter.
 *
 * Reads releases; writes fresh, pending_connects, held, causes. When the agent is dead, so is the listener.
 */
#pragma once

#include "common.h"

#define PASS (-1)
#define DROP 0

#define TCP_FLAGS_AT 13
#define TCP_FLAG_SYN 0x02
#define TCP_FLAG_RST 0x04
#define TCP_FLAG_ACK 0x10

#define IPV4_HEADER_BYTES 20
#define IPV6_HEADER_BYTES 40
#define TCP_HEADER_BYTES_MIN 20

struct ipv4_header {
	__u8 version_ihl;
	__u8 skip[11];
	__be32 saddr;
	__be32 daddr;
};

struct ipv6_header {
	__u8 skip[4];
	__be16 payload_bytes;
	__u8 skip_more[2];
	__u32 saddr[4];
	__u32 daddr[4];
};

struct tcp_header {
	__be16 source;
	__be16 dest;
	__u8 skip[8];
	__u8 data_offset;
	__u8 flags;
};

static __always_inline __u32 tcp_bytes(const struct tcp_header *tcp)
{
	return (tcp->data_offset >> 4) * 4;
}

/* The client's address from the packet, and where TCP's header is, behind options and extension headers; 0 if this is no
 * packet of TCP. The filter sees the packet from there on. */
static __always_inline __u32 parse(struct __sk_buff *skb, const struct tcp_header *tcp,
				   struct up_endpoint *client)
{
	if (tcp_bytes(tcp) < TCP_HEADER_BYTES_MIN)
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct ipv4_header ip;

		if (bpf_skb_load_bytes_relative(skb, 0, &ip, sizeof(ip), BPF_HDR_START_NET))
			return 0;
		endpoint4(client, ip.saddr, tcp->source);
		return (ip.version_ihl & 0xf) * 4;
	} else {
		struct ipv6_header ip;

		if (bpf_skb_load_bytes_relative(skb, 0, &ip, sizeof(ip), BPF_HDR_START_NET))
			return 0;
		endpoint6(client, ip.saddr, tcp->source);
		return IPV6_HEADER_BYTES + bpf_ntohs(ip.payload_bytes) - skb->len;
	}
}

/* True when the agent has been told. */
static __always_inline int tell_agent(struct __sk_buff *skb, const struct up_connect *connect,
				      const struct up_connect_key *key, __u32 ip_bytes, __u32 bytes)
{
	struct up_held *event = bpf_ringbuf_reserve(&held, sizeof(*event), 0);

	if (!event)
		return 0;
	__builtin_memset(event, 0, sizeof(*event));
	event->connect = *connect;
	event->key = *key;
	event->syn_bytes = bytes;
	event->ip_bytes = ip_bytes;
	if (bytes > sizeof(event->syn) ||
	    bpf_skb_load_bytes_relative(skb, 0, event->syn, bytes, BPF_HDR_START_NET)) {
		bpf_ringbuf_discard(event, 0);
		return 0;
	}
	bpf_ringbuf_submit(event, 0);
	return 1;
}

/* The handshake's last packet passes this filter as one of the listener's. Then the kernel takes the
 * request out of its table of connections, and enters the accepted socket: who sends in between,
 * from another core than the one that sees to the handshake, finds neither but the listener, which
 * would reset the connection. Without an answer it is sent again. Once the agent has accepted it, what
 * comes belongs to a connection that is gone, and its sender has to hear so: what a client says of a
 * reset that came out of order is said once. */
static __always_inline int overtakes(struct __sk_buff *skb, const struct tcp_header *tcp)
{
	struct bpf_sock *sk = skb->sk;
	struct up_connect_key key = {};
	__u64 *answered, before, now;

	if (!sk || sk->state != BPF_TCP_LISTEN || tcp->flags & TCP_FLAG_RST)
		return 0;
	if (!parse(skb, tcp, &key.client))
		return 0;
	key.listener = bpf_get_socket_cookie(skb);
	answered = bpf_map_lookup_elem(&fresh, &key);
	if (!answered)
		return 0;
	now = bpf_ktime_get_ns();
	before = __sync_val_compare_and_swap(answered, 0, now);
	return before && now - before < UP_FRESH_NS;
}

SEC("socket")
int hold_syn(struct __sk_buff *skb)
{
	struct up_connect_key key = {};
	struct tcp_header tcp;
	struct up_connect *connect;
	__u8 half_second;
	__u64 cookie;
	__u32 ip_bytes, bytes;

	if (bpf_skb_load_bytes(skb, 0, &tcp, sizeof(tcp)))
		return PASS;
	if ((tcp.flags & (TCP_FLAG_SYN | TCP_FLAG_ACK)) != TCP_FLAG_SYN) {
		if (!overtakes(skb, &tcp))
			return PASS;
		count_cause(UP_CAUSE_OVERTAKEN);
		return DROP;
	}
	ip_bytes = parse(skb, &tcp, &key.client);
	bytes = ip_bytes + tcp_bytes(&tcp);
	if (ip_bytes < IPV4_HEADER_BYTES || ip_bytes > UP_SYN_BYTES || bytes > UP_SYN_BYTES) {
		count_cause(UP_CAUSE_ODD_SYN);
		return PASS;
	}
	/* The socket that is being filtered: the listener. */
	key.listener = bpf_get_socket_cookie(skb);
	connect = bpf_map_lookup_elem(&pending_connects, &key);
	if (!connect) {
		count_cause(UP_CAUSE_STRANGER);
		return PASS;
	}
	cookie = connect->cookie;
	if (bpf_map_lookup_elem(&releases, &cookie))
		return PASS;
	/* A SYN that the client sends again while it waits is told as such: the agent may have had no descriptors for the one
	 * before. A client sends one again after a second; whoever sends more of them takes no more of the ring. */
	half_second = 1 + bpf_ktime_get_ns() / UP_TOLD_AGAIN_NS % 255;
	if (connect->held == half_second)
		return DROP;
	if (tell_agent(skb, connect, &key, ip_bytes, bytes))
		connect->held = half_second;
	else
		count_cause(UP_CAUSE_RING_FULL);
	return DROP;
}
