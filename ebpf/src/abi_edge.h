/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What the edge's XDP program and the agent both see; the rules of abi.h hold here, too. The
 * kernel keeps the edge's maps while the agent is away: whoever changes what a value here means
 * without changing its layout counts UP_EDGE_VERSION up.
 */
#pragma once

#include "abi.h"

enum up_edge_limit {
	UP_EDGE_VERSION = 2,
	/* Distinct networks in `from`, and in `to`: of each family, for both generations together. */
	UP_MAX_EDGE_NETWORKS = 16384,
	/* Blocks of 256 IPv4 networks each, 512 bytes, for one generation: /24 networks in 4,096
	 * different /16, or 2,048 addresses in as many. What has none is left to the kernel's trie. */
	UP_EDGE_BLOCKS = 4096,
	UP_EDGE_BLOCK = 256,
	UP_EDGE_ROOT = 65536,
	/* Of a cell: the rest is a block's number; the trie knows. */
	UP_EDGE_IN_BLOCK = 0x8000,
	UP_EDGE_IN_TRIE = 0xffff,
	/* Lengths that IPv6 prefixes have, and how often they are halved at most. */
	UP_EDGE_LENGTHS = 128,
	UP_EDGE_HALVINGS = 8,
	/* Of the tables of IPv6 prefixes, each 64 bytes: a thousand networks of one length find room. What
	 * has none is left to the kernel's trie. */
	UP_EDGE_BUCKETS = 4096,
	UP_EDGE_BUCKET_BITS = 12,
	UP_EDGE_IN_BUCKET = 3,
	UP_EDGE_NO_LENGTH = 0xff,
	/* Cells of one table of classes, 2 MiB for each generation: what 1,000 rules that have a
	 * network, a port and a virtual address of their own each come to. */
	UP_EDGE_CELLS = 1048576,
	/* Of a source and a port: it depends on the destination's network, too. */
	UP_EDGE_DEPENDS = 0xffff,
	UP_EDGE_LINE = 32,
	UP_EDGE_LINES = 32768,
	UP_EDGE_PORTS = 65536,
	/* Interfaces with a program of ours. */
	UP_MAX_EDGE_INTERFACES = 64,
	/* Sources whose SYNs are counted; the one that was not heard of for longest gives way. */
	UP_MAX_EDGE_SOURCES = 131072,
	/* Connections that are forwarded, unless the file says otherwise: 18 MiB. */
	UP_EDGE_CONNECTIONS = 65536,
	/* Ways that a processor remembers, for a moment: 5 MiB each. */
	UP_EDGE_ROUTES = 32768,
	/* Tables of backends, two for each rule that forwards; 64 KiB each. */
	UP_MAX_EDGE_TABLES = 128,
	/* A prime, as Maglev wants, and the largest that lets two hexadecimal digits say where. */
	UP_EDGE_TURNS = 65521,
	UP_EDGE_TURN_BYTES = 65536,
	/* Ports that are tried before a new connection takes the stack. */
	UP_EDGE_PORT_TRIES = 16,
	/* Between two of them: a prime, so that connections that begin at one port part. */
	UP_EDGE_PORT_STEP = 509,
	/* Of the gateway's own ports towards a backend: from here to where the kernel's own begin. */
	UP_EDGE_FIRST_PORT = 1024,
	/* A connection that its client has not gone on with for so long loses its port to another. */
	UP_EDGE_UNANSWERED_S = 5,
	/* Of a segment whose checksum its sender left to the hardware: jumbo frames and some. */
	UP_EDGE_SUM_BYTES = 512,
	UP_EDGE_SUM_STEPS = 20,
	/* VLAN tags; IPv6 extension headers: what has more passes unread. */
	UP_EDGE_TAGS = 2,
	UP_EDGE_EXTENSIONS = 4,
};

/* What became of a packet; each is counted once. */
enum up_edge_verdict {
	/* Not TCP, nor ICMP of a forwarded connection; or no rule of the edge speaks of it. */
	UP_EDGE_OTHER = 0,
	/* Its rule lets it pass. */
	UP_EDGE_ALLOWED = 1,
	UP_EDGE_DENIED = 2,
	/* A SYN of a source that sends more of them than it may. */
	UP_EDGE_LIMITED = 3,
	UP_EDGE_TO_BACKEND = 4,
	UP_EDGE_TO_CLIENT = 5,
	/* An ICMP error about a forwarded connection, to whoever it is for. */
	UP_EDGE_ICMP_ERROR = 6,
	/* Dropped until the host knows the next hop's MAC; the agent has it asked for. */
	UP_EDGE_NO_NEIGHBOUR = 7,
	/* Of a forwarded connection or one that would be: passed up if a client has sent it, dropped
	 * if a backend has. */
	UP_EDGE_MALFORMED = 8,
	UP_EDGE_FRAGMENT = 9,
	UP_EDGE_IP_OPTIONS = 10,
	UP_EDGE_EXTENSION_HEADER = 11,
	UP_EDGE_VLAN = 12,
	UP_EDGE_TTL = 13,
	/* Answered with an ICMP error, whoever has sent it. */
	UP_EDGE_TOO_BIG = 14,
	UP_EDGE_NO_ROUTE = 15,
	UP_EDGE_NO_BACKEND = 16,
	UP_EDGE_NO_PORT = 17,
	UP_EDGE_TABLE_FULL = 18,
	/* Of a connection whose backend was given up: its client is told. */
	UP_EDGE_RESET = 19,
	UP_EDGE_VERDICTS = 20,
};

/* What became of a connection that a rule speaks of: the columns of a rule's counter. */
enum up_edge_outcome {
	UP_EDGE_OUTCOME_ALLOWED = 0,
	UP_EDGE_OUTCOME_DENIED = 1,
	UP_EDGE_OUTCOME_LIMITED = 2,
	UP_EDGE_OUTCOME_FORWARDED = 3,
	/* To be forwarded, and given to the stack. */
	UP_EDGE_OUTCOME_PASSED_UP = 4,
	UP_EDGE_OUTCOMES = 5,
};

enum up_edge_forward {
	UP_EDGE_FORWARD_OFF = 0,
	UP_EDGE_FORWARD_SNAT = 1,
	UP_EDGE_FORWARD_DSR = 2,
};

/* How the classes of one generation are to be combined. */
struct up_edge_scheme {
	/* Classes of destination networks, and of (port, network) pairs. */
	__u32 networks;
	__u32 targets;
	/* Classes of ports; 0: there is no table of what a source and a port decide. */
	__u32 ports;
	/* Whether a rule names sources; and networks for ports that no rule names. Otherwise they are not
	 * looked up. */
	__u8 uses_from;
	__u8 uses_networks;
	/* Some virtual address is the agent's: the stack has sockets there. */
	__u8 has_taken;
	__u8 pad;
};

struct up_edge_settings {
	/* The one in force is `generation & 1`. It only ever grows: a connection that was last asked
	 * about under another one is asked about again. */
	__u32 generation;
	/* The gateway's ports towards backends. */
	__u16 first_port;
	__u16 ports;
	/* Connections may have been forwarded since the table was made. */
	__u8 forwards;
	__u8 pad[7];
	struct up_edge_scheme schemes[UP_GENERATIONS];
};

/* A destination port's class, by generation * UP_EDGE_PORTS + port. */
struct up_edge_port {
	__u16 class;
	/* A rule that denies names it: then all packets to it are asked about, not only SYNs. */
	__u8 strict;
	/* It depends on the destination's network what the pair's class is. */
	__u8 uses_networks;
};

/* A longest-prefix key; the prefix covers the generation. */
struct up_edge_network4 {
	__u32 prefix_bits;
	__u32 generation;
	__u8 addr[4];
};

struct up_edge_network6 {
	__u32 prefix_bits;
	__u32 generation;
	__u8 addr[16];
};

/* Which addresses of a packet. */
enum up_edge_side {
	UP_EDGE_SOURCES = 0,
	UP_EDGE_DESTINATIONS = 1,
	UP_EDGE_SIDES = 2,
};

/* What is known of an IPv4 address by its first two bytes, by generation * UP_EDGE_SIDES + side: its
 * class, or UP_EDGE_IN_BLOCK and the block that knows by the next byte, or UP_EDGE_IN_TRIE. */
struct up_edge_root {
	__u16 cells[UP_EDGE_ROOT];
};

/* The same, by one byte more; by generation * UP_EDGE_BLOCKS + number. */
struct up_edge_block {
	__u16 cells[UP_EDGE_BLOCK];
};

/* An address as far as a prefix goes, or the bits that are within it; two numbers, the first half first. */
struct up_edge_prefix {
	__u64 halves[2];
};

/* The lengths of IPv6 prefixes that there are, the shortest first; by generation * UP_EDGE_SIDES + side. */
struct up_edge_lengths {
	struct up_edge_prefix masks[UP_EDGE_LENGTHS];
	/* Of the hash. */
	__u64 multiplier;
	__u32 count;
	/* Of the addresses that no prefix has. */
	__u32 class;
};

/* Some of the prefixes, by (generation * UP_EDGE_SIDES + side) * UP_EDGE_BUCKETS + hash. */
struct up_edge_bucket {
	struct up_edge_prefix prefixes[UP_EDGE_IN_BUCKET];
	__u16 classes[UP_EDGE_IN_BUCKET];
	/* Places among the lengths; UP_EDGE_NO_LENGTH: there is none. */
	__u8 lengths[UP_EDGE_IN_BUCKET];
	/* There are more: the trie knows. */
	__u8 is_full;
	__u8 pad[6];
};

/* Cells of a table that is looked up by class. */
struct up_edge_line {
	__u16 cells[UP_EDGE_LINE];
};

/* A rule, by generation * UP_MAX_RULES + slot. */
struct up_edge_rule {
	__u8 action;
	/* It names ports: a deny holds for packets without SYN, too. */
	__u8 strict;
	/* It has backends. */
	__u8 forwards;
	__u8 pad;
	/* Its table of backends; only if it forwards. */
	__u32 table;
};

struct up_edge_rule_count {
	__u64 by_outcome[UP_EDGE_OUTCOMES];
};

/* By ifindex. */
struct up_edge_interface {
	/* Between two SYNs of one source at its rate; 0: there is no limit. */
	__u64 syn_interval_ns;
	/* How far ahead of its rate a source may be. */
	__u64 syn_burst_ns;
	__u8 forward;
	/* The program runs in the kernel's stack, where a checksum that the sender left to the
	 * hardware is still completed on the way out. */
	__u8 generic;
	__u8 pad[6];
};

/* A source prefix; IPv4's as everywhere, IPv6's without its lower half. */
struct up_edge_source {
	__u8 addr[16];
};

/* An address of the table of backends: by table * UP_MAX_BACKENDS + number. */
struct up_edge_backend {
	__u8 addr[16];
	/* The gateway's own address towards it; not for DSR. */
	__u8 source[16];
	__be16 port_be;
	__u8 has_source;
	__u8 pad[5];
};

/* Whose turn it is, by hash. */
struct up_edge_turns {
	__u8 backend[UP_EDGE_TURN_BYTES];
};

/* How one direction of a connection arrives. */
struct up_edge_tuple {
	__u8 src[16];
	__u8 dst[16];
	__be16 sport_be;
	__be16 dport_be;
};

enum up_edge_direction {
	UP_EDGE_REQUEST = 0,
	UP_EDGE_REPLY = 1,
	UP_EDGE_DIRECT = 2,
};

enum up_edge_ended {
	UP_EDGE_ENDED_BY_CLIENT = 1,
	UP_EDGE_ENDED_BY_BACKEND = 2,
	UP_EDGE_ENDED_BY_RESET = 4,
	/* Its backend is dead: the client's next packet is answered with a reset. */
	UP_EDGE_ENDED_BY_AGENT = 8,
};

/* How it goes on. */
struct up_edge_flow {
	struct up_edge_tuple to;
	/* Of the policy that was last asked about it. */
	__u32 generation;
	/* When it was opened, by the kernel's monotonic clock. */
	__u32 opened_s;
	__u8 direction;
	/* Of a request: the client has got an answer and goes on; UP_EDGE_ENDED_*. */
	__u8 answered;
	__u8 ended;
	__u8 pad;
	/* Of a reply: where requests come from, should the host not know the client's MAC. */
	__u8 mac[6];
	__u8 own_mac[6];
	__u32 ifindex;
};

_Static_assert(UP_EDGE_BUCKETS == 1 << UP_EDGE_BUCKET_BITS, "a hash's first bits are a bucket");
_Static_assert(sizeof(struct up_edge_bucket) == 64, "a bucket is a line of a processor's cache");
_Static_assert(sizeof(struct up_edge_tuple) == 36, "a tuple is a key without padding");
_Static_assert(sizeof(struct up_edge_flow) == 64, "a flow has no padding of the compiler's");
