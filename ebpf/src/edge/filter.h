/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * First match over the rules that speak of connections from elsewhere, at a cost that does not
 * grow with their number: the source is looked up, the port, the destination if it has a say; each
 * look-up gives a class, and tables combine them (docs/decisions/0008-edge.md).
 */
#pragma once

#include "parse.h"

struct match {
	const struct up_edge_rule *rule;
	/* Its place in edge_rules and edge_counts. */
	__u32 index;
};

static __always_inline __u32 class6_in_trie(void *networks, __u32 generation, const __u8 addr[16])
{
	struct up_edge_network6 key = {
		.prefix_bits = 32 + 128,
		.generation = generation,
	};
	__u32 *class;

	__builtin_memcpy(key.addr, addr, 16);
	class = bpf_map_lookup_elem(networks, &key);
	return class ? *class : 0;
}

#define NO_CLASS 0xffffffff

/* The class of the prefix of one length that the address has; NO_CLASS: it has none;
 * UP_EDGE_IN_TRIE: the trie knows. As prefixes.rs has it. */
static __always_inline __u32 class_at(const struct up_edge_lengths *lengths, __u32 table, __u32 at,
				      __u64 first, __u64 rest)
{
	const struct up_edge_prefix *mask = &lengths->masks[at & (UP_EDGE_LENGTHS - 1)];
	struct up_edge_bucket *bucket;
	__u64 hash;
	__u32 index;

	first &= mask->halves[0];
	rest &= mask->halves[1];
	hash = first * lengths->multiplier + (rest ^ at) * 0xff51afd7ed558ccdull;
	index = table * UP_EDGE_BUCKETS + (hash >> (64 - UP_EDGE_BUCKET_BITS));
	bucket = bpf_map_lookup_elem(&edge_buckets, &index);
	if (!bucket)
		return UP_EDGE_IN_TRIE;
	for (int i = 0; i < UP_EDGE_IN_BUCKET; i++) {
		const struct up_edge_prefix *prefix = &bucket->prefixes[i];

		if (bucket->lengths[i] == at && prefix->halves[0] == first &&
		    prefix->halves[1] == rest)
			return bucket->classes[i];
	}
	return bucket->is_full ? UP_EDGE_IN_TRIE : NO_CLASS;
}

/* UP_EDGE_IN_TRIE: the trie knows. */
VERIFIED_ONCE __u32 class_of_halves(__u32 table, __u64 first, __u64 rest)
{
	struct up_edge_lengths *lengths = bpf_map_lookup_elem(&edge_lengths, &table);
	__u32 from = 0, to, at, class, best;

	if (!lengths)
		return 0;
	best = lengths->class;
	to = lengths->count;
	for (int i = 0; i < UP_EDGE_HALVINGS; i++) {
		if (from >= to)
			break;
		at = (from + to) / 2;
		class = class_at(lengths, table, at, first, rest);
		if (class == UP_EDGE_IN_TRIE)
			return class;
		if (class == NO_CLASS) {
			to = at;
		} else {
			best = class;
			from = at + 1;
		}
	}
	return best;
}

static __always_inline __u32 class6(void *networks, __u32 side, __u32 generation,
				    const __u8 addr[16])
{
	const __be64 *halves = (const __be64 *)addr;
	__u32 class = class_of_halves(generation * UP_EDGE_SIDES + side,
				      bpf_be64_to_cpu(halves[0]), bpf_be64_to_cpu(halves[1]));

	return class == UP_EDGE_IN_TRIE ? class6_in_trie(networks, generation, addr) : class;
}

static __always_inline __u32 class4_in_trie(void *networks, __u32 generation, __be32 addr)
{
	struct up_edge_network4 key = {
		.prefix_bits = 32 + 32,
		.generation = generation,
	};
	__u32 *class;

	__builtin_memcpy(key.addr, &addr, 4);
	class = bpf_map_lookup_elem(networks, &key);
	return class ? *class : 0;
}

/* What the cell of a block says. */
static __always_inline __u32 in_block(__u32 generation, __u32 cell, __u8 byte)
{
	__u32 index = generation * UP_EDGE_BLOCKS + (cell & ~UP_EDGE_IN_BLOCK);
	struct up_edge_block *block = bpf_map_lookup_elem(&edge_blocks, &index);

	return block ? block->cells[byte] : 0;
}

static __always_inline __u32 class4(void *networks, __u32 side, __u32 generation, __be32 addr_be)
{
	__u32 index = generation * UP_EDGE_SIDES + side, addr = bpf_ntohl(addr_be), cell;
	struct up_edge_root *root = bpf_map_lookup_elem(&edge_roots, &index);

	if (!root)
		return 0;
	cell = root->cells[addr >> 16];
	if (cell & UP_EDGE_IN_BLOCK && cell != UP_EDGE_IN_TRIE)
		cell = in_block(generation, cell, addr >> 8);
	if (cell & UP_EDGE_IN_BLOCK && cell != UP_EDGE_IN_TRIE)
		cell = in_block(generation, cell, addr);
	return cell == UP_EDGE_IN_TRIE ? class4_in_trie(networks, generation, addr_be) : cell;
}

static __always_inline __u32 class_of_source(const struct packet *p, __u32 generation)
{
	if (p->is_ipv6)
		return class6(&edge_sources6, UP_EDGE_SOURCES, generation, p->tuple.src);
	return class4(&edge_sources4, UP_EDGE_SOURCES, generation, *(__be32 *)&p->tuple.src[12]);
}

static __always_inline __u32 class_of_destination(const struct packet *p, __u32 generation)
{
	if (p->is_ipv6)
		return class6(&edge_networks6, UP_EDGE_DESTINATIONS, generation, p->tuple.dst);
	return class4(&edge_networks4, UP_EDGE_DESTINATIONS, generation,
		      *(__be32 *)&p->tuple.dst[12]);
}

/* 0 for what is not in the table, which the compiler of the tables rules out. */
static __always_inline __u32 cell(void *table, __u32 generation, __u32 at)
{
	__u32 index = generation * UP_EDGE_LINES + at / UP_EDGE_LINE;
	struct up_edge_line *line = bpf_map_lookup_elem(table, &index);

	return line ? line->cells[at % UP_EDGE_LINE] : 0;
}

static __always_inline struct up_edge_port *port_of(const struct up_edge_settings *settings,
						    __be16 port_be)
{
	__u32 index = (settings->generation & 1) * UP_EDGE_PORTS + bpf_ntohs(port_be);

	return bpf_map_lookup_elem(&edge_ports, &index);
}

/* False: no rule holds. */
static __always_inline int first_match(const struct up_edge_settings *settings,
				       const struct packet *p, struct match *match)
{
	__u32 generation = settings->generation & 1;
	const struct up_edge_scheme *scheme = &settings->schemes[generation];
	struct up_edge_port *port = port_of(settings, p->tuple.dport_be);
	__u32 source = 0, network = 0, target, slot = UP_EDGE_DEPENDS;

	if (!port)
		return 0;
	if (scheme->uses_from)
		source = class_of_source(p, generation);
	if (scheme->ports)
		slot = cell(&edge_early, generation, source * scheme->ports + port->class);
	if (slot == UP_EDGE_DEPENDS) {
		if (port->class ? port->uses_networks : scheme->uses_networks)
			network = class_of_destination(p, generation);
		target = cell(&edge_targets, generation, port->class * scheme->networks + network);
		slot = cell(&edge_matches, generation, source * scheme->targets + target);
	}
	if (!slot)
		return 0;
	match->index = generation * UP_MAX_RULES + slot - 1;
	match->rule = bpf_map_lookup_elem(&edge_rules, &match->index);
	return !!match->rule;
}

static __always_inline void count_outcome(const struct match *match, __u32 outcome)
{
	struct up_edge_rule_count *count = bpf_map_lookup_elem(&edge_counts, &match->index);

	if (count && outcome < UP_EDGE_OUTCOMES)
		count->by_outcome[outcome] += 1;
}
