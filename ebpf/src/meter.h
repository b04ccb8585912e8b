/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * cgroup_skb, egress and ingress: the meter.
 *
 * Reads the CQL headers of observed flows in passing: what was asked, what was answered, and
 * how long it took from a request's header leaving the host's TCP to its response's coming in. Of a
 * client on another host the socket is the database's (observe_incoming.h), and requests come in.
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
 * Of a tapped flow the agent gets a copy of what passes (tap.h). If its rule asks for the session, the agent says which
 * rule it meets, and with the next packet the flow is that rule's, or left alone.
 *
 * Reads new_meter; reads and writes observed, meters; takes from tap_outcomes; writes causes, and what tap.h writes. Answers ALLOW, always. Never
 * writes to a packet: the kernel refuses a program of this type that would. A flow whose bytes
 * are no CQL (TLS) is one that is never in sync.
 */
#pragma once

#include "common.h"
#include "meter_frames.h"
#include "tap.h"

/* The shortest frames in the largest packet that a device may be told to take (GSO_MAX_SIZE, 512 KiB). */
#define MAX_HEADERS 58254
/* TCP's largest window. What is further ahead is nothing that the receiver would take. */
#define MAX_WINDOW (1 << 30)
/* How often to look whether another CPU has read its packet. To copy one of 64 KiB takes it tens of microseconds, and a
 * virtual one may be away meanwhile: this many looks take a millisecond or more. (A larger packet, full of the shortest
 * frames, takes longer than that, and leaves a gap.) */
#define MAX_TURN_LOOKS (1 << 17)
#define SYN 2
#define IPV6_HEADER 40
#ifndef IPPROTO_HOPOPTS
#define IPPROTO_HOPOPTS 0
#define IPPROTO_ROUTING 43
#define IPPROTO_FRAGMENT 44
#define IPPROTO_DSTOPTS 60
#endif
/* Each of these once, and destination options twice (RFC 8200, 4.1). */
#define MAX_EXTENSIONS 5
/* Above 40 bytes of IPv6's header and five times 256 words of eight bytes. */
#define TCP_AT_MASK 0x3fff

/* For tests, which run the programs on packets that have no socket: all are of one flow. */
const volatile __u32 meter_without_socket = 0;

static __always_inline struct up_direction *direction(struct up_meter *m, __u32 is_request)
{
	return is_request ? &m->requests : &m->responses;
}

static __always_inline void lose(struct up_direction *d)
{
	d->gaps += 1;
	d->at.sync = UP_SYNC_LOST;
	d->at.have = 0;
	d->at.segment_left = 0;
	d->at.frame_left = 0;
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
	d = direction(m, w->is_request);
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
	if (!is_header(d->at.header, w->is_request)) {
		lose(d);
		return 1;
	}
	on_frame(w, m, d);
	want_body(w, m, &d->at, d->at.next);
	if (!skip_body(&d->at)) {
		lose(d);
		return 1;
	}
	return 0;
}

/* What the meter wants of a packet's headers. */
struct headers {
	/* Where the payload begins. */
	__u32 payload_at;
	__u32 seq;
	__u32 syn;
};

/* Where TCP's header is behind IPv6's extension headers, of which the first is of this kind; 0: there is none. The kernel
 * puts fragments together before a packet comes here, and cuts one after it was here: one that is alone is whole. */
VERIFIED_ONCE __u32 tcp_behind_extensions(struct __sk_buff *skb, __u32 next)
{
	__u32 off = IPV6_HEADER;
	__u8 h[4];

	for (int i = 0; i < MAX_EXTENSIONS && next != IPPROTO_TCP; i++) {
		if ((next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_FRAGMENT &&
		     next != IPPROTO_DSTOPTS) ||
		    bpf_skb_load_bytes(skb, off, h, sizeof(h)))
			return 0;
		/* Its offset, and whether more follow. */
		if (next == IPPROTO_FRAGMENT && (h[2] || h[3] & 0xf9))
			return 0;
		off += next == IPPROTO_FRAGMENT ? 8 : (h[1] + 1) * 8;
		next = h[0];
	}
	return next == IPPROTO_TCP ? off : 0;
}

/* Where TCP's header is; 0: there is none. */
static __always_inline __u32 tcp_at(struct __sk_buff *skb)
{
	const __u8 *ip = (void *)(long)skb->data;
	const __u8 *end = (void *)(long)skb->data_end;

	if (ip + 20 > end)
		return 0;
	if ((ip[0] >> 4) == 4)
		return ip[9] == IPPROTO_TCP ? (ip[0] & 15) * 4 : 0;
	if (ip[6] == IPPROTO_TCP)
		return IPV6_HEADER;
	return (__u32)up_to(tcp_behind_extensions(skb, ip[6]), TCP_AT_MASK);
}

/* False: the packet is none of TCP's. Both headers are where the kernel has read them itself before it asks this
 * program, in the packet's linear part, so that no helper has to fetch them. */
static __always_inline int read_headers(struct __sk_buff *skb, struct headers *h)
{
	__u32 off = tcp_at(skb);
	const __u8 *tcp = (void *)(long)skb->data + off;

	if (!off || tcp + 20 > (const __u8 *)(void *)(long)skb->data_end)
		return 0;
	h->payload_at = off + (tcp[12] >> 4) * 4;
	h->seq = (__u32)tcp[4] << 24 | (__u32)tcp[5] << 16 | (__u32)tcp[6] << 8 | tcp[7];
	h->syn = tcp[13] & SYN;
	return 1;
}

/* The client's side, from the SYN that it sends. */
static __always_inline void keep_client(struct up_meter *m, struct __sk_buff *skb)
{
	__u32 off = tcp_at(skb);
	__u8 ip[24];
	__be16 port;
	__be32 addr4;
	__u32 addr6[4];

	if (bpf_skb_load_bytes(skb, 0, ip, sizeof(ip)) ||
	    bpf_skb_load_bytes(skb, off, &port, sizeof(port)))
		return;
	if ((ip[0] >> 4) == 4) {
		__builtin_memcpy(&addr4, &ip[12], sizeof(addr4));
		endpoint4(&m->client, addr4, port);
	} else {
		__builtin_memcpy(addr6, &ip[8], sizeof(addr6));
		endpoint6(&m->client, addr6, port);
	}
}

/* The flow begins: its SYN leaves. */
static __always_inline struct up_meter *begin(const struct up_connect *connect, __u64 cookie)
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
	if (connect)
		m->connect = *connect;
	m->opened_ns = bpf_ktime_get_ns();
	return m;
}

/* The next byte of a direction is this one. */
static __always_inline void begin_reading(struct up_cursor *at, __u32 seq)
{
	at->next = seq;
	at->top = seq;
	at->sync = UP_SYNC_OK;
}

/* Reads the packet's bytes from `off` to `end`. */
static __always_inline void walk(struct walk *w, struct up_direction *d, __u32 off, __u32 end)
{
	d->at.off = off;
	d->at.end = end;
	note_frame(d);
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
	int framing = framing_at(w->skb, off, d->at.framing, w->is_request);

	if (d->at.sync == UP_SYNC_OK && framing < 0)
		lose(d);
	if (framing < 0)
		return 0;
	if (d->at.sync == UP_SYNC_OK) {
		d->gaps += d->late.sync == UP_SYNC_OK;
		d->late = d->at;
		d->late_end = seq;
	}
	d->at.framing = framing;
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

/* A packet that waits for its turn in a direction. */
struct turn {
	struct up_direction *d;
	__u32 is_ours;
};

/* Whether nobody else has the turn; 1 ends the looks. */
static long look_for_turn(__u32 n, void *ctx)
{
	struct turn *turn = ctx;
	struct up_direction *d = turn->d;

	(void)n;
	/* Read before it is written: who has it is held up by each attempt. */
	if (!*(volatile __u32 *)&d->busy)
		turn->is_ours = !__sync_val_compare_and_swap(&d->busy, 0, 1);
	return turn->is_ours;
}

/* Packets of one flow can come in on two CPUs at once: a sender on one and the receiver's acknowledgements on the other both
 * have packets leave, and a loopback takes each in where it left. (Those that leave do so under the socket's lock.) */
static __always_inline int take_turn(struct up_direction *d)
{
	struct turn turn = { .d = d };

	if (!__sync_val_compare_and_swap(&d->busy, 0, 1))
		return 1;
	bpf_loop(MAX_TURN_LOOKS, look_for_turn, &turn, 0);
	return turn.is_ours;
}

/* Gives the turn to others, who are to see what was written during it. On x86 they do with any store, and one that is locked
 * would wait until all before it have left the CPU's store buffer: of a request that was two fifths of a run. */
static __always_inline void end_turn(struct up_direction *d)
{
#ifdef __TARGET_ARCH_x86
	asm volatile("" ::: "memory");
	*(volatile __u32 *)&d->busy = 0;
#else
	__sync_val_compare_and_swap(&d->busy, 1, 0);
#endif
}

/* The flow whose database is on this host begins, with the first bytes of a direction: its handshake was
 * done before its socket was there. Those of a flow that began before this program are not the first. */
static __always_inline void begin_incoming(struct up_observed *o, __u32 is_request, __u32 seq)
{
	struct up_meter *m;

	if (o->begun || seq != (is_request ? o->request_seq : o->answer_seq) ||
	    __sync_val_compare_and_swap(&o->begun, 0, 1))
		return;
	m = begin(&o->connect, o->connect.cookie);
	if (!m)
		return;
	m->client = o->client;
	begin_reading(&m->requests.at, o->request_seq);
	begin_reading(&m->responses.at, o->answer_seq);
	if (!o->connect.taps)
		return;
	tap_begin(m);
	tap_start(m->connect.cookie, 1, o->request_seq);
	tap_start(m->connect.cookie, 0, o->answer_seq);
}

/* Of the socket; null: it is not observed. */
static __always_inline struct up_observed *observed_of(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	/* A socket that is none in full has no storage. */
	return sk ? bpf_sk_storage_get(&observed, sk, 0, 0) : 0;
}

/* Obeys what the agent has read in the session, if it has. */
static __always_inline void settle(struct __sk_buff *skb, struct up_observed *o, struct up_meter *m)
{
	__u64 cookie = o->connect.cookie;
	struct up_tap_outcome *outcome = bpf_map_lookup_elem(&tap_outcomes, &cookie);
	struct bpf_sock *sk = skb->sk;

	if (!outcome)
		return;
	o->connect.taps = m->connect.taps = outcome->taps;
	m->connect.slot = outcome->slot;
	m->connect.generation = outcome->generation;
	m->connect.forgets = outcome->forgets;
	if (outcome->leaves) {
		/* What has ended stays so. */
		m->ended = 1;
		sk = sk ? bpf_sk_fullsock(sk) : 0;
		if (sk)
			bpf_sk_storage_delete(&observed, sk);
	}
	bpf_map_delete_elem(&tap_outcomes, &cookie);
}

/* Copies a packet of a tapped flow that has been read, unless it was copied before. Returns for how many of its
 * bytes there was no room. */
static __always_inline __u32 copy_read(const struct walk *w, struct up_direction *d, struct tap *tap)
{
	/* Of a connection that was joined nothing can be read before a header. */
	if (d->at.framing == UP_FRAMING_ANY)
		return 0;
	tap_see(&tap->after, d);
	tap->cookie = w->cookie;
	tap->at_ns = w->now_ns;
	tap->frame_at = d->frame_at;
	tap->has_frame = d->has_frame;
	tap->is_request = w->is_request;
	return (__u32)tap_packet(w->skb, tap);
}

/* Payload, whose turn it is: `bytes` from `seq` on, at `off` in the packet. */
static __always_inline void read_payload(struct walk *w, struct up_meter *m, struct up_direction *d, __u32 off,
					 __u32 seq, __u32 bytes, __u32 is_egress)
{
	__u32 is_tapped = m->connect.taps && !is_left_out(&m->connect);
	__u64 frames = d->frames;
	__u32 told = TAP_NOT_YET, lost = 0;
	struct tap tap = { .seq = seq, .off = off, .is_egress = is_egress };

	d->has_frame = 0;
	w->now_ns = bpf_ktime_get_ns();
	if (is_tapped) {
		if (bytes <= UP_TAP_ID_BYTES && is_in_step(d, seq))
			told = tap_whole(w->skb, m, w->is_request, off, w->now_ns);
		else
			tap_see(&tap.before, d);
	}
	if (!whole_frame(w, m, d, off, seq, bytes, told == TAP_TOLD))
		on_bytes(w, d, off, seq, bytes);
	if (!is_tapped || told == TAP_TOLD) {
		d->missed = !is_tapped;
		return;
	}
	lost = told == TAP_LOST ? bytes : copy_read(w, d, &tap);
	d->missed = 0;
	d->lost_bytes += lost;
	if (lost) {
		d->missed = 1;
		d->lost_frames += d->frames - frames;
	}
}

static __always_inline void meter(struct __sk_buff *skb, __u32 is_egress)
{
	struct walk w = { .skb = skb, .is_request = is_egress };
	struct up_observed *o = 0;
	struct up_direction *d;
	struct headers h = {};
	struct up_meter *m;

	if (!meter_without_socket) {
		o = observed_of(skb);
		if (!o)
			return;
		w.cookie = o->connect.cookie;
		/* The socket is the database's. */
		if (o->client.family)
			w.is_request = !is_egress;
	}
	if (!read_headers(skb, &h))
		return;
	if (o && o->client.family) {
		/* One of another connection's. */
		if (h.syn)
			return;
		begin_incoming(o, w.is_request, h.seq);
	} else if (is_egress && h.syn) {
		begin(o ? &o->connect : 0, w.cookie);
	}
	m = bpf_map_lookup_elem(&meters, &w.cookie);
	if (!m)
		return;
	d = direction(m, w.is_request);
	if (h.syn) {
		if (is_egress) {
			keep_client(m, skb);
			if (m->connect.taps)
				tap_begin(m);
		}
		/* The answer to the SYN may come again when reading is far beyond it. */
		if (d->at.sync == UP_SYNC_NONE) {
			begin_reading(&d->at, h.seq + 1);
			if (m->connect.taps)
				tap_start(w.cookie, w.is_request, h.seq + 1);
		}
		/* Bytes in it (TCP fast open) come behind it. */
		h.seq += 1;
	}
	if (d->at.sync == UP_SYNC_NONE || h.payload_at >= skb->len)
		return;
	/* Left unread it is a hole. */
	if (!take_turn(d)) {
		if (m->connect.taps) {
			__sync_fetch_and_add(&d->lost_bytes, skb->len - h.payload_at);
			/* Who has the turn may write over it. Sequence numbers show a hole as small as that. */
			d->missed = 1;
		}
		return;
	}
	read_payload(&w, m, d, h.payload_at, h.seq, skb->len - h.payload_at, is_egress);
	end_turn(d);
	if (o && m->connect.taps & UP_TAP_ASKS)
		settle(skb, o, m);
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
