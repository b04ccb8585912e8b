/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* The native protocol's headers, as far as lengths go (`native_protocol_v5.spec` §2). */
#pragma once

#include <linux/types.h>

#define FRAME_HEADER 9
#define SEGMENT_HEADER 6
#define SEGMENT_HEADER_LZ4 8
#define SEGMENT_CRC 4
/* What the protocol allows. */
#define MAX_BODY (256u << 20)

static __always_inline __u32 body_of(const __u8 *header)
{
	return (__u32)header[5] << 24 | (__u32)header[6] << 16 | (__u32)header[7] << 8 | header[8];
}
