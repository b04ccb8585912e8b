/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The readers of the BPF programs, compiled for this host: the same source that the kernel runs (the walk over frame positions,
 * the meter, the tap), with helpers that see what a caller has put here. One flow for each thread.
 */
#include <linux/bpf.h>

#include "../../../ebpf/src/frame_position.h"
#include "../../../ebpf/src/meter.h"

/* Bytes between two pieces of a message: nobody may read over them. */
#define BETWEEN 64
#define MAX_MESSAGE (1 << 16)

static __thread struct {
	const __u8 *packet;
	__u32 packet_bytes;
	/* A message in pieces, as the kernel has it. */
	__u8 message[MAX_MESSAGE];
	__u32 message_bytes;
	__u32 piece;
	struct up_meter meter;
	__u64 now_ns;
	__u8 *ring;
	__u32 ring_room;
	__u32 ring_used;
	__u64 cause;
	struct bpf_sock sk;
	struct bpf_tcp_sock tcp;
	__u32 misuse;
} host;

void *bpf_map_lookup_elem(void *map, const void *key)
{
	(void)key;
	if (map == &meters)
		return &host.meter;
	if (map == &tap_rings)
		return &host;
	if (map == &causes)
		return &host.cause;
	return NULL;
}

long bpf_map_update_elem(void *map, const void *key, const void *value, __u64 flags)
{
	(void)map, (void)key, (void)value, (void)flags;
	return -1;
}

long bpf_map_delete_elem(void *map, const void *key)
{
	(void)map, (void)key;
	return -1;
}

long bpf_skb_load_bytes(const void *skb, __u32 off, void *to, __u32 bytes)
{
	(void)skb;
	if (off > host.packet_bytes || bytes > host.packet_bytes - off)
		return -1;
	__builtin_memcpy(to, host.packet + off, bytes);
	return 0;
}

static __u8 *at(__u32 off)
{
	return host.message + off + (off / host.piece) * BETWEEN;
}

/* As the kernel does where all that is wanted is in one piece. What is in two would have to be copied: the walk does not ask. */
long bpf_msg_pull_data(struct sk_msg_md *msg, __u32 start, __u32 end, __u64 flags)
{
	__u32 piece_end;

	(void)flags;
	if (start >= end || end > host.message_bytes)
		return -1;
	if (start / host.piece != (end - 1) / host.piece) {
		host.misuse += 1;
		return -1;
	}
	piece_end = (start / host.piece + 1) * host.piece;
	if (piece_end > host.message_bytes)
		piece_end = host.message_bytes;
	msg->data = at(start);
	msg->data_end = at(piece_end - 1) + 1;
	return 0;
}

long bpf_loop(__u32 most, void *step, void *ctx, __u64 flags)
{
	long (*next)(__u32, void *) = step;
	__u32 n;

	(void)flags;
	for (n = 0; n < most; n++)
		if (next(n, ctx))
			return n + 1;
	return n;
}

__u64 bpf_ktime_get_ns(void)
{
	return host.now_ns;
}

__u32 bpf_get_smp_processor_id(void)
{
	return 0;
}

/* Each record is behind its length. */
void *bpf_ringbuf_reserve(void *ring, __u64 bytes, __u64 flags)
{
	__u64 whole = 8 + (bytes + 7) / 8 * 8;
	__u8 *record = host.ring + host.ring_used;

	(void)ring, (void)flags;
	if (whole > host.ring_room - host.ring_used)
		return NULL;
	__builtin_memcpy(record, &bytes, sizeof(bytes));
	host.ring_used += whole;
	return record + 8;
}

void bpf_ringbuf_submit(void *record, __u64 flags)
{
	(void)record, (void)flags;
}

struct bpf_tcp_sock *bpf_tcp_sock(struct bpf_sock *sk)
{
	(void)sk;
	return &host.tcp;
}

/* Walks over a packet. */
void up_host_walk_packet(struct up_frame_position *p, const __u8 *bytes, __u32 n)
{
	struct __sk_buff skb = { .len = n };

	host.packet = bytes;
	host.packet_bytes = n;
	walk_packet(p, &skb);
}

/* Walks over a message that lies in pieces. Not 0: bytes of two pieces were asked for at once, or there is no room for it. */
__u32 up_host_walk_message(struct up_frame_position *p, const __u8 *bytes, __u32 n, __u32 piece)
{
	struct sk_msg_md msg = { .size = n };

	if (!piece || !n || n + (n / piece + 1) * BETWEEN > MAX_MESSAGE)
		return 1;
	host.message_bytes = n;
	host.piece = piece;
	host.misuse = 0;
	for (__u32 off = 0; off < n; off++)
		*at(off) = bytes[off];
	msg.data = at(0);
	msg.data_end = at((piece < n ? piece : n) - 1) + 1;
	walk_message(p, &msg);
	return host.misuse;
}

/* A flow of which this much is copied begins with these sequence numbers. */
void up_host_begin(__u8 taps, __u32 request_seq, __u32 response_seq)
{
	__builtin_memset(&host.meter, 0, sizeof(host.meter));
	host.meter.connect.taps = taps;
	begin_reading(&host.meter.requests.at, request_seq);
	begin_reading(&host.meter.responses.at, response_seq);
}

/* A packet passes, and all bytes up to `passed` have before it. Returns how many bytes of records were written to the ring. */
__u32 up_host_packet(__u32 is_request, __u32 seq, __u32 passed, __u64 now_ns, const __u8 *bytes, __u32 n,
		     __u8 *ring, __u32 ring_bytes)
{
	struct __sk_buff skb = { .len = n, .sk = &host.sk };
	struct walk w = { .skb = &skb, .is_request = is_request };

	host.packet = bytes;
	host.packet_bytes = n;
	host.now_ns = now_ns;
	host.tcp.snd_nxt = host.tcp.rcv_nxt = passed;
	host.ring = ring;
	host.ring_room = ring_bytes;
	host.ring_used = 0;
	read_payload(&w, &host.meter, direction(&host.meter, is_request), 0, seq, n, is_request);
	return host.ring_used;
}

const struct up_meter *up_host_meter(void)
{
	return &host.meter;
}
