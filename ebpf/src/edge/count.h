/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Where every packet leaves the program. */
#pragma once

#include "maps.h"

static __always_inline int dispose(__u32 verdict, int action)
{
	__u64 *count = bpf_map_lookup_elem(&edge_packets, &verdict);

	if (count)
		*count += 1;
	return action;
}
