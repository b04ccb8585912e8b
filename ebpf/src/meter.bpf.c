/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * cgroup_skb, egress and ingress: the meter.
 *
 * Reads the CQL headers of observed flows in passing: what was asked, what was answered, and
 * how long it took from a request's header leaving the host's TCP to its response's coming in.
 * Attached only while a rule observes; a packet of another flow costs one failed look-up in its
 * socket's own storage.
 *
 * A direction is followed by TCP sequence number. `next` is the next byte that matters: a
 * header's first, or the first that a packet's end cut off. What lies before it was seen
 * (a retransmission) or is a body; what lies beyond it means that it was not seen: a hole. So
 * GRO and TSO, many frames in a packet and a frame over many packets need no case of their own.
 *
 * Behind a hole reading goes on with the next packet that begins with a header. If that is the very
 * packet behind it, the hole may still be filled: what was lost comes again, what was overtaken
 * comes late, and a cursor waits for it. One hole for each direction; if another opens before it
 * is filled, or no header follows it, that is a gap: headers were missed, and counted as such.
 *
 * Reads observed, new_meter; reads and writes meters; writes causes. Answers ALLOW, always. Never
 * writes to a packet: the kernel refuses a program of this type that would. A flow whose bytes
 * are no CQL (TLS) is one that is never in sync.
 */
#include "common.h"
#include "frames.h"

/* 64 KiB of the shortest frames; a larger packet's rest counts as a gap. */
#define MAX_HEADERS 8192
#define STREAM_OF_EVENTS 0x8000
/* TCP's largest window. What is further ahead is nothing that the receiver would take. */
#define MAX_WINDOW (1 << 30)
/* How often to look whether another CPU has read its packet, which takes it microseconds. */
#define MAX_TRIES 1000
#define SYN 2
#define IPV6_HEADER 40
#ifndef IPPROTO_HOPOPTS
#define IPPROTO_HOPOPTS 0
#endif

enum { CQL_ERROR = 0, CQL_STARTUP = 1, CQL_READY = 2, CQL_AUTHENTICATE = 3 };

/* For tests, which run the programs on packets that have no socket: all are of one flow. */
const volatile __u32 meter_without_socket = 0;

/* Constant during a walk; what changes is in the cursor. */
struct walk {
	struct __sk_buff *skb;
	__u64 cookie;
	__u64 now_ns;
	__u32 is_egress;
};

static __always_inline struct up_direction *direction(struct up_meter *m, __u32 is_egress)
{
	return is_egress ? &m->requests : &m->responses;
}

static __always_inline void advance(struct up_cursor *at, __u32 bytes)
{
	at->off += bytes;
	at->next += bytes;
}

static __always_inline void lose(struct up_direction *d)
{
	d->gaps += 1;
	d->at.sync = UP_SYNC_LOST;
	d->at.have = 0;
	d->at.segment_left = 0;
	d->at.frame_left = 0;
}

/* Log-linear: below UP_LATENCY_STEPS a bucket for each unit, then as many for each doubling. */
static __always_inline __u32 bucket_of(__u32 units)
{
	__u32 doublings = 0, rest = units;

	if (units < UP_LATENCY_STEPS)
		return units;
	if (rest >> 16) {
		doublings += 16;
		rest >>= 16;
	}
	if (rest >> 8) {
		doublings += 8;
		rest >>= 8;
	}
	if (rest >> 4) {
		doublings += 4;
		rest >>= 4;
	}
	if (rest >> 2) {
		doublings += 2;
		rest >>= 2;
	}
	doublings += rest >> 1;
	return (doublings - 4) * UP_LATENCY_STEPS +
	       ((units >> (doublings - 5)) & (UP_LATENCY_STEPS - 1));
}

/* An index that the verifier believes; clang would keep the check on another register. */
#define BOUNDED(index, mask) asm volatile("%0 &= " #mask : "+r"(index))

static __always_inline __u32 units(__u64 ns)
{
	return (__u32)(ns / UP_LATENCY_UNIT_NS);
}

static __always_inline void on_request(struct up_meter *m, __u64 now_ns, __u32 stream)
{
	if (stream >= UP_METER_STREAMS)
		return;
	BOUNDED(stream, 511);
	/* Never 0, which is none: half a microsecond at most. */
	m->started[stream] = units(now_ns) | 1;
}

static __always_inline void on_response(struct up_meter *m, __u64 now_ns, __u32 stream)
{
	__u32 started = 0, took, bucket;

	if (stream >= STREAM_OF_EVENTS)
		return;
	if (stream < UP_METER_STREAMS) {
		BOUNDED(stream, 511);
		started = m->started[stream];
		m->started[stream] = 0;
	}
	if (!started) {
		m->unmatched += 1;
		return;
	}
	took = (units(now_ns) | 1) - started;
	m->latency_sum_ns += (__u64)took * UP_LATENCY_UNIT_NS;
	bucket = bucket_of(took);
	if (bucket >= UP_LATENCY_BUCKETS)
		bucket = UP_LATENCY_BUCKETS - 1;
	BOUNDED(bucket, 1023);
	if (bucket < UP_LATENCY_BUCKETS)
		m->latencies[bucket] += 1;
}

/* Direction, version and opcode as they may be, a body no longer than is allowed. */
static __always_inline int is_header(const __u8 *header, __u32 is_egress)
{
	__u32 version = header[0] & 0x7f;

	return (header[0] >> 7) != is_egress && version >= 3 && version <= 6 &&
	       header[4] < UP_OPCODES && body_of(header) <= MAX_BODY;
}

static __always_inline void on_frame(struct walk *w, struct up_meter *m, struct up_direction *d)
{
	const __u8 *header = d->at.header;
	__u32 stream = (__u32)header[2] << 8 | header[3];
	__u32 version = header[0] & 0x7f;
	__u32 opcode = header[4] & 31;

	d->frames += 1;
	if (opcode < UP_OPCODES)
		d->by_opcode[opcode] += 1;
	if (w->is_egress) {
		if (opcode == CQL_STARTUP)
			m->version = version;
		on_request(m, w->now_ns, stream);
		return;
	}
	on_response(m, w->now_ns, stream);
	/* From here on both sides speak in segments. The client says nothing before it knows. */
	if ((opcode == CQL_READY || opcode == CQL_AUTHENTICATE) && m->version == 5 &&
	    version == 5 && d->at.framing == UP_FRAMING_FRAMES) {
		m->requests.at.framing = UP_FRAMING_UNSURE;
		m->responses.at.framing = UP_FRAMING_UNSURE;
	}
}

/* CRC24 of a v5 segment's header, bit by bit: once per flow and direction. */
static __noinline __u32 crc24(__u64 bytes, __u32 count)
{
	__u32 crc = 0x875060;

	for (__u32 i = 0; i < 5; i++) {
		if (i >= count)
			break;
		crc ^= (__u32)(bytes & 0xff) << 16;
		bytes >>= 8;
		for (int bit = 0; bit < 8; bit++) {
			crc <<= 1;
			if (crc & 0x1000000)
				crc ^= 0x1974f0b;
		}
	}
	return crc & 0xffffff;
}

/* At least the shorter header is whole. */
static __always_inline void on_segment(struct up_direction *d)
{
	struct up_cursor *at = &d->at;
	const __u8 *h = at->header;
	__u64 head = (__u64)h[0] | (__u64)h[1] << 8 | (__u64)h[2] << 16 | (__u64)h[3] << 24 |
		     (__u64)h[4] << 32;
	__u32 payload = (__u32)head & 0x1ffff;
	__u32 take;

	if (at->framing == UP_FRAMING_UNSURE) {
		__u32 crc = (__u32)h[3] | (__u32)h[4] << 8 | (__u32)h[5] << 16;

		at->framing = crc24(head & 0xffffff, 3) == crc ? UP_FRAMING_SEGMENTS
								: UP_FRAMING_SEGMENTS_LZ4;
	}
	if (at->framing == UP_FRAMING_SEGMENTS_LZ4 && at->have < SEGMENT_HEADER_LZ4)
		return;
	at->have = 0;
	d->segments += 1;
	/* The length without compression is not 0: what is inside cannot be read. */
	if (at->framing == UP_FRAMING_SEGMENTS_LZ4 && ((head >> 17) & 0x1ffff)) {
		d->compressed += 1;
		advance(at, payload + SEGMENT_CRC);
		return;
	}
	take = at->frame_left < payload ? at->frame_left : payload;
	advance(at, take);
	at->frame_left -= take;
	at->segment_left = payload - take;
	if (!at->segment_left)
		advance(at, SEGMENT_CRC);
}

/* The body that follows a frame's header, and the segment's end if it reaches that. */
static __always_inline int skip_body(struct up_cursor *at)
{
	__u32 body = body_of(at->header);
	__u32 left = at->segment_left;
	__u32 take;

	if (!left) {
		advance(at, body);
		return 1;
	}
	if (left < FRAME_HEADER)
		return 0;
	left -= FRAME_HEADER;
	take = body < left ? body : left;
	advance(at, take);
	at->frame_left = body - take;
	at->segment_left = left - take;
	if (!at->segment_left)
		advance(at, SEGMENT_CRC);
	return 1;
}

static __always_inline __u32 header_bytes(const struct up_cursor *at)
{
	if (at->framing == UP_FRAMING_FRAMES || at->segment_left)
		return FRAME_HEADER;
	return at->framing == UP_FRAMING_SEGMENTS_LZ4 ? SEGMENT_HEADER_LZ4 : SEGMENT_HEADER;
}

/* Completes the header as far as the packet has it. False: it does not have it all. */
static __always_inline int collect(struct walk *w, struct up_cursor *at, __u32 want)
{
	if (want == FRAME_HEADER && !at->have && at->end - at->off >= FRAME_HEADER) {
		if (bpf_skb_load_bytes(w->skb, at->off, at->header, FRAME_HEADER))
			return 0;
		advance(at, FRAME_HEADER);
		return 1;
	}
	/* Byte by byte: segments, and headers that a packet's end cuts. */
	ROLLED for (int i = 0; i < FRAME_HEADER; i++) {
		__u64 have = at->have;

		if (have >= want || at->off >= at->end)
			break;
		asm volatile("%0 &= 15" : "+r"(have));
		if (have >= sizeof(at->header) ||
		    bpf_skb_load_bytes(w->skb, at->off, &at->header[have], 1))
			return 0;
		at->have += 1;
		advance(at, 1);
	}
	return at->have >= want;
}

/* One header; 1 ends the walk. */
static long step(__u32 n, void *ctx)
{
	struct walk *w = ctx;
	struct up_meter *m = bpf_map_lookup_elem(&meters, &w->cookie);
	struct up_direction *d;
	__u32 want;

	(void)n;
	if (!m)
		return 1;
	d = direction(m, w->is_egress);
	if (d->at.off >= d->at.end)
		return 1;
	want = header_bytes(&d->at);
	if (!collect(w, &d->at, want))
		return 1;
	if (want != FRAME_HEADER) {
		on_segment(d);
		return 0;
	}
	d->at.have = 0;
	if (!is_header(d->at.header, w->is_egress)) {
		lose(d);
		return 1;
	}
	on_frame(w, m, d);
	if (!skip_body(&d->at)) {
		lose(d);
		return 1;
	}
	return 0;
}

/* Whether a packet behind a hole begins with a frame's header, and is a chain of two or ends where
 * the first does. Segments have a checksum that says it; one that is not self-contained may be a
 * frame's middle. */
static __always_inline int begins_with_header(struct __sk_buff *skb, const struct up_cursor *at,
					      __u32 off, __u32 is_egress)
{
	__u8 header[FRAME_HEADER];
	__u32 next;

	if (bpf_skb_load_bytes(skb, off, header, sizeof(header)))
		return 0;
	if (at->framing != UP_FRAMING_FRAMES) {
		__u64 head = (__u64)header[0] | (__u64)header[1] << 8 | (__u64)header[2] << 16 |
			     (__u64)header[3] << 24 | (__u64)header[4] << 32;
		__u32 at_crc = at->framing == UP_FRAMING_SEGMENTS_LZ4 ? 5 : 3;
		__u64 self_contained = at_crc == 5 ? 1ull << 34 : 1ull << 17;
		__u32 crc = at_crc == 5 ? (__u32)header[5] | (__u32)header[6] << 8 | (__u32)header[7] << 16
					: (__u32)header[3] | (__u32)header[4] << 8 | (__u32)header[5] << 16;

		if (at_crc == 3)
			head &= 0xffffff;
		return (head & self_contained) && crc24(head, at_crc) == crc;
	}
	if (!is_header(header, is_egress))
		return 0;
	next = off + FRAME_HEADER + body_of(header);
	if (next >= skb->len)
		return next == skb->len;
	return !bpf_skb_load_bytes(skb, next, header, sizeof(header)) &&
	       is_header(header, is_egress);
}

/* The client's side, from the SYN that it sends. */
static __always_inline void keep_client(struct up_meter *m, const __u8 *ip, const __u8 *tcp)
{
	__be16 port;
	__be32 addr4;
	__u32 addr6[4];

	__builtin_memcpy(&port, tcp, sizeof(port));
	if ((ip[0] >> 4) == 4) {
		__builtin_memcpy(&addr4, &ip[12], sizeof(addr4));
		endpoint4(&m->client, addr4, port);
	} else {
		__builtin_memcpy(addr6, &ip[8], sizeof(addr6));
		endpoint6(&m->client, addr6, port);
	}
}

/* Where TCP's header is; 0: there is none. Of IPv6's extension headers only the one that the
 * kernel itself puts in: hop by hop, with the length of a packet of more than 64 KiB. */
static __always_inline __u32 tcp_at(struct __sk_buff *skb, const __u8 *ip)
{
	__u8 extension[2];

	if ((ip[0] >> 4) == 4)
		return ip[9] == IPPROTO_TCP ? (ip[0] & 15) * 4 : 0;
	if (ip[6] == IPPROTO_TCP)
		return IPV6_HEADER;
	if (ip[6] != IPPROTO_HOPOPTS ||
	    bpf_skb_load_bytes(skb, IPV6_HEADER, extension, sizeof(extension)) ||
	    extension[0] != IPPROTO_TCP)
		return 0;
	return IPV6_HEADER + (extension[1] + 1) * 8;
}

/* The flow begins: its SYN leaves. */
static __always_inline struct up_meter *begin(const struct up_leg *leg, __u64 cookie)
{
	__u32 zero = 0;
	struct up_meter *m = bpf_map_lookup_elem(&new_meter, &zero);

	if (!m || bpf_map_update_elem(&meters, &cookie, m, BPF_ANY)) {
		count_cause(UP_CAUSE_METERS_FULL);
		return 0;
	}
	m = bpf_map_lookup_elem(&meters, &cookie);
	if (!m)
		return 0;
	m->leg = *leg;
	m->opened_ns = bpf_ktime_get_ns();
	return m;
}

/* Reads the packet's bytes from `off` to `end`. */
static __always_inline void walk(struct walk *w, struct up_direction *d, __u32 off, __u32 end)
{
	d->at.off = off;
	d->at.end = end;
	w->now_ns = bpf_ktime_get_ns();
	bpf_loop(MAX_HEADERS, step, w, 0);
}

/* Reads what of a packet lies in the hole. */
static __always_inline void fill(struct walk *w, struct up_direction *d, __u32 off, __u32 seq,
				 __u32 bytes)
{
	struct up_cursor front = d->at;
	__u32 ahead = d->late.next - seq;
	__u32 end = d->late_end - seq;

	/* What fills it was let go by. */
	if ((__s32)(seq - d->late_end) > MAX_WINDOW) {
		d->late.sync = UP_SYNC_NONE;
		d->gaps += 1;
	}
	if (ahead >= bytes || d->late.sync != UP_SYNC_OK)
		return;
	d->at = d->late;
	walk(w, d, off + ahead, off + (end < bytes ? end : bytes));
	d->late = d->at;
	d->at = front;
	if ((__s32)(d->late.next - d->late_end) < 0 && d->late.sync == UP_SYNC_OK)
		return;
	/* It is filled where the next header begins, or reading went on where none was. */
	if (d->late.sync == UP_SYNC_OK && (d->late.next != d->late_end || d->late.have))
		d->gaps += 1;
	d->late.sync = UP_SYNC_NONE;
}

/* Whether reading goes on behind a hole, with the packet at `seq`. */
static __always_inline int resume(struct walk *w, struct up_direction *d, __u32 off, __u32 seq)
{
	int begins = begins_with_header(w->skb, &d->at, off, w->is_egress);

	if (d->at.sync == UP_SYNC_OK && !begins)
		lose(d);
	if (!begins)
		return 0;
	if (d->at.sync == UP_SYNC_OK) {
		d->gaps += d->late.sync == UP_SYNC_OK;
		d->late = d->at;
		d->late_end = seq;
	}
	d->at.sync = UP_SYNC_OK;
	d->at.next = seq;
	d->at.have = 0;
	d->at.segment_left = 0;
	d->at.frame_left = 0;
	return 1;
}

/* Payload: `bytes` from `seq` on, at `off` in the packet. */
static __always_inline void on_bytes(struct walk *w, struct up_direction *d, __u32 off, __u32 seq,
				     __u32 bytes)
{
	__s32 news = (__s32)(seq + bytes - d->at.top);
	__s32 ahead;

	if (d->late.sync == UP_SYNC_OK)
		fill(w, d, off, seq, bytes);
	if (news <= 0 || news > MAX_WINDOW)
		return;
	/* With a hole's: TCP sees to it that they come. */
	d->bytes += (__u32)news;
	d->at.top = seq + bytes;
	ahead = (__s32)(d->at.next - seq);
	if (d->at.sync == UP_SYNC_LOST || ahead < 0) {
		if (!resume(w, d, off, seq))
			return;
		ahead = 0;
	}
	if ((__u32)ahead < bytes)
		walk(w, d, off + ahead, off + bytes);
}

/* Packets of one flow can come in on two CPUs at once: on a busy host's loopback, a sender that has
 * moved. (Those that leave do so under the socket's lock.) */
static __always_inline int take_turn(struct up_direction *d)
{
	ROLLED for (int i = 0; i < MAX_TRIES; i++) {
		if (!__sync_val_compare_and_swap(&d->busy, 0, 1))
			return 1;
	}
	return 0;
}

/* Of the socket; null: it is not observed. */
static __always_inline struct up_leg *leg_of(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct up_meter *m;
	__u32 zero = 0;

	if (meter_without_socket) {
		m = bpf_map_lookup_elem(&new_meter, &zero);
		return m ? &m->leg : 0;
	}
	sk = sk ? bpf_sk_fullsock(sk) : 0;
	return sk ? bpf_sk_storage_get(&observed, sk, 0, 0) : 0;
}

static __always_inline void meter(struct __sk_buff *skb, __u32 is_egress)
{
	struct walk w = { .skb = skb, .is_egress = is_egress };
	__u8 ip[24], tcp[16];
	struct up_leg *leg = leg_of(skb);
	struct up_direction *d;
	struct up_meter *m;
	__u32 off, seq;

	if (!leg || bpf_skb_load_bytes(skb, 0, ip, sizeof(ip)))
		return;
	w.cookie = leg->cookie;
	off = tcp_at(skb, ip);
	if (!off || bpf_skb_load_bytes(skb, off, tcp, sizeof(tcp)))
		return;
	if (is_egress && (tcp[13] & SYN))
		m = begin(leg, w.cookie);
	else
		m = bpf_map_lookup_elem(&meters, &w.cookie);
	if (!m)
		return;
	d = direction(m, is_egress);
	seq = (__u32)tcp[4] << 24 | (__u32)tcp[5] << 16 | (__u32)tcp[6] << 8 | tcp[7];
	off += (tcp[12] >> 4) * 4;
	if (tcp[13] & SYN) {
		/* The answer to the SYN may come again when reading is far beyond it. */
		if (d->at.sync == UP_SYNC_NONE) {
			d->at.next = seq + 1;
			d->at.top = seq + 1;
			d->at.sync = UP_SYNC_OK;
		}
		if (is_egress)
			keep_client(m, ip, tcp);
		/* Bytes in it (TCP fast open) come behind it. */
		seq += 1;
	}
	if (d->at.sync == UP_SYNC_NONE || off >= skb->len)
		return;
	/* Left unread it is a hole. */
	if (!take_turn(d))
		return;
	on_bytes(&w, d, off, seq, skb->len - off);
	__sync_val_compare_and_swap(&d->busy, 1, 0);
}

SEC("cgroup_skb/egress")
int meter_requests(struct __sk_buff *skb)
{
	meter(skb, 1);
	return ALLOW;
}

SEC("cgroup_skb/ingress")
int meter_answers(struct __sk_buff *skb)
{
	meter(skb, 0);
	return ALLOW;
}
