/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Frame positions of a spliced flow: where in a frame each direction is, so that the agent can decode
 * it from its next frame on. The agent walks the bytes that it relays in the same way (the crate `cql`),
 * and a position goes from one to the other as it is.
 *
 * A walk reads headers and nothing else, and changes nothing but the position. Bytes that it cannot
 * make out make the position unknown for good, and are carried on all the same. The meter walks, too,
 * but it has packets that come twice or not at all, and looks into each frame of a segment.
 */
#pragma once

#include "common.h"
#include "frames.h"

/* A header of a segment, and of the frame that begins in it and goes on in others. */
#define PLACE_HEADER (SEGMENT_HEADER + FRAME_HEADER)
/* The shortest frames in the largest message: 17 pieces of 32 KiB, and a packet is at most 512. */
#define MAX_PLACE_HEADERS (1 << 16)

/* A walk over a message or a packet. It is on the stack, and `at` begins a word there: see
 * position_collect(). */
struct position_walk {
	/* One of the two. */
	struct sk_msg_md *msg;
	struct __sk_buff *skb;
	struct up_frame_position at;
	/* Bytes in the first piece of a message. */
	__u32 first;
	__u32 off;
	__u32 end;
};
_Static_assert(offsetof(struct position_walk, at) % 8 == 0, "at begins a word");

static __always_inline void lose_place(struct up_frame_position *p)
{
	count_cause(UP_CAUSE_SPLICE_POSITION_LOST);
	__builtin_memset(p, 0, sizeof(*p));
}

/* From the order under which `read` bytes were read. That is written last: the agent may look at any
 * time, and knows by it whose position it finds. */
static __always_inline void take_position(struct up_frame_position *to, __u64 *since,
				       const struct up_frame_position *from, __u64 read)
{
	*to = *from;
	asm volatile("" ::: "memory");
	*since = read;
}

/* What is walked: constants, so that a program has the half that it may call. */
enum { MESSAGE, PACKET };

/* One byte of a message: where it is. 0: it is not there. */
static __always_inline const void *message_byte(struct sk_msg_md *msg, __u32 off)
{
	const void *byte;

	if (bpf_msg_pull_data(msg, off, off + 1, 0))
		return 0;
	byte = (const void *)(long)msg->data;
	/* A context is loaded from whole. */
	asm volatile("" : "+r"(byte));
	return byte;
}

/* `bytes` is a constant, too. A message lies in pieces of up to 32 KiB. Bytes that lie in two of them
 * are not asked for at once: the kernel would make one piece of both, for which it may have no
 * memory. Less than 0: not to be had; 0: in two pieces. */
static __always_inline int position_read(struct position_walk *w, int what, __u8 *to, __u32 bytes)
{
	const __u8 *data, *end;
	const void *first, *last;
	__u32 to_last;

	if (what == PACKET)
		return bpf_skb_load_bytes(w->skb, w->off, to, bytes) ? -1 : 1;
	if (bytes > 1 && w->off + bytes > w->first) {
		last = message_byte(w->msg, w->off + bytes - 1);
		if (!last)
			return -1;
		/* A number: a packet's pointers cannot be held against each other. */
		to_last = (__u32)(long)last;
		first = message_byte(w->msg, w->off);
		if (!first)
			return -1;
		if (to_last - (__u32)(long)first != bytes - 1)
			return 0;
	}
	if (bpf_msg_pull_data(w->msg, w->off, w->off + bytes, 0))
		return -1;
	data = (const __u8 *)(long)w->msg->data;
	end = (const __u8 *)(long)w->msg->data_end;
	if (data + bytes > end)
		return -1;
	__builtin_memcpy(to, data, bytes);
	return 1;
}

/* Of the header that comes next. */
static __always_inline __u32 position_wants(const struct up_frame_position *p)
{
	if (p->framing == UP_FRAME_FRAMES)
		return FRAME_HEADER;
	return p->have < SEGMENT_HEADER ? SEGMENT_HEADER : PLACE_HEADER;
}

/* Bytes of a whole frame; 0: it is none. */
static __always_inline __u32 position_frame(const struct up_frame_position *p, const __u8 *header)
{
	__u32 body = body_of(header);

	return header[0] == p->first && body <= MAX_BODY ? FRAME_HEADER + body : 0;
}

/* Goes past a header that is whole. Less than 0: it is none. */
static __always_inline int position_header(struct up_frame_position *p)
{
	const __u8 *h = p->header;
	__u32 word, payload, frame;

	if (p->framing == UP_FRAME_FRAMES) {
		frame = position_frame(p, h);
		if (!frame)
			return -1;
		p->left = frame - FRAME_HEADER;
		p->have = 0;
		return 0;
	}
	word = (__u32)h[0] | (__u32)h[1] << 8 | (__u32)h[2] << 16;
	payload = word & 0x1ffff;
	/* What is padded is padded with zeros. */
	if (word >> 18)
		return -1;
	if (word & (1 << 17)) {
		/* Whole frames. */
		if (p->frame_left)
			return -1;
	} else if (p->frame_left) {
		if (payload > p->frame_left)
			return -1;
		p->frame_left -= payload;
	} else if (p->have == SEGMENT_HEADER) {
		/* A frame begins that goes on in other segments: how long it is has to be seen. */
		return payload < FRAME_HEADER ? -1 : 0;
	} else {
		frame = position_frame(p, &h[SEGMENT_HEADER]);
		if (frame < payload)
			return -1;
		p->frame_left = frame - payload;
		payload -= FRAME_HEADER;
	}
	p->left = payload + SEGMENT_CRC;
	p->have = 0;
	return 0;
}

/* Reads as much of a header as there is. 0: not all of it. */
static __always_inline int position_collect(struct position_walk *w, int what, __u32 want)
{
	struct up_frame_position *p = &w->at;
	int whole = 0;

	if (!p->have && w->end - w->off >= FRAME_HEADER)
		whole = want == FRAME_HEADER ? position_read(w, what, p->header, FRAME_HEADER)
					     : position_read(w, what, p->header, SEGMENT_HEADER);
	if (whole) {
		p->have = want;
		w->off += want;
		return whole;
	}
	/* Byte by byte: what an end has cut. To the verifier the byte may be any of the position's: older
	 * ones (6.1) cannot read a word of the stack any more of which a part may have been written,
	 * and not its beginning. */
	NO_UNROLL for (int i = 0; i < PLACE_HEADER; i++) {
		__u64 next = offsetof(struct up_frame_position, header) + p->have;

		if (p->have >= want || w->off >= w->end)
			break;
		asm volatile("%0 &= 31" : "+r"(next));
		if (next >= sizeof(*p) || position_read(w, what, (__u8 *)p + next, 1) < 0)
			return -1;
		p->have += 1;
		w->off += 1;
	}
	return p->have >= want;
}

/* The rest of what is passing, and a header. 1 ends the walk. */
static __always_inline long position_step(struct position_walk *w, int what)
{
	__u32 rest = w->end - w->off;
	__u32 take = w->at.left < rest ? w->at.left : rest;
	int whole;

	w->at.left -= take;
	w->off += take;
	if (w->off >= w->end)
		return 1;
	whole = position_collect(w, what, position_wants(&w->at));
	if (!whole)
		return 1;
	if (whole < 0 || position_header(&w->at)) {
		lose_place(&w->at);
		return 1;
	}
	return 0;
}

static long step_in_message(__u32 n, void *walk)
{
	(void)n;
	return position_step(walk, MESSAGE);
}

static long step_in_packet(__u32 n, void *walk)
{
	(void)n;
	return position_step(walk, PACKET);
}

/* Goes past `w->end` bytes. */
static __always_inline void walk_on(struct up_frame_position *p, struct position_walk *w, int what)
{
	if (p->left >= w->end) {
		p->left -= w->end;
		return;
	}
	w->at = *p;
	if (what == MESSAGE)
		bpf_loop(MAX_PLACE_HEADERS, step_in_message, w, 0);
	else
		bpf_loop(MAX_PLACE_HEADERS, step_in_packet, w, 0);
	if (w->off < w->end && w->at.framing != UP_FRAME_UNKNOWN)
		lose_place(&w->at);
	*p = w->at;
}

/* One frame, or one segment of whole frames, as most messages and packets are: there is no need to
 * walk. `header` has as many bytes as a frame's. */
static __always_inline int is_one(struct up_frame_position *p, const __u8 *header, __u32 bytes)
{
	__u32 word, unit;

	if (p->left || p->have || p->frame_left)
		return 0;
	word = (__u32)header[0] | (__u32)header[1] << 8 | (__u32)header[2] << 16;
	if (p->framing == UP_FRAME_FRAMES)
		unit = position_frame(p, header);
	else if (word >> 17 == 1)
		unit = SEGMENT_HEADER + (word & 0x1ffff) + SEGMENT_CRC;
	else
		return 0;
	if (unit < bytes)
		return 0;
	p->left = unit - bytes;
	return 1;
}

static __always_inline void walk_message(struct up_frame_position *p, struct sk_msg_md *msg)
{
	const __u8 *data, *end;

	if (p->framing == UP_FRAME_UNKNOWN)
		return;
	data = (const __u8 *)(long)msg->data;
	end = (const __u8 *)(long)msg->data_end;
	if (data + FRAME_HEADER <= end && is_one(p, data, msg->size))
		return;

	struct position_walk w = { .msg = msg, .first = end - data, .end = msg->size };

	walk_on(p, &w, MESSAGE);
}

static __always_inline void walk_packet(struct up_frame_position *p, struct __sk_buff *skb)
{
	__u8 header[FRAME_HEADER];

	if (p->framing == UP_FRAME_UNKNOWN)
		return;
	if (!bpf_skb_load_bytes(skb, 0, header, sizeof(header)) && is_one(p, header, skb->len))
		return;

	struct position_walk w = { .skb = skb, .end = skb->len };

	walk_on(p, &w, PACKET);
}
