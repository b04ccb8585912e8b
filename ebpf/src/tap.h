/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The tap: copies of what passes on flows whose rule only reads it.
 *
 * The meter (meter.h) has a flow's packet, and where in it frames begin. Of a tapped flow it is copied into a
 * ring of the processor's slot, but for what nobody reads: the rest of a long body, which is told by its length. The
 * agent puts bytes in order (the crate `tap`); the kernel says what it cannot know: when they passed, up to
 * where all had passed before, and where a frame begins.
 *
 * A record is of a size class, because a 6.1 verifier wants sizes to be constants. It is reserved, and only then is
 * the reader's sleep looked at: a reader that goes to sleep sees that something is reserved, or is woken. What a slot's
 * first ring has no room for goes into its second one. That is full, too: what would have been copied is lost, counted
 * with the flow. Of a flow that is left out nothing is copied. The
 * next record of the direction says that something was missed, because sequence numbers come again.
 *
 * Reads tap_left_out; reads and writes tap_rings, tap_sleeps; writes the meter that it is given.
 */
#pragma once

#include "common.h"
#include "frames.h"
#include "meter_frames.h"
#include "verified_once.h"

/* What the meter knew of a direction, in one line of code without a branch: each branch is one more for the
 * verifier to go on from. */
struct tap_seen {
	__u32 next;
	__u32 want_end;
	__u8 sync;
	__u8 framing;
	__u8 have;
	__u8 missed;
	__u32 frames;
};

/* A packet of a tapped flow, before and after it was read. */
struct tap {
	__u64 cookie;
	__u64 at_ns;
	struct tap_seen before;
	struct tap_seen after;
	__u32 seq;
	__u32 off;
	__u32 frame_at;
	__u32 has_frame;
	__u32 is_request;
	__u32 is_egress;
};

/* What is still to be copied of it. */
struct tap_range {
	__u64 cookie;
	__u64 at_ns;
	__u64 missed;
	__u32 seq;
	__u32 off;
	__u32 before;
	__u32 left;
	__u32 after;
	__u32 passed;
	__u32 frame_at;
	__u32 has_frame;
	__u32 framing;
	__u32 is_request;
};

/* Copying it. */
struct tap_copy {
	struct tap_range range;
	struct __sk_buff *skb;
	__u64 lost;
};

/* By processor: in one ring those of a client and its database would wait for each other with every packet. A flow's
 * records are in as many rings as its packets were on processors; the agent puts them in order by their time, which is
 * therefore taken before a record is reserved. */
static __always_inline __u32 tap_slot(void)
{
	return bpf_get_smp_processor_id() & (UP_TAP_SLOTS - 1);
}

/* The ring for what the slot's first one has no room for. That one is small, so that its memory stays in the caches of its
 * processor: each record of a large one is written to memory that was read long ago. */
static __always_inline void *tap_second(__u32 slot)
{
	__u32 index = UP_TAP_SLOTS + slot;

	return bpf_map_lookup_elem(&tap_rings, &index);
}

#define TAP_RESERVE(ring, slot, bytes)                                            \
	({                                                                        \
		void *reserved = bpf_ringbuf_reserve(ring, bytes, 0);             \
		if (!reserved) {                                                  \
			void *second = tap_second(slot);                          \
			if (second)                                               \
				reserved = bpf_ringbuf_reserve(second, bytes, 0); \
		}                                                                 \
		reserved;                                                         \
	})

/* Whether the agent has no time for the flow: it is one of those of its rule that are left out as a whole. */
static __always_inline int is_left_out(const struct up_connect *connect)
{
	__u32 index = connect->generation * UP_RULE_SLOTS + connect->slot;
	struct up_tap_share *share = bpf_map_lookup_elem(&tap_left_out, &index);

	/* Nobody would say which rule it meets. */
	if (connect->taps & UP_TAP_ASKS)
		return 0;
	/* Of a flow from before that the slot was another rule's. Multiples of 2^64 by the golden ratio are spread evenly. */
	return share && share->share && (__s32)(connect->forgets - share->since) >= 0 &&
	       (connect->cookie * 0x9e3779b97f4a7c15ull >> 48) < share->share;
}

/* To be asked when the record is reserved. */
static __always_inline __u64 tap_wakes(__u32 slot)
{
	__u32 *sleeps = bpf_map_lookup_elem(&tap_sleeps, &slot);

	if (!sleeps || !*sleeps)
		return BPF_RB_NO_WAKEUP;
	*sleeps = 0;
	return BPF_RB_FORCE_WAKEUP;
}

VERIFIED_ONCE int tap_begin(const struct up_meter *m)
{
	struct up_tap_begin *begin;
	__u32 slot;
	void *ring;

	if (!m)
		return 0;
	slot = tap_slot();
	ring = bpf_map_lookup_elem(&tap_rings, &slot);
	if (!ring)
		return 0;
	begin = TAP_RESERVE(ring, slot, sizeof(*begin));
	if (!begin)
		return 0;
	__builtin_memset(begin, 0, sizeof(*begin));
	begin->record.cookie = m->connect.cookie;
	begin->record.at_ns = m->opened_ns;
	begin->record.kind = UP_TAP_BEGIN;
	begin->connect = m->connect;
	begin->client = m->client;
	bpf_ringbuf_submit(begin, tap_wakes(slot));
	return 0;
}

static __always_inline void tap_mark(__u64 cookie, __u32 kind, __u32 is_request, __u32 seq)
{
	__u32 slot = tap_slot();
	void *ring = bpf_map_lookup_elem(&tap_rings, &slot);
	__u64 now_ns = bpf_ktime_get_ns();
	struct up_tap_record *record;

	if (!ring)
		return;
	record = TAP_RESERVE(ring, slot, sizeof(*record));
	if (!record)
		return;
	__builtin_memset(record, 0, sizeof(*record));
	record->cookie = cookie;
	record->at_ns = now_ns;
	record->kind = kind;
	record->is_request = is_request;
	record->seq = seq;
	bpf_ringbuf_submit(record, tap_wakes(slot));
}

/* A direction begins. */
VERIFIED_ONCE int tap_start(__u64 cookie, __u32 is_request, __u32 seq)
{
	tap_mark(cookie, UP_TAP_START, is_request, seq);
	return 0;
}

/* The flow's socket is closed. */
VERIFIED_ONCE int tap_end(__u64 cookie)
{
	tap_mark(cookie, UP_TAP_END, 0, 0);
	return 0;
}

static __always_inline void tap_see(struct tap_seen *seen, const struct up_direction *d)
{
	seen->next = d->at.next;
	seen->want_end = d->at.want_end;
	seen->sync = d->at.sync;
	seen->framing = d->at.framing;
	seen->have = d->at.have;
	seen->missed = d->missed;
	seen->frames = (__u32)d->frames;
}

/* A header has been read, and its frame's body is passing. */
static __always_inline int tap_in_body(const struct tap_seen *seen)
{
	return seen->sync == UP_SYNC_OK && seen->framing == UP_FRAMING_FRAMES && !seen->have;
}

/* Up to where all bytes had passed before: what has been received, or was sent before. The kernel counts a packet as
 * sent when it has left, so of one that is sent for the first time it is where the packet begins. */
static __always_inline __u32 tap_passed(struct __sk_buff *skb, const struct tap *t)
{
	struct bpf_sock *sk = skb->sk;
	struct bpf_tcp_sock *tcp;

	if (!sk)
		return t->seq;
	tcp = bpf_tcp_sock(sk);
	if (!tcp)
		return t->seq;
	/* Of such a pointer the verifier wants fields to be read at once, and no address of them taken. */
	if (t->is_egress)
		return ((volatile struct bpf_tcp_sock *)tcp)->snd_nxt;
	return ((volatile struct bpf_tcp_sock *)tcp)->rcv_nxt;
}

/* A number that the verifier believes: the bound of one that clang keeps in another register is of no use
 * to it. */
static __always_inline __u64 up_to(__u64 bytes, __u64 mask)
{
	asm volatile("" : "+r"(bytes));
	bytes &= mask;
	asm volatile("" : "+r"(bytes));
	return bytes;
}

/* One record with room for `most` bytes. Of a packet's first one, `header` is given the first bytes. */
#define TAP_RECORD(ring, skb, range, n, behind, most, header)                                    \
	({                                                                               \
		struct up_tap_record *r = TAP_RESERVE(ring, slot, sizeof(*r) + (most));      \
		if (r) {                                                                 \
			/* Of 1 to `most`: a 6.12 verifier does not believe a comparison with 0. */   \
			__u64 bytes = 1 + up_to((n) - 1, (most) - 1);                    \
			tap_fill(r, range, n, behind);                                       \
			if ((n) > 0 &&                                                   \
			    bpf_skb_load_bytes(skb, (range)->off, r + 1, bytes)) {      \
				r->copied = 0;                                           \
				r->after += n;                                           \
			}                                                                \
			if (header)                                                      \
				__builtin_memcpy(header, r + 1, FRAME_HEADER);           \
			bpf_ringbuf_submit(r, tap_wakes(slot));                          \
		}                                                                        \
		!!r;                                                                     \
	})

static __always_inline void tap_fill(struct up_tap_record *r, const struct tap_range *c, __u32 copied,
				     __u32 after)
{
	r->cookie = c->cookie;
	r->at_ns = c->at_ns;
	r->seq = c->seq;
	r->before = c->before;
	r->copied = copied;
	r->after = after;
	r->passed = c->passed;
	r->frame_at = c->frame_at;
	r->kind = UP_TAP_BYTES;
	r->is_request = c->is_request;
	r->framing = c->framing;
	r->has_frame = c->has_frame;
	r->missed = c->missed;
}

/* Whether a packet has been copied. */
enum {
	TAP_NOT_YET = 0,
	TAP_TOLD = 1,
	/* There was no room. */
	TAP_LOST = 2,
};

#define NO_HEADER ((__u8 *)0)

/* Copies a packet that nearly all are, before it is read: short, so that all of it is wanted whatever it is, and in step
 * (is_in_step), so that it begins with a frame and all before it has passed. The cursor is given its first bytes. */
VERIFIED_ONCE int tap_whole(struct __sk_buff *skb, struct up_meter *m, __u32 is_request, __u32 off, __u64 at_ns)
{
	struct tap_range c = { .at_ns = at_ns, .off = off, .has_frame = 1, .is_request = is_request };
	struct up_direction *d;
	__u32 slot, n = skb->len - off;
	int is_told;
	void *ring;

	if (!m)
		return TAP_NOT_YET;
	d = is_request ? &m->requests : &m->responses;
	c.cookie = m->connect.cookie;
	c.seq = c.passed = c.frame_at = d->at.next;
	c.framing = d->at.framing;
	c.missed = d->missed;
	slot = tap_slot();
	ring = bpf_map_lookup_elem(&tap_rings, &slot);
	if (!ring)
		return TAP_LOST;
	if (n <= 64)
		is_told = TAP_RECORD(ring, skb, &c, n, 0, 64, d->at.header);
	else if (n <= 128)
		is_told = TAP_RECORD(ring, skb, &c, n, 0, 128, d->at.header);
	else if (n <= 256)
		is_told = TAP_RECORD(ring, skb, &c, n, 0, 256, d->at.header);
	else
		is_told = TAP_RECORD(ring, skb, &c, n, 0, UP_TAP_ID_BYTES, d->at.header);
	return is_told ? TAP_TOLD : TAP_LOST;
}

/* The next piece of a packet; 1 ends it. */
static long tap_piece(__u32 number, void *ctx)
{
	struct tap_copy *copy = ctx;
	struct tap_range *c = &copy->range;
	__u32 slot = tap_slot();
	void *ring = bpf_map_lookup_elem(&tap_rings, &slot);
	__u32 n = c->left < UP_TAP_PIECE_BYTES ? c->left : UP_TAP_PIECE_BYTES;
	__u32 behind = n == c->left ? c->after : 0;
	__u64 none = (__u64)n - 1;
	int is_told;

	(void)number;
	if (!ring)
		is_told = 0;
	else if (n <= 128)
		is_told = TAP_RECORD(ring, copy->skb, c, n, behind, 128, NO_HEADER);
	else if (n <= 512)
		is_told = TAP_RECORD(ring, copy->skb, c, n, behind, 512, NO_HEADER);
	else if (n <= 2048)
		is_told = TAP_RECORD(ring, copy->skb, c, n, behind, 2048, NO_HEADER);
	else if (n <= 8192)
		is_told = TAP_RECORD(ring, copy->skb, c, n, behind, 8192, NO_HEADER);
	else
		is_told = TAP_RECORD(ring, copy->skb, c, n, behind, UP_TAP_PIECE_BYTES, NO_HEADER);
	/* Where nothing was to be copied a record is lost all the same. Without a branch: clang would make it one. */
	asm volatile("" : "+r"(none));
	if (is_told)
		c->missed = 0;
	else
		copy->lost += n + (none >> 63);
	/* Bytes of a packet that have been told are none that could be missing. */
	c->seq += c->before + n;
	c->passed = (__s32)(c->seq - c->passed) > 0 ? c->passed : c->seq;
	/* The slot's rings may have one each: they are put in order by their time. It has passed by now. */
	c->at_ns += 1;
	c->off += n;
	c->before = 0;
	c->left -= n;
	return !c->left;
}

/* Copies a packet that the meter has read, but for the parts of bodies that nobody reads. Returns how many
 * bytes there was no room for. */
VERIFIED_ONCE int tap_packet(struct __sk_buff *skb, const struct tap *t)
{
	struct tap_copy copy = { .skb = skb };
	struct tap_range *c = &copy.range;
	__u32 bytes, end, body;

	if (!t || t->off >= skb->len)
		return 0;
	bytes = skb->len - t->off;
	end = t->seq + bytes;
	body = t->before.next - t->seq;
	c->cookie = t->cookie;
	c->at_ns = t->at_ns;
	c->seq = t->seq;
	c->passed = tap_passed(skb, t);
	c->frame_at = t->frame_at;
	c->has_frame = t->has_frame;
	c->framing = t->after.framing;
	c->is_request = t->is_request;
	c->missed = t->before.missed;
	if (tap_in_body(&t->before) && (__s32)body > 0 && (__s32)(t->before.want_end - t->seq) <= 0)
		c->before = body < bytes ? body : bytes;
	if (tap_in_body(&t->after) && (__s32)(t->after.next - end) >= 0 &&
	    (__s32)(end - t->after.want_end) > 0)
		c->after = end - t->after.want_end;
	if (c->after > bytes - c->before)
		c->after = bytes - c->before;
	c->left = bytes - c->before - c->after;
	c->off = t->off + c->before;
	if (tap_piece(0, &copy) == 0)
		bpf_loop(UP_MAX_TAP_PIECES, tap_piece, &copy, 0);
	return (int)(copy.lost + c->left);
}
