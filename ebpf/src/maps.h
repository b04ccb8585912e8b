/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Every map: who writes, who reads, how an entry dies. The kernel's words and the agent's
 * are in separate maps, so that no update is lost between them. */
#pragma once

#include "abi.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct up_agent_settings);
} settings SEC(".maps"); /* agent → connect hooks; never dies */

/* By the namespace's cookie; the agent's own is there, too. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_NETNS_AGENTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct up_netns_agent);
} netns_agents SEC(".maps"); /* agent → connect hooks; the agent removes it a moment before it closes the
			  * listeners */

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, UP_UNSERVED_RING_BYTES);
} unserved SEC(".maps"); /* connect hooks → agent; consumed */

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, UP_DENIAL_RING_BYTES);
} denials SEC(".maps"); /* connect hooks, sk_lookup → agent; consumed */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct up_denial_turn);
} denial_turns SEC(".maps"); /* of whoever writes `denials`; never dies */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, UP_GENERATIONS);
	__type(key, __u32);
	__type(value, struct up_policy);
} policies SEC(".maps"); /* agent → connect hooks; overwritten by the next but one policy */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, UP_GENERATIONS * UP_MAX_RULES);
	__type(key, __u32);
	__type(value, struct up_rule);
} rules SEC(".maps"); /* as policies */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, UP_GENERATIONS * UP_MAX_BALANCED);
	__type(key, __u32);
	__type(value, struct up_backend_slots);
} backend_slots SEC(".maps"); /* agent → connect hooks; as policies, and changed in place when a backend's health
		      * does */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, UP_GENERATIONS * UP_MAX_BALANCED * UP_MAX_BACKENDS);
	__type(key, __u32);
	__type(value, struct up_endpoint);
} backends SEC(".maps"); /* as policies */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, UP_GENERATIONS * UP_MAX_BALANCED * UP_MAX_BACKENDS);
	__type(key, __u32);
	__type(value, __u64);
} balanced SEC(".maps"); /* connect hooks → agent: connections by backend; zeroed with its generation.
			  * One for all CPUs: connect() is rare, and CPUs are many */

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct up_endpoint);
} virtuals SEC(".maps"); /* connect hooks → name hooks: the virtual address that was dialled; dies with
			  * the socket. The next agent uses the same map: sockets outlive agents */

/* The next six: agent → connect hooks. The entries of a generation are erased when the
 * next policy is about to be written over it, so a connect() that began under the old
 * policy still finds it whole. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, UP_MAX_TARGETS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct up_target_key);
	__type(value, struct up_rule_set);
} targets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, UP_MAX_PROCESSES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct up_process_key);
	__type(value, struct up_rule_set);
} processes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_UIDS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct up_uid_key);
	__type(value, struct up_rule_set);
} uids SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_GIDS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct up_gid_key);
	__type(value, struct up_rule_set);
} gids SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_CGROUPS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct up_cgroup_key);
	__type(value, struct up_rule_set);
} cgroups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_NAMESPACES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct up_netns_key);
	__type(value, struct up_rule_set);
} namespaces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, UP_MAX_SOURCES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct up_source_key);
	__type(value, struct up_rule_set);
} sources SEC(".maps"); /* agent → incoming, sock_ops; erased as the six above */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, UP_GENERATIONS * UP_RULE_SLOTS);
	__type(key, __u32);
	__type(value, struct up_decisions);
} decisions SEC(".maps"); /* connect hooks → agent; zeroed with its generation */

/* A user, a process or an address, for one limit. */
struct client {
	/* Of `counted`: UP_NOBODY when it has been taken off the count. */
	__u32 limit_id;
	/* An id in the first word, or an address. */
	__u32 who[4];
};

/* Connections of a client that are not established yet. */
struct connecting {
	__u64 last_ns;
	__u32 n;
	__u32 pad;
};

#define UP_NOBODY (~0u)

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_CLIENTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct client);
	__type(value, __u64);
} client_connections SEC(".maps"); /* connect hooks, on_release, sock_ops: how many it has; dies with the last of them */

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, UP_MAX_CONNECTING);
	__type(key, struct client);
	__type(value, struct connecting);
} clients_connecting SEC(".maps"); /* sk_lookup, sock_ops; dies as the oldest */

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct client);
} counted SEC(".maps"); /* connect hooks, sock_ops → on_release, sock_ops: whose connection it is; dies with the socket */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_FULL_QUOTAS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct up_quota);
	__type(value, __u32);
} full_quotas SEC(".maps"); /* agent → connect hooks; the agent removes it when there is room again */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_REMEMBERED);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct up_opener);
	__type(value, struct up_remembered);
} remembered SEC(".maps"); /* agent → connect hooks; the agent removes it when it holds for nobody any
			    * more. Not an LRU: that keeps its memory from the start, and drops
			    * what nobody counts */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, UP_CAUSES);
	__type(key, __u32);
	__type(value, __u64);
} causes SEC(".maps"); /* every program → agent; never dies */

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct up_flow);
} flows SEC(".maps"); /* connect hooks, sock_ops → name hooks; dies with the socket */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_PENDING_CONNECTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct up_connect_key);
	__type(value, struct up_connect);
} pending_connects SEC(".maps"); /* sock_ops → hold filter, agent; dies when the client's handshake is done,
		      * or when its socket closes */

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, UP_MAX_FRESH);
	__type(key, struct up_connect_key);
	__type(value, __u64);
} fresh SEC(".maps"); /* sock_ops → hold filter: when the last packet of a handshake came,
		       * CLOCK_MONOTONIC, 0 until then; dies when the agent has accepted the
		       * connection, outdated after UP_FRESH_NS, dropped for newer ones */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_PENDING_CONNECTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct up_release);
} releases SEC(".maps"); /* agent → hold filter, sock_ops; dies when the client's handshake is
			  * done, or with the agent's flow, or when the socket is used again */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_METERS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct up_meter);
} meters SEC(".maps"); /* meter, sock_ops → agent, which removes what has ended. Entered by the meter,
			* which goes with the agent, and not by the connect hooks, which stay */

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct up_observed);
} observed SEC(".maps"); /* connect hooks, sock_ops, adopt_connections → sock_ops, meter; dies with the socket */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_METERS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct up_adoption);
} adoptions SEC(".maps"); /* agent → adopt_connections, which says what became of each; the agent removes it
			   * when that has run */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct up_meter);
} new_meter SEC(".maps"); /* nobody → meter: zeros, too many for a program's stack */

/* The agent makes the rings, and of the size that it wants, when a rule taps. */
struct tap_ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	/* The slots' first rings, and then their second ones. */
	__uint(max_entries, 2 * UP_TAP_SLOTS);
	__type(key, __u32);
	__array(values, struct tap_ring);
} tap_rings SEC(".maps"); /* meter, sock_ops → agent; consumed */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, UP_TAP_SLOTS);
	__type(key, __u32);
	__type(value, __u32);
} tap_sleeps SEC(".maps"); /* agent → meter, which zeroes it: the reader waits to be woken by one of the slot's rings */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, UP_GENERATIONS * UP_RULE_SLOTS);
	__type(key, __u32);
	__type(value, struct up_tap_share);
} tap_left_out SEC(".maps"); /* agent → meter: which share of a rule's flows is not copied; never dies */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_METERS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct up_tap_outcome);
} tap_outcomes SEC(".maps"); /* agent → meter, which takes it out with the flow's next packet; the agent takes out that
			      * of a flow that has ended */

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, UP_HELD_RING_BYTES);
} held SEC(".maps"); /* hold filter → agent; consumed */

/* Spliced flows, by the cookie of the dialled socket. The first five hold sockets. The agent's leave
 * when they close, and never before: to remove one that lives may lose a packet. `near_apps` and `far_apps`
 * have an sk_msg; applications' sockets leave them when their flow does (readers.h). Only `far_legs` has a stream verdict; an application's socket with one may see EAGAIN
 * where it would block. Dialled sockets to which nothing comes but by spills are in `far_sinks` instead. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, UP_MAX_SPLICES);
	__type(key, __u64);
	__type(value, __u32);
} near_apps SEC(".maps"), far_apps SEC(".maps"), near_legs SEC(".maps"), far_legs SEC(".maps"),
	far_sinks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct up_shortcut_limits);
} shortcut_limits SEC(".maps"); /* agent → connect hooks, shortcut; never dies */

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct up_spliced);
} spliced SEC(".maps"); /* splice_look → splice_up, splice_back; dies with the application's socket */

/* `up_splice_slot`, with the lock by the name that the kernel looks for. */
struct splice_slot {
	struct bpf_spin_lock lock;
	__u32 pad;
	struct up_splice_order order;
};
_Static_assert(sizeof(struct splice_slot) == sizeof(struct up_splice_slot), "splice_slot");

/* With room for every entry from the start: an order that cannot be taken back would be the end of
 * its flow. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_SPLICES);
	__type(key, __u64);
	__type(value, struct splice_slot);
} splice_orders SEC(".maps"); /* agent → splice programs; the agent removes it */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_SPLICES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct up_splice);
} splices SEC(".maps"); /* splice programs → agent, which removes it */

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, UP_SPLICE_RING_BYTES);
} splice_calls SEC(".maps"); /* splice_down → agent; ids; consumed */

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct up_shortcut_wish);
} shortcut_wishes SEC(".maps"); /* connect hooks → shortcut's sock_ops, iterator; dies when the socket
				 * is enrolled or connects again, or with it */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_SHORTCUT_ENDS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct up_shortcut_key);
	__type(value, struct up_shortcut_first);
} shortcut_firsts SEC(".maps"); /* shortcut's sock_ops; dies when the database's end is enrolled
				 * or refused, or when the client's closes */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_SHORTCUT_ENDS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct up_shortcut_end);
} shortcut_ends SEC(".maps"); /* shortcut's sock_ops, leg_look, sk_msg; dies when the socket closes */

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, UP_MAX_SHORTCUT_ENDS);
	__type(key, __u64);
	__type(value, __u32);
} shortcut_socks SEC(".maps"); /* shortcut's sock_ops, leg_look → sk_msg; an entry dies with its socket.
				* Carries the sk_msg program and no other */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, UP_TURNS);
	__type(key, __u32);
	__type(value, struct up_turn_count);
} shortcut_turns SEC(".maps"); /* sk_msg → agent; never dies */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct up_shortcut_count);
} shortcut_counts SEC(".maps"); /* shortcut's sock_ops → agent; never dies */

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, UP_SPILL_RING_BYTES);
} spills SEC(".maps"); /* sk_msg → agent: it is to nudge readers; consumed */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct up_nudge_count);
} nudges SEC(".maps"); /* nudging iterator → agent, which zeroes it before each look */

/* Namespaces whose incoming connections are steered, and their numbers, by the kernel's. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_INCOMING);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
} incoming_netns SEC(".maps"); /* agent → connect hooks, sock_ops, iterator; never dies */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_INCOMING_PORTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} incoming_ports SEC(".maps"); /* agent → sock_ops, iterator; 0: any; dies with the policy */

/* The agent's listeners for incoming connections: two for each namespace, IPv4's first. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 2 * UP_MAX_INCOMING);
	__type(key, __u32);
	__type(value, __u32);
} incoming_listeners SEC(".maps"); /* agent → incoming; an entry dies with its socket */

/* By namespace: a socket of the agent's that answers for connections to a database that are gone. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, UP_MAX_INCOMING);
	__type(key, __u32);
	__type(value, __u32);
} incoming_strays SEC(".maps"); /* agent → incoming; an entry dies with its socket */

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, UP_MAX_DATABASES);
	__type(key, struct up_database_key);
	__type(value, __u32);
} databases SEC(".maps"); /* sock_ops, iterator → incoming; an entry dies with its socket. Carries
			   * no program: they accept as ever */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_INCOMING_DIALS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct up_incoming_dial);
	__type(value, struct up_endpoint);
} incoming_dials SEC(".maps"); /* agent → incoming, sock_ops: the database that is meant; the agent removes it
				* when the database has answered */

/* The addresses of the namespaces' devices, without a port. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_OWN_ADDRESSES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct up_database_key);
	__type(value, __u32);
} own_addresses SEC(".maps"); /* agent → incoming, sock_ops; the agent removes it when the address has gone */

/* Virtual addresses whose connections from other hosts are the agent's, because a rule asks for them
 * to be read. The value is 1 + the number of the agent's own namespace among the steered ones, or 0. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UP_MAX_TAKEN_ADDRESSES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct up_endpoint);
	__type(value, __u32);
} taken_addresses SEC(".maps"); /* agent → virtual, incoming; dies with the policy */

/* The agent's listeners for them: IPv4's, IPv6's. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} taken_listeners SEC(".maps"); /* agent → virtual; an entry dies with its socket */
