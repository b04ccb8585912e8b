/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The meter's reading: one header after another, and what each says.
 *
 * A cursor is advanced over what need not be read, and collects a header that packets cut. In
 * v5 segments a frame may be the rest of one segment and the beginning of the next; what is
 * compressed is not read.
 */
#pragma once

#include "frames.h"
#include "meter_latency.h"
#include "verified_once.h"

enum {
	CQL_ERROR = 0,
	CQL_STARTUP = 1,
	CQL_READY = 2,
	CQL_AUTHENTICATE = 3,
	CQL_OPTIONS = 5,
	CQL_SUPPORTED = 6,
	CQL_RESULT = 8,
	CQL_EXECUTE = 10,
};

/* Flags of a frame. What may stand in front of a response's body, of any length: a tracing id, a custom payload,
 * warnings. */
enum {
	CQL_COMPRESSED = 1,
	CQL_CUSTOM_PAYLOAD = 4,
	CQL_PRELUDE = 2 | 4 | 8,
};

/* Constant during a walk; what changes is in the cursor. */
struct walk {
	struct __sk_buff *skb;
	__u64 cookie;
	__u64 now_ns;
	__u32 is_request;
};

static __always_inline void advance(struct up_cursor *at, __u32 bytes)
{
	at->off += bytes;
	at->next += bytes;
}

/* Direction, version and opcode as they may be, a body no longer than is allowed. */
static __always_inline int is_header(const __u8 *header, __u32 is_request)
{
	__u32 version = header[0] & 0x7f;

	return (header[0] >> 7) != is_request && version >= 3 && version <= 6 &&
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
	if (w->is_request) {
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

/* CRC24 of a v5 segment's header, bit by bit: once per flow and direction. Each bit is multiplied by the polynomial: of a
 * branch for each, a 6.1 verifier follows all that forty of them can do. */
static __noinline __u32 crc24(__u64 bytes, __u32 count)
{
	__u32 crc = 0x875060;

	for (__u32 i = 0; i < 5; i++) {
		if (i >= count)
			break;
		crc ^= (__u32)(bytes & 0xff) << 16;
		bytes >>= 8;
		for (int bit = 0; bit < 8; bit++) {
			__u32 out = crc >> 23 & 1;

			/* A number to clang, which would make it a branch. */
			asm volatile("" : "+r"(out));
			crc = crc << 1 ^ out * 0x1974f0b;
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
	/* All bits, of LZ4's that has not whole frames. */
	__u32 is_part = (__u32)(head >> 34 & 1) - 1;
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
	if (at->framing == UP_FRAMING_SEGMENTS_LZ4)
		at->frame_left &= is_part;
	/* The length without compression is not 0: what is inside cannot be read. Of a frame with a part in it nobody knows
	 * the end before whole ones come. */
	if (at->framing == UP_FRAMING_SEGMENTS_LZ4 && ((head >> 17) & 0x1ffff)) {
		d->compressed += 1;
		at->frame_left |= is_part;
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

/* How much is copied of a body of so many bytes: no less than the decoder reads of it (the crate `cql`,
 * `wanted` and `enough_for`). */
VERIFIED_ONCE __u32 wanted_of(__u32 opcode, __u32 flags, __u32 body, __u32 taps, __u32 is_request)
{
	__u32 is_long = is_request ? opcode != CQL_EXECUTE || flags & CQL_CUSTOM_PAYLOAD
				   : opcode != CQL_RESULT || flags & CQL_PRELUDE;
	__u32 wanted = is_request ? UP_TAP_BODY_BYTES : UP_TAP_ROWS_BYTES;

	if (is_long || taps == UP_TAP_ANSWERS)
		wanted = UP_TAP_BODY_BYTES;
	else if (taps == UP_TAP_FRAMES)
		wanted = UP_TAP_ID_BYTES;
	else if (taps == UP_TAP_BODIES)
		wanted = UP_TAP_FRAME_BYTES;
	if (!(flags & CQL_COMPRESSED))
		return wanted;
	return wanted == UP_TAP_BODY_BYTES ? UP_TAP_COMPRESSED_BODY_BYTES
					   : wanted + wanted / 4 + 64 + body / 128;
}

/* Up to where the body is copied that follows a header. */
static __always_inline void want_body(const struct walk *w, const struct up_meter *m, struct up_cursor *at,
				 __u32 body_at)
{
	const __u8 *header = at->header;

	if (m->connect.taps)
		at->want_end = body_at + wanted_of(header[4], header[1], body_of(header),
						   m->connect.taps, w->is_request);
}

/* The next byte is a frame's first, or a segment's of whole frames. */
static __always_inline void note_frame(struct up_direction *d)
{
	if (d->has_frame || d->at.have || d->at.segment_left || d->at.frame_left)
		return;
	d->frame_at = d->at.next;
	d->has_frame = 1;
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
	NO_UNROLL for (int i = 0; i < FRAME_HEADER; i++) {
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

/* Whether the packet at `seq` begins with a frame, or a segment of whole frames of which it is known whether they are
 * compressed, and nothing before it is awaited. */
static __always_inline int is_in_step(const struct up_direction *d, __u32 seq)
{
	const struct up_cursor *at = &d->at;

	return at->next == seq && at->top == seq && at->sync == UP_SYNC_OK && d->late.sync != UP_SYNC_OK &&
	       !at->have && !at->segment_left && !at->frame_left && at->framing != UP_FRAMING_UNSURE &&
	       at->framing != UP_FRAMING_ANY;
}

/* The packet that nearly all are: one frame, whole, where it was awaited. False: it is another, and
 * nothing was read of it. `has_header`: its first bytes are in the cursor. */
static __always_inline int whole_frame(struct walk *w, struct up_meter *m, struct up_direction *d,
				       __u32 off, __u32 seq, __u32 bytes, __u32 has_header)
{
	struct up_cursor *at = &d->at;

	if (at->framing != UP_FRAMING_FRAMES || !is_in_step(d, seq) ||
	    (!has_header && bpf_skb_load_bytes(w->skb, off, at->header, FRAME_HEADER)) ||
	    !is_header(at->header, w->is_request) || FRAME_HEADER + body_of(at->header) != bytes)
		return 0;
	d->bytes += bytes;
	note_frame(d);
	at->top = at->next = seq + bytes;
	if (!has_header)
		want_body(w, m, at, seq + FRAME_HEADER);
	on_frame(w, m, d);
	return 1;
}

/* Of a connection that was joined in its middle: such frames are there without segments. */
static __always_inline int is_before_segments(__u32 opcode)
{
	return opcode <= CQL_AUTHENTICATE || opcode == CQL_OPTIONS || opcode == CQL_SUPPORTED;
}

/* Whether there is a frame's header at `off`, and a chain of two or the packet's end where the first does. */
static __always_inline int is_frame_at(struct __sk_buff *skb, __u32 off, __u32 framing, __u32 is_request)
{
	__u8 header[FRAME_HEADER];
	__u32 next;

	if (bpf_skb_load_bytes(skb, off, header, sizeof(header)) || !is_header(header, is_request))
		return 0;
	if (framing == UP_FRAMING_ANY && (header[0] & 0x7f) > 4 && !is_before_segments(header[4]))
		return 0;
	next = off + FRAME_HEADER + body_of(header);
	if (next >= skb->len)
		return next == skb->len;
	return !bpf_skb_load_bytes(skb, next, header, sizeof(header)) &&
	       is_header(header, is_request);
}

/* A segment's header of so many bytes without its checksum; its payload's length, or -1: there is none that
 * begins with a frame. */
static __always_inline __s32 segment_at(struct __sk_buff *skb, __u32 off, __u32 bytes)
{
	__u8 h[SEGMENT_HEADER_LZ4] = {};
	__u64 head;
	__u32 crc;

	if (bpf_skb_load_bytes(skb, off, h, bytes == 3 ? SEGMENT_HEADER : SEGMENT_HEADER_LZ4))
		return -1;
	head = (__u64)h[0] | (__u64)h[1] << 8 | (__u64)h[2] << 16;
	if (bytes == 3) {
		crc = (__u32)h[3] | (__u32)h[4] << 8 | (__u32)h[5] << 16;
	} else {
		head |= (__u64)h[3] << 24 | (__u64)h[4] << 32;
		crc = (__u32)h[5] | (__u32)h[6] << 8 | (__u32)h[7] << 16;
	}
	/* It is self-contained: one that is not may be a frame's middle. */
	if (!(head >> (bytes == 3 ? 17 : 34) & 1) || crc24(head, bytes) != crc)
		return -1;
	return head & 0x1ffff;
}

/* Whether there is a segment at `off` that begins with a frame. Where nothing else is known of the connection, it
 * must end with the packet, or be one of two. */
static __always_inline int is_segment_at(struct __sk_buff *skb, __u32 off, __u32 framing, __u32 bytes)
{
	__s32 payload = segment_at(skb, off, bytes);
	__u32 next;

	if (payload < 0 || framing != UP_FRAMING_ANY)
		return payload >= 0;
	next = off + bytes + 3 + (__u32)payload + SEGMENT_CRC;
	if (next >= skb->len)
		return next == skb->len;
	return segment_at(skb, next, bytes) >= 0;
}

/* The framing of a packet that begins, behind a hole, with a frame's header, or with a segment's; -1: it begins
 * with neither. */
VERIFIED_ONCE int framing_at(struct __sk_buff *skb, __u32 off, __u32 framing, __u32 is_request)
{
	if (framing == UP_FRAMING_FRAMES || framing == UP_FRAMING_ANY) {
		if (is_frame_at(skb, off, framing, is_request))
			return UP_FRAMING_FRAMES;
		if (framing == UP_FRAMING_FRAMES)
			return -1;
	}
	if (framing != UP_FRAMING_SEGMENTS_LZ4 && is_segment_at(skb, off, framing, 3))
		return UP_FRAMING_SEGMENTS;
	if (framing != UP_FRAMING_SEGMENTS && is_segment_at(skb, off, framing, 5))
		return UP_FRAMING_SEGMENTS_LZ4;
	return -1;
}
