/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* The edge's maps. All are pinned: they outlive the agent, and the next one takes them over. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "../abi_edge.h"
#include "../verified_once.h"

#define ARRAY(name, entries, what) \
	struct { \
		__uint(type, BPF_MAP_TYPE_ARRAY); \
		__uint(max_entries, entries); \
		__type(key, __u32); \
		__type(value, what); \
	} name SEC(".maps")

#define PER_CPU_ARRAY(name, entries, what) \
	struct { \
		__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); \
		__uint(max_entries, entries); \
		__type(key, __u32); \
		__type(value, what); \
	} name SEC(".maps")

#define LRU(name, entries, by, what) \
	struct { \
		__uint(type, BPF_MAP_TYPE_LRU_HASH); \
		__uint(max_entries, entries); \
		__type(key, by); \
		__type(value, what); \
	} name SEC(".maps")

#define NETWORKS(name, by) \
	struct { \
		__uint(type, BPF_MAP_TYPE_LPM_TRIE); \
		__uint(max_entries, UP_MAX_EDGE_NETWORKS); \
		__uint(map_flags, BPF_F_NO_PREALLOC); \
		__type(key, by); \
		__type(value, __u32); \
	} name SEC(".maps")

/* Agent → program. The policy, by generation: what the one that is not in force has is erased when
 * the next is about to be written. A network's value is its class. */
ARRAY(edge_settings, 1, struct up_edge_settings);
NETWORKS(edge_sources4, struct up_edge_network4);
NETWORKS(edge_sources6, struct up_edge_network6);
NETWORKS(edge_networks4, struct up_edge_network4);
NETWORKS(edge_networks6, struct up_edge_network6);
/* The same for IPv4, for most of it: without a walk. */
ARRAY(edge_roots, UP_GENERATIONS * UP_EDGE_SIDES, struct up_edge_root);
ARRAY(edge_blocks, UP_GENERATIONS * UP_EDGE_BLOCKS, struct up_edge_block);
/* And for IPv6. */
ARRAY(edge_lengths, UP_GENERATIONS * UP_EDGE_SIDES, struct up_edge_lengths);
ARRAY(edge_buckets, UP_GENERATIONS * UP_EDGE_SIDES * UP_EDGE_BUCKETS, struct up_edge_bucket);
ARRAY(edge_ports, UP_GENERATIONS * UP_EDGE_PORTS, struct up_edge_port);
/* [source's class][port's class] → as edge_matches, or UP_EDGE_DEPENDS: the destination has a say. */
ARRAY(edge_early, UP_GENERATIONS * UP_EDGE_LINES, struct up_edge_line);
/* [port's class][network's class] → the pair's class. */
ARRAY(edge_targets, UP_GENERATIONS * UP_EDGE_LINES, struct up_edge_line);
/* [source's class][pair's class] → 1 + the slot of the first rule that holds; 0: none does. */
ARRAY(edge_matches, UP_GENERATIONS * UP_EDGE_LINES, struct up_edge_line);
ARRAY(edge_rules, UP_GENERATIONS * UP_MAX_RULES, struct up_edge_rule);

/* Agent → program; an entry dies when its interface is let go. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_EDGE_INTERFACES);
	__type(key, __u32);
	__type(value, struct up_edge_interface);
} edge_interfaces SEC(".maps");

/* Agent → program; written in whole before a rule names them. */
ARRAY(edge_turns, UP_MAX_EDGE_TABLES, struct up_edge_turns);
ARRAY(edge_backends, UP_MAX_EDGE_TABLES * UP_MAX_BACKENDS, struct up_edge_backend);

/* Program only; what was not used for longest gives way. Of a source: when its next SYN would be
 * due, were it never ahead of its rate. Of a connection: two entries, or one for DSR. */
LRU(edge_syns, UP_MAX_EDGE_SOURCES, struct up_edge_source, __u64);
LRU(edge_flows, 2 * UP_EDGE_CONNECTIONS, struct up_edge_tuple, struct up_edge_flow);

/* Program only: how often an entry of edge_flows came or went, by the slot of its tuple (route_cache.h). */
ARRAY(edge_changes, UP_EDGE_ROUTES, __u32);

/* Program → agent. */
PER_CPU_ARRAY(edge_packets, UP_EDGE_VERDICTS, __u64);
PER_CPU_ARRAY(edge_counts, UP_GENERATIONS * UP_MAX_RULES, struct up_edge_rule_count);

/* Program only; good for the length of a packet. What would not fit onto the stack. */
struct up_edge_scratch {
	__u8 bytes[UP_EDGE_SUM_BYTES + 4];
	struct up_edge_tuple reply_key;
	struct up_edge_flow request;
	struct up_edge_flow reply;
};
PER_CPU_ARRAY(edge_scratch, 1, struct up_edge_scratch);

/* The next hop, with what it was asked about. */
struct up_edge_hop {
	__u8 to[6];
	__u8 from[6];
	/* 0: it was not asked for yet. */
	__u32 ifindex;
	__u32 ingress_ifindex;
	/* IPv4's type of service, IPv6's first word without the version. */
	__u32 kind;
	/* A packet of so many bytes fits. */
	__u32 most;
};

/* What packets of a tuple become: a copy of the connection's entry. */
struct up_edge_route {
	struct up_edge_tuple tuple;
	__u32 changes;
	__u64 tick;
	struct up_edge_flow flow;
	struct up_edge_hop hop;
	__u32 pad;
};

/* Program only; a program begins with none. By processor * UP_EDGE_ROUTES + slot: the agent makes
 * room for every processor. */
ARRAY(edge_routes, UP_EDGE_ROUTES, struct up_edge_route);

static __always_inline struct up_edge_scratch *scratch_of_this_cpu(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&edge_scratch, &only);
}
