/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The edge's look at frames, compiled for this host: the same source that the kernel runs. One frame for each thread.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <linux/bpf.h>

#include "../../../ebpf/src/edge/parse.h"

/* Addresses in struct xdp_md have 32 bits. So the frame lies below 4 GiB, and ends at a page that nobody may read. */
#define ROOM (1 << 17)
#define LOWEST 0x10000000ul
#define HIGHEST 0x60000000ul

struct up_host_parsed {
	struct up_edge_tuple tuple;
	__u32 kind;
	__u8 flags;
	__u8 is_ipv6;
	__u8 opens;
	__u8 oddity;
};

static __thread __u64 frame_bytes;

__u64 bpf_xdp_get_buff_len(struct xdp_md *ctx)
{
	(void)ctx;
	return frame_bytes;
}

/* The end of the room for a frame; 0: there is no memory for one. */
static __u8 *room(void)
{
	static __thread __u8 *end;
	unsigned long page = sysconf(_SC_PAGESIZE), at;
	__u8 *got;

	for (at = LOWEST; !end && at < HIGHEST; at += 2 * ROOM) {
		got = mmap((void *)at, ROOM + page, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		if (got == MAP_FAILED)
			continue;
		if (mprotect(got + ROOM, page, PROT_NONE))
			return NULL;
		end = got + ROOM;
	}
	return end;
}

/* Looks at a frame of `n` bytes, of which the first buffer has `first`. Not 0: it cannot be looked at. */
__u32 up_host_parse(const __u8 *bytes, __u32 first, __u32 n, struct up_host_parsed *out)
{
	__u8 *end = room();
	struct packet p = {};
	struct xdp_md ctx = {};

	if (!end || first > ROOM)
		return 1;
	memcpy(end - first, bytes, first);
	frame_bytes = n;
	ctx.data = (__u32)(unsigned long)(end - first);
	ctx.data_end = (__u32)(unsigned long)end;
	out->kind = parse(&ctx, &p);
	out->tuple = p.tuple;
	out->flags = p.flags;
	out->is_ipv6 = p.is_ipv6;
	out->opens = p.opens;
	out->oddity = p.oddity;
	return 0;
}
