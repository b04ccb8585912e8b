/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The meter's times: when a request left, and how long its response took.
 *
 * A request's time is kept under its stream id, in the flow's own meter; the response takes it
 * out. Ids beyond those that are kept, and responses whose request was not seen, are unmatched.
 */
#pragma once

#include "common.h"

#define STREAM_OF_EVENTS 0x8000

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
