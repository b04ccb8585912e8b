/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What the BPF programs and the agent both see, and nothing else. All of it in one file, however
 * long: one place to look, and one BTF to make the other side from.
 *
 * Rust's twin, abi.rs, is generated from this file's BTF by `cargo xtask generate`.
 * Fixed-width types, explicit padding, no unions. Fields that end in `_be` are in
 * network byte order; all others are in the host's.
 *
 * Addresses are always 16 bytes: IPv4 is kept as ::ffff:a.b.c.d, so that IPv4,
 * IPv6 and IPv4-mapped sockets share one code path. `family` is what travels on the
 * wire (4 or 6), not the family of the socket.
 */
#pragma once

#include <linux/types.h>

enum up_limit {
	/* Rules in one policy: the width of a rule set. A connect ANDs UP_RULE_WORDS words. */
	UP_MAX_RULES = 1024,
	/* Backends behind the virtual addresses of one rule. */
	UP_MAX_BACKENDS = 128,
	/* Rules with backends in one policy: a slot table of 1 KiB and 128 addresses for each. */
	UP_MAX_BALANCED = 64,
	/* Slots of which a connection draws one; a power of two. A backend of 128 has eight, so that a slow
	 * start has steps. */
	UP_BACKEND_SLOTS = 1024,
	/* In a slot: no backend gets new connections. */
	UP_NO_BACKEND = 255,
	UP_RULE_WORDS = 16,
	/* Rules of a policy that stand in shadow: a connect() may count each. */
	UP_MAX_SHADOWS = 64,
	/* Clients of rules with a limit, while they have connections. */
	UP_MAX_CLIENTS = 65536,
	/* Clients on other hosts that connect by such a rule at the same time. The one that has been at it for longest
	 * gives way: what it has under way does not count until it is connected. */
	UP_MAX_CONNECTING = 4096,
	/* Time that a connection which a SYN began has for its handshake, until it no longer counts: a client that
	 * repeats a segment does so after a second. */
	UP_HANDSHAKE_NS = 1000000000,
	/* One slot per rule and one, the last, for the default. */
	UP_RULE_SLOTS = 1025,
	/* A policy that runs and one that is being written. */
	UP_GENERATIONS = 2,
	/* Distinct (network, port) pairs, for both generations together. */
	UP_MAX_TARGETS = 16384,
	/* Distinct uids, gids, process patterns, cgroups, namespaces: for both generations together. */
	UP_MAX_UIDS = 8192,
	UP_MAX_GIDS = 8192,
	UP_MAX_PROCESSES = 8192,
	UP_MAX_CGROUPS = 8192,
	UP_MAX_NAMESPACES = 8192,
	/* Distinct networks of clients on other hosts: for both generations together. */
	UP_MAX_SOURCES = 16384,
	/* Network namespaces whose incoming connections are steered: a program each. */
	UP_MAX_INCOMING = 8,
	/* Ports of databases there. */
	UP_MAX_INCOMING_PORTS = 8192,
	/* Listening sockets at those ports. */
	UP_MAX_DATABASES = 4096,
	/* Addresses of those namespaces' devices: a host of databases has a handful. */
	UP_MAX_OWN_ADDRESSES = 4096,
	/* Dials to a database on this host that are under way. */
	UP_MAX_INCOMING_DIALS = 65536,
	/* The network that they go to, of IPv4: 127.86.0.16/28. */
	UP_DIALLED_NETWORK_4 = 0x7f560010,
	UP_DIALLED_NETWORK_4_BITS = 28,
	/* Virtual addresses whose connections from other hosts the agent takes: 64 rules can name them. */
	UP_MAX_TAKEN_ADDRESSES = 4096,
	/* Levels of the cgroup tree that a rule can see. The kernel's own default limit is
	 * unlimited; systemd's trees are below 10 deep. */
	UP_CGROUP_DEPTH = 16,
	/* Decisions that are remembered: of a thousand processes on a host with as many endpoints as
	 * a large cluster has, or the other way round; 12 MiB if all are there. */
	UP_MAX_REMEMBERED = 65536,
	/* Network namespaces in which the agent has sockets: twice what a node of a cluster is advised
	 * to hold in pods, and its own. */
	UP_MAX_NETNS_AGENTS = 257,
	/* Users and cgroups at their quota: each holds flows of the agent's, of which there are at most 32,768,
	 * and counts for three. */
	UP_MAX_FULL_QUOTAS = 98304,
	/* Denials that the agent is told of, in a period of so many nanoseconds, by each processor. */
	UP_DENIALS_TOLD = 10,
	UP_DENIAL_PERIOD_NS = 1000000000,
	/* Room for more than the agent is told in that time; when it is full, some are waiting. */
	UP_DENIAL_RING_BYTES = 65536,
	/* Requests to serve namespaces; when it is full, some are waiting. */
	UP_UNSERVED_RING_BYTES = 4096,
	/* Intercepted connections whose handshake is under way. */
	UP_MAX_PENDING_CONNECTS = 65536,
	/* Handshakes that are just done; more than a host makes in a hundredth of UP_FRESH_NS are of no
	 * use. */
	UP_MAX_FRESH = 1024,
	/* For how long data may find the listener in place of the accepted socket: a kernel's race of
	 * nanoseconds, or however long a virtual core stands still. Less than TCP takes to send again. */
	UP_FRESH_NS = 100000000,
	/* A SYN that is held is told again after so long. */
	UP_TOLD_AGAIN_NS = 500000000,
	/* IP's and TCP's headers with options (60 bytes each in IPv4); of IPv6's extension headers as many as there is room for. */
	UP_SYN_BYTES = 144,
	UP_COMM_BYTES = 16,
	UP_HELD_RING_BYTES = 262144,
	/* Observed flows, those included that ended since the agent last looked. */
	UP_MAX_METERS = 65536,
	/* Opcodes of the native protocol, 0x00 to 0x10. */
	UP_OPCODES = 17,
	/* Stream ids whose latency is measured; drivers take the lowest that are free. */
	UP_METER_STREAMS = 512,
	/* Latencies are counted in units of 256 ns, in 32 buckets for each doubling: half of one is
	 * 1.6 % of what it holds. The last one begins at 135 s. */
	UP_LATENCY_UNIT_NS = 256,
	UP_LATENCY_STEPS = 32,
	UP_LATENCY_BUCKETS = 800,
	/* Flows that the kernel carries, or did and their sockets are still there. */
	UP_MAX_SPLICES = 65536,
	/* Redirected bytes of one direction that were not taken yet: past this they go through the
	 * agent, where TCP's window holds the sender. */
	UP_SPLICE_BYTES = 1048576,
	UP_SPLICE_RING_BYTES = 262144,
	/* Sockets on the shortcut: two for each flow. */
	UP_MAX_SHORTCUT_ENDS = 65536,
	/* Bytes that may wait in a reader's queue for the shortcut, which is counted against its
	 * receive buffer and never refused by it: more than two programs in step leave there, a
	 * fraction of what TCP's buffers may hold. */
	UP_SHORTCUT_FLOW_BYTES = 1048576,
	/* Messages that may wait there, because each costs the kernel 1 KiB however short it is,
	 * which no account of the host's shows: so many of these marks, a step apart, and a step. */
	UP_SHORTCUT_MARKS = 8,
	UP_SHORTCUT_MARK_STEP = 128,
	/* From here on a message gains nothing by skipping TCP, and would fill the queue. */
	UP_SHORTCUT_BULK_BYTES = 65536,

	/* At so many looks after bytes were found waiting in TCP the reader in a sockmap has read them, or it leaves. */
	UP_LOOKS_TO_READ = 3,
	/* Wake-ups for the agent; when it is full, one is waiting. */
	UP_SPILL_RING_BYTES = 4096,
	/* What is copied of a frame's body at most: as much as the agent's decoder reads of one; of one that
	 * is compressed, as much as gives that. */
	UP_TAP_BODY_BYTES = 65536,
	UP_TAP_COMPRESSED_BODY_BYTES = 212992,
	/* Of a RESULT, or an EXECUTE, by what the rule's steps need (enum up_tap_depth). */
	UP_TAP_ID_BYTES = 512,
	UP_TAP_FRAME_BYTES = 4096,
	UP_TAP_ROWS_BYTES = 8176,
	/* What one record holds of a packet: the largest size for which the ring has a class. */
	UP_TAP_PIECE_BYTES = 32768,
	/* Records of a packet at most: BIG TCP has packets of 512 KiB, and it is doubled. */
	UP_MAX_TAP_PIECES = 32,
	/* Flows that are compared with each that is held out. More would narrow the interval of the difference by a tenth
	 * at most, and each of them costs room, inline a meter as well. */
	UP_TREATED_PER_HELD_OUT = 4,
	/* By the low bits of a processor's number; a power of two. */
	UP_TAP_SLOTS = 4,
};

enum up_action {
	UP_ACTION_BYPASS = 0,
	UP_ACTION_ENRICH = 1,
	UP_ACTION_DENY = 2,
	UP_ACTION_OBSERVE = 3,
};

/* The group of the overhead ledger that a connection was drawn into. */
enum up_group {
	/* None: its rule holds nothing out, or there are others enough to compare. */
	UP_GROUP_NONE = 0,
	/* Left alone, for comparison. */
	UP_GROUP_HELD_OUT = 1,
	/* Treated as its rule says. */
	UP_GROUP_TREATED = 2,
	/* Likewise, in the agent: it is metered for the ledger alone. */
	UP_GROUP_TREATED_INLINE = 3,
};

/* What is one client of a rule with a limit. */
enum up_limit_by {
	UP_LIMIT_BY_UID = 0,
	UP_LIMIT_BY_PROCESS = 1,
	/* Of clients on other hosts. */
	UP_LIMIT_BY_ADDRESS = 2,
};

enum up_fail {
	UP_FAIL_OPEN = 0,
	UP_FAIL_CLOSED = 1,
};

/* Outcomes of one connect(): the columns of a rule's counter. */
enum up_outcome {
	UP_OUTCOME_UNTOUCHED = 0,
	UP_OUTCOME_INTERCEPTED = 1,
	UP_OUTCOME_DENIED = 2,
	UP_OUTCOME_FAILED_OPEN = 3,
	UP_OUTCOME_FAILED_CLOSED = 4,
	/* Left alone, as the agent decided of another connection of the process. */
	UP_OUTCOME_REMEMBERED = 5,
	/* Goes straight to a backend of the virtual address that was dialled. */
	UP_OUTCOME_BALANCED = 6,
	/* The rule stands in shadow: it would have held, and a rule behind it decides. */
	UP_OUTCOME_SHADOWED = 7,
	UP_OUTCOMES = 8,
};

/* Why a flow took a safer path than its rule asked for. */
enum up_cause {
	UP_CAUSE_AGENT_AWAY = 0,
	UP_CAUSE_AGENT_FULL = 1,
	UP_CAUSE_FOREIGN_NETNS = 2,
	UP_CAUSE_BOUND_TO_DEVICE = 3,
	UP_CAUSE_LINK_LOCAL = 4,
	UP_CAUSE_NO_MEMORY = 5,
	UP_CAUSE_PENDING_CONNECTS_FULL = 6,
	UP_CAUSE_RING_FULL = 7,
	UP_CAUSE_STRANGER = 8,
	UP_CAUSE_ODD_SYN = 9,
	UP_CAUSE_METERS_FULL = 10,
	/* A redirect whose target is gone: the bytes go up to the agent. */
	UP_CAUSE_SPLICE_TARGET_GONE = 11,
	/* The client's socket speaks TLS in the kernel. */
	UP_CAUSE_SPLICE_TLS = 12,
	UP_CAUSE_SPLICE_RING_FULL = 13,
	/* A packet began with bytes that had been seen, and could not be cut. */
	UP_CAUSE_SPLICE_CORRUPTED = 18,
	/* Redirected bytes could not be cut into frames: the flow cannot be decoded any more. */
	UP_CAUSE_SPLICE_POSITION_LOST = 19,
	UP_CAUSE_SHORTCUT_REMOTE = 14,
	UP_CAUSE_SHORTCUTS_FULL = 15,
	UP_CAUSE_SHORTCUT_REFUSED = 16,
	UP_CAUSE_SHORTCUT_OFF = 17,
	/* No backend of a virtual address takes new connections. */
	UP_CAUSE_NO_BACKEND = 20,
	/* Nobody is known to listen where a client on another host connects to. */
	UP_CAUSE_DATABASE_AWAY = 21,
	/* An observed client on another host, whose database is not beneath the agent's cgroup: nobody
	 * reads its packets. */
	UP_CAUSE_DATABASE_UNMETERED = 22,
	/* The agent does not serve the caller's network namespace yet. */
	UP_CAUSE_NO_NETNS_AGENT = 23,
	/* The client's data met the listener, before the accepted socket could be found: it is sent
	 * again. */
	UP_CAUSE_OVERTAKEN = 24,
	/* A packet that a database on this host has sent on a connection that is gone, and the agent has no
	 * listener that would answer it. */
	UP_CAUSE_STRAY_UNANSWERED = 25,
	/* Flows cannot be observed here: the meter could not be attached. */
	UP_CAUSE_OBSERVE_OFF = 26,
	/* The user, or the cgroup, holds as many of the agent's flows as one may. */
	UP_CAUSE_USER_FULL = 27,
	UP_CAUSE_CGROUP_FULL = 28,
	/* An application in a sockmap did not read on while bytes waited in TCP: its flow left the sockmap. */
	UP_CAUSE_READER_STALLED = 29,
	/* One client has as many connections as its rule lets it have. */
	UP_CAUSE_CLIENT_LIMIT = 30,
	/* The table of clients whose connections are counted is full: the connection is not counted. */
	UP_CAUSE_CLIENTS_FULL = 31,
	UP_CAUSES = 32,
};

/* The turn that a message of a socket on the shortcut took: the shortcut, or TCP and why. */
enum up_turn {
	UP_TURN_SHORTCUT = 0,
	/* The other end is not on the shortcut. */
	UP_TURN_ALONE = 1,
	/* Bytes that took TCP have not been read yet. */
	UP_TURN_BEHIND = 2,
	/* Those bytes have been read, but a reader may still be waiting for more of TCP's. */
	UP_TURN_READER_WAITS = 3,
	UP_TURN_BULK = 4,
	/* Too many bytes or messages wait to be read past TCP. */
	UP_TURN_FLOW_FULL = 5,
	/* The host's TCP has reached the share of its memory that the agent set. */
	UP_TURN_HOST_FULL = 6,
	UP_TURN_AGENT_AWAY = 7,
	/* An end is another protocol's: kTLS, MPTCP. */
	UP_TURN_UPPER_LAYER = 8,
	/* A reader did not go on while bytes waited in TCP, or the agent has said so: the flow is on its way out
	 * of the map. */
	UP_TURN_LEFT = 9,
	/* The agent sends to an application whose socket blocks by now. */
	UP_TURN_READER_BLOCKS = 10,
	UP_TURNS = 11,
};

struct up_endpoint {
	__u8 addr[16];
	__be16 port_be;
	__u8 family;
	__u8 pad;
};

/* Written by the agent, one entry. */
struct up_agent_settings {
	/* The agent's own network namespace. */
	__u64 netns_cookie;
	/* Sockets of that namespace with this mark are the agent's own. Random, so that nobody
	 * who may set marks knows it. */
	__u32 mark;
	/* Which of the two generations of the policy is in force. */
	__u32 generation;
	/* The agent takes no further flow at present. */
	__u32 full;
	/* How often everything that was remembered has been forgotten. */
	__u32 forgets;
	/* The agent's: what it is attached to. */
	__u64 cgroup_id;
	/* The agent's process, if it serves other namespaces, too: what it opens there carries no mark,
	 * which whoever is root there could read. Else 0. */
	__u32 tgid;
	/* The meter could not be attached: who is to be observed is left alone unobserved. */
	__u32 unmetered;
	/* Entries in `full_quotas`: most of the time none, and it is not asked. */
	__u32 full_quotas;
	/* The process of the agent of before, from which this one took over: it may still open connections for the
	 * flows that it has left. Else 0. */
	__u32 before_tgid;
};

/* What one may hold of the agent's flows: a user in a cgroup, a user, a cgroup. */
struct up_quota {
	/* Of the holder (quota.h); 0: whatever the cgroup. */
	__u64 cgroup_id;
	__u32 uid;
	/* Whatever the user: `uid` is 0 then. */
	__u32 any_uid;
};

/* The agent's listeners in a network namespace, and their sockets' cookies. Family 0: none. */
struct up_netns_agent {
	struct up_endpoint listener4;
	struct up_endpoint listener6;
	__u64 cookie4;
	__u64 cookie6;
};

/* From the connect hooks to the agent: a thread has met a rule in a namespace that is
 * not served. */
struct up_unserved {
	__u64 netns_cookie;
	/* The number of its namespace's inode. */
	__u32 inode;
	__u32 tgid;
	__u32 tid;
	__u32 pad;
};

/* Bit n: rule n. The lowest bit that survives every dimension is the first match. */
struct up_rule_set {
	__u64 words[16];
};

/* Per generation: the rules that do not care for a dimension, and the default. */
struct up_policy {
	struct up_rule_set any_uid;
	struct up_rule_set any_gid;
	struct up_rule_set any_process;
	struct up_rule_set any_cgroup;
	struct up_rule_set any_netns;
	/* The rules that say which backends stand behind an address: all but those that leave it to
	 * the rules behind them. */
	struct up_rule_set settles;
	struct up_rule_set any_source;
	/* Rules that may hold for what this host opens, and for what others open. */
	struct up_rule_set here;
	struct up_rule_set elsewhere;
	/* Rules that stand in shadow: they are counted, and decide nothing. */
	struct up_rule_set shadows;
	__u8 uses_uid;
	__u8 uses_process;
	__u8 uses_cgroup;
	__u8 default_action;
	__u8 default_fail;
	__u8 uses_backends;
	/* Not every rule is in `here`. */
	__u8 uses_source;
	__u8 uses_netns;
	__u8 uses_gid;
	__u8 uses_shadows;
	__u8 pad[6];
};

struct up_rule {
	__u8 action;
	__u8 fail;
	__u8 shortcut;
	/* It asks for the session, and the answer may be remembered. */
	__u8 recalls;
	/* Its number among the rules with backends, from 1; 0: it has none. */
	__u8 balanced;
	/* With UP_ACTION_OBSERVE: the agent gets a copy of what passes; enum up_tap_depth, and UP_TAP_ASKS. */
	__u8 taps;
	/* It protects, or a rule that does may hold behind it: nobody gets past it by a choice of his own. */
	__u8 protects;
	/* With a limit: whose connections are counted together, an up_limit_by. */
	__u8 limit_by;
	/* So many of 2^32 flows come to the agent, the others are left alone; 0: all do. */
	__u32 sample;
	/* So many of 2^32 flows are left alone, so that the others can be compared with them; 0: there is no ledger. */
	__u32 holdout;
	/* So many connections may one client have at the same time; 0: any number. */
	__u32 limit;
	/* The limit's number, which is no other's while the agent lives. */
	__u32 limit_id;
};

/* Which backend of a rule a new connection goes to: each slot holds the number of one, or
 * UP_NO_BACKEND. Written while it is read: a slot is a byte, so a reader sees the old one or the
 * new one, and either was right a moment ago. */
struct up_backend_slots {
	__u8 backends[1024];
};

/* Longest prefix match over generation, port, family, address, in this order. Port 0 is
 * the entry for any port; a prefix that ends before the family is for any address. */
struct up_target_key {
	__u32 prefix_bits;
	__u8 generation;
	__u8 pad0;
	__be16 port_be;
	__u8 family;
	__u8 pad1[3];
	/* IPv4 in the first four bytes here: prefixes are counted from its first bit. */
	__u8 addr[16];
};

/* Likewise over generation, family, address. */
struct up_source_key {
	__u32 prefix_bits;
	__u8 generation;
	__u8 family;
	__u8 pad[2];
	/* As in a target. */
	__u8 addr[16];
};

struct up_process_key {
	__u32 prefix_bits;
	__u8 generation;
	__u8 comm[16];
	__u8 pad[3];
};

struct up_uid_key {
	__u32 generation;
	__u32 uid;
};

struct up_gid_key {
	__u32 generation;
	__u32 gid;
};

struct up_cgroup_key {
	__u64 cgroup_id;
	__u32 generation;
	__u32 pad;
};

struct up_netns_key {
	__u32 generation;
	/* Of the process's network namespace. */
	__u32 inode;
};

/* A process and where it connects to: all that a decision depends on besides the session. */
struct up_opener {
	/* When the process began: CLOCK_BOOTTIME, in ns. */
	__u64 start_ns;
	/* How often it has executed a program. */
	__u64 execs;
	__u64 cgroup_id;
	/* Of the socket: an address means another database in another namespace. */
	__u64 netns_cookie;
	struct up_endpoint orig_dst;
	__u32 tgid;
	__u32 uid;
	__u32 gid;
	__u8 comm[16];
};

/* To the agent: a connection was refused here. */
struct up_denial {
	/* Its address is what was dialled. Of a client on another host there is nothing else. */
	struct up_opener opener;
	/* Of a client on another host; else family 0. */
	struct up_endpoint client;
	__u32 slot;
	/* Denials on this processor that the agent was not told of, since the last that it was. */
	__u32 untold;
	__u8 generation;
	/* Why the agent could not serve it, UP_CAUSES if its rule denies. */
	__u8 cause;
	__u8 pad[2];
};

/* By processor: how often the agent was told in this period. */
struct up_denial_turn {
	/* CLOCK_MONOTONIC. */
	__u64 begun_ns;
	__u32 told;
	__u32 untold;
};

/* A decision to bypass that stands for later connections. */
struct up_remembered {
	/* CLOCK_MONOTONIC. */
	__u64 until_ns;
	/* Of the settings, when the connection was opened on which it was decided. */
	__u32 forgets;
	/* The rule that decided. */
	__u16 slot;
	__u8 generation;
	__u8 pad;
};

/* One connect(): who opened a flow, to where, and by which rule. */
struct up_connect {
	struct up_opener opener;
	__u64 cookie;
	__u32 slot;
	__u32 forgets;
	/* The application had bound its socket to an address of its choice. */
	__u8 bound;
	/* The application had bound it to a port of its choice. */
	__u8 bound_port;
	/* The SYN was handed to the agent and is being held: in which half second, by a clock of 255 of them. */
	__u8 held;
	__u8 generation;
	/* Observed, and the agent gets a copy of what passes: as a rule's. */
	__u8 taps;
	/* No quota holds for its opener. */
	__u8 unlimited;
	/* An up_group. */
	__u8 group;
	__u8 pad[1];
	/* The cgroup whose quota it counts for. */
	__u64 holder_cgroup_id;
};

/* A pending connect, by what its SYN shows to the listener that it is sent to. Addresses are the same in many
 * namespaces; a listener is in one. */
struct up_connect_key {
	/* The listener's socket cookie. */
	__u64 listener;
	/* The client's side. */
	struct up_endpoint client;
	__u32 pad;
};

/* Kept with the client's socket. */
struct up_flow {
	struct up_connect connect;
	struct up_connect_key key;
	/* The address that the socket would have had without us; family 0 until it is known. */
	struct up_endpoint local;
	__u32 pad;
};

/* Kept with the socket of this host's that an observed flow has: the client's, or, if that is on another
 * host, the database's. */
struct up_observed {
	struct up_connect connect;
	/* The rest is of a client on another host. Its side; family 0: it is on this one. */
	struct up_endpoint client;
	/* Sequence numbers of the first request and of the first answer. */
	__u32 request_seq;
	__u32 answer_seq;
	/* A meter was begun. */
	__u32 begun;
};

enum up_adopted {
	/* Nobody has seen its socket. */
	UP_ADOPTED_GONE = 0,
	UP_ADOPTED_YES = 1,
	/* It is observed already. */
	UP_ADOPTED_BEFORE = 2,
	/* This kernel (before 6.12) cannot be asked to tell when it ends. */
	UP_ADOPTED_NO_END = 3,
	/* There is no memory, or no room. */
	UP_ADOPTED_NO_ROOM = 4,
};

/* A connection that was there before its rule, by its socket's cookie. */
struct up_adoption {
	/* Kept with the socket from now on. */
	struct up_observed observed;
	/* The client's side. */
	struct up_endpoint client;
	/* An up_adopted. */
	__u32 outcome;
};

/* From the hold filter to the agent: a SYN that waits for the database's answer. */
struct up_held {
	struct up_connect connect;
	struct up_connect_key key;
	__u32 syn_bytes;
	/* Of these the IP header's, with what is between it and TCP's. */
	__u32 ip_bytes;
	__u8 syn[144];
};

/* From the agent, by socket cookie: the database has answered, the SYN may pass. */
struct up_release {
	/* The address that the client's socket would have had without us. */
	struct up_endpoint local;
};

/* A socket that listens in a namespace whose incoming connections are steered. */
struct up_database_key {
	struct up_endpoint at;
	/* The number of the namespace. */
	__u32 netns_index;
};

/* A dial on behalf of a client on another host, from its address to one of the agent's own. */
struct up_incoming_dial {
	struct up_endpoint client;
	struct up_endpoint dialled;
	/* The number of the namespace. */
	__u32 netns_index;
};

/* The framing of a direction of an observed flow. */
enum up_framing {
	/* Native protocol v3, v4, and v5 until the connection is ready. */
	UP_FRAMING_FRAMES = 0,
	/* v5: segments, whether compressed or not is seen from the first. */
	UP_FRAMING_UNSURE = 1,
	UP_FRAMING_SEGMENTS = 2,
	UP_FRAMING_SEGMENTS_LZ4 = 3,
	/* Joined in its middle: seen from the first header. */
	UP_FRAMING_ANY = 4,
};

enum up_sync {
	/* The SYN was not seen: nothing is read. */
	UP_SYNC_NONE = 0,
	UP_SYNC_OK = 1,
	/* A gap, or bytes that are no header: waits for a packet that begins with one. */
	UP_SYNC_LOST = 2,
};

/* The place that a direction is read at. `off` and `end` are only meant during a walk over a packet: they
 * are in memory so that the verifier forgets what it knows of them and sees an end. */
struct up_cursor {
	/* Sequence number of the next byte that matters. */
	__u32 next;
	/* Behind the highest that was seen. */
	__u32 top;
	/* Payload of the open segment that is still to come. */
	__u32 segment_left;
	/* Body of a frame that goes on in the next segment. */
	__u32 frame_left;
	__u32 off;
	__u32 end;
	/* Of a tapped flow: up to where the body that is passing is copied. */
	__u32 want_end;
	__u8 sync;
	__u8 framing;
	/* So many bytes of a header that a packet's end cut. */
	__u8 have;
	__u8 pad;
	__u8 header[12];
};

/* Written by one CPU while another writes the other direction: what each packet writes stands together, in lines of
 * the cache that are the direction's own. */
struct up_direction {
	struct up_cursor at;
	/* A packet is being read: another CPU's must not be. */
	__u32 busy;
	__u64 bytes;
	__u64 frames;
	/* Where in the packet that is being read a frame begins, or a segment of whole frames, if one does. */
	__u32 frame_at;
	__u8 has_frame;
	/* Of a tapped flow: bytes have passed without a copy since the last one that was copied. Sequence numbers show that
	 * of less than half of what they number. */
	__u8 missed;
	__u8 pad2[2];
	/* Where reading stopped before a hole that may still be filled: `sync` is OK then. */
	struct up_cursor late;
	/* Where reading went on behind it. */
	__u32 late_end;
	__u64 segments;
	/* Segments whose frames cannot be read. */
	__u64 compressed;
	/* Times that headers were missed for good: sync was lost, or a hole not filled. */
	__u64 gaps;
	/* Of a tapped flow: what passed and was not copied because there was no room for it. */
	__u64 lost_frames;
	__u64 lost_bytes;
	__u64 by_opcode[17];
	__u64 pad[3];
};

/* An observed flow. One value for all, so that a packet costs one look-up. What both directions
 * would write is left out: they run on two CPUs at once. */
struct up_meter {
	struct up_connect connect;
	/* The client's side; family 0 until its SYN has left. */
	struct up_endpoint client;
	/* Of the request that began the v5 handshake. */
	__u8 version;
	/* The socket is closed: the agent adds the flow to its rule, and removes it. */
	__u8 ended;
	/* It was joined in its middle. */
	__u8 joined;
	__u8 pad[1];
	__u64 opened_ns;
	__u64 apart[6];
	struct up_direction requests;
	struct up_direction responses;
	__u64 latency_sum_ns;
	/* Responses whose request's time is not known. */
	__u64 unmatched;
	__u64 apart_too[6];
	/* By stream id: when the request left, in units; 0: none is under way. */
	__u32 started[512];
	__u32 latencies[800];
};

/* How much of each frame the agent gets a copy of. */
enum up_tap_depth {
	UP_TAP_NOTHING = 0,
	/* Headers, and texts of statements. */
	UP_TAP_FRAMES = 1,
	/* And the beginning of every body. */
	UP_TAP_BODIES = 2,
	/* And values, and of what is answered how many rows. */
	UP_TAP_DETAILS = 3,
	/* And as much of a response as of a request. */
	UP_TAP_ANSWERS = 4,
	/* A bit beside it: the rule asks for the session, and the agent has not said yet which rule the flow
	 * meets (up_tap_outcome). */
	UP_TAP_ASKS = 128,
};

/* From the agent to the meter: the rule that a flow meets whose session was asked for. */
struct up_tap_outcome {
	__u32 slot;
	__u8 generation;
	/* As a rule's. */
	__u8 taps;
	/* It is left alone from now on, and not observed either. */
	__u8 leaves;
	__u8 pad;
	/* As a connection's of that rule. */
	__u32 forgets;
};

/* From the agent to the meter: of a rule's flows so many in 65,536 are not copied. */
struct up_tap_share {
	__u32 share;
	/* Flows with less `forgets` are of an earlier policy, in which the slot was another rule's. */
	__u32 since;
};

enum up_tap_kind {
	/* A flow begins: an up_tap_begin. */
	UP_TAP_BEGIN = 0,
	/* A direction begins with the byte `seq`. */
	UP_TAP_START = 1,
	UP_TAP_BYTES = 2,
	/* The flow's socket is closed. */
	UP_TAP_END = 3,
};

/* From the meter to the agent: of a packet of a tapped flow `before` bytes that are not copied, then
 * `copied` that stand behind this, then `after` that are not. */
struct up_tap_record {
	__u64 cookie;
	/* When it passed, CLOCK_MONOTONIC. */
	__u64 at_ns;
	__u32 seq;
	__u32 before;
	__u32 copied;
	__u32 after;
	/* All bytes before this one had passed. */
	__u32 passed;
	/* Where a frame begins, or a segment of whole frames, if `has_frame`. */
	__u32 frame_at;
	__u8 kind;
	__u8 is_request;
	__u8 framing;
	__u8 has_frame;
	/* Bytes of the direction have passed since its last record, of which there is none. */
	__u8 missed;
	__u8 pad[3];
};

struct up_tap_begin {
	struct up_tap_record record;
	struct up_connect connect;
	/* The client's side. */
	struct up_endpoint client;
	__u32 pad;
};

/* Engines: the place at which bytes from the far application enter the near leg's stream. */
enum up_splice_engine {
	/* Nowhere: they are handed to the agent. */
	UP_SPLICE_ENGINE_OFF = 0,
	/* Behind the dialled socket, by a verdict. */
	UP_SPLICE_ENGINE_EGRESS = 1,
	/* In the database's own send(): its socket is on this host. */
	UP_SPLICE_ENGINE_SENDER = 2,
};

enum up_frame_framing {
	/* The position is not known, and never will be. */
	UP_FRAME_UNKNOWN = 0,
	UP_FRAME_FRAMES = 1,
	/* v5, and not compressed. */
	UP_FRAME_SEGMENTS = 2,
};

/* Frame position: where in a frame a direction is. */
struct up_frame_position {
	/* Bytes still to come of what is passing: a frame's body, or a segment's payload with its
	 * checksum. */
	__u32 left;
	/* Bytes of a frame that are in segments behind the one that is passing. */
	__u32 frame_left;
	/* enum up_frame_framing. */
	__u8 framing;
	/* The byte that every frame of the direction begins with. */
	__u8 first;
	/* So many bytes of a header have passed: these. */
	__u8 have;
	__u8 header[15];
	__u8 pad[2];
};

/* The agent's words on a spliced flow, by the cookie of its dialled socket. */
struct up_splice_order {
	/* The agent has handed on all that the client has sent up to this sequence number. */
	__u32 up_seq;
	/* Whether the client's bytes may be redirected. */
	__u8 up;
	/* enum up_splice_engine. */
	__u8 engine;
	__u8 pad[2];
	/* The agent has handed on all that the far application has sent up to this sequence number. */
	__u32 down_seq;
	__u32 pad2;
	/* The agent has written on so many of the bytes that it has read from the database. */
	__u64 down_passed;
	/* Bytes that the agent has written to the client since the flow was enrolled. */
	__u64 down_written;
	/* Bytes that the agent has read from the client, and where it is behind them. */
	__u64 up_read;
	struct up_frame_position up_position;
	/* Where the agent is behind `down_passed`. */
	struct up_frame_position down_position;
};

/* An order where it lies. It is replaced there, and read, under the kernel's spin lock (`lock`): a
 * program never sees half of one, nor another flow's while its own lives. */
struct up_splice_slot {
	__u32 lock;
	__u32 pad;
	struct up_splice_order order;
};

/* The kernel's words on a spliced flow. */
struct up_splice {
	/* The agent's two sockets, to be read only: they may be gone. */
	__u64 near_leg;
	__u64 far_leg;
	/* Of the accepted socket, when the flow was enrolled. */
	__u32 base_seq;
	/* Of the dialled socket: the next byte that the verdict has not seen. */
	__u32 down_seq;
	/* Redirecting, and not passing up. */
	__u8 down_flows;
	/* A packet could not be cut, or one is missing: no byte passes any more. */
	__u8 corrupted;
	/* The applications' sockets leave the sockmaps, or have left: one of them did not read on. */
	__u8 is_out;
	__u8 pad[5];
	/* Runs of splice_back that have begun, and that have ended. */
	__u64 back_begun;
	__u64 back_done;
	__u64 up_redirected;
	__u64 up_spills;
	__u64 down_redirected;
	__u64 down_passed;
	__u64 down_spills;
	/* Where each direction is behind what was redirected, if anything was since the agent had
	 * read so many bytes of it (`up_read`, `down_passed` of the order; at first ~0). */
	__u64 up_since;
	__u64 down_since;
	struct up_frame_position up_position;
	struct up_frame_position down_position;
};

/* Who looks over sockets in a sockmap: the agent, or the keeper in its place when it is dead; and the keeper beside an
 * agent that lives and does not run. */
#define UP_LOOKER_AGENT 0
#define UP_LOOKER_BESIDE 1
#define UP_LOOKERS 2

/* How an application that is in a sockmap reads, as the looks over such sockets find it. */
struct up_reader {
	/* Where it was in the stream at the last look. */
	__u32 seq;
	/* Where the bytes ended that waited in TCP at the first of `looks`. */
	__u32 end;
	/* Bytes waited in TCP at the last look. */
	__u8 waits;
	/* So many looks have found it before `end` since. */
	__u8 looks;
	/* It leaves the sockmap, or has left: it did not read on, or hardly, while bytes waited in TCP, which FIONREAD may
	 * not show it. Or the agent has asked. */
	__u8 leaves;
	/* A look by each of UP_LOOKER_* has seen that it leaves. */
	__u8 seen[UP_LOOKERS];
	__u8 pad[3];
};

/* What an application's socket in a sockmap needs, as whoever looks is told: by its key there. */
struct up_stalled {
	__u64 key;
	/* enum up_stall */
	__u64 stall;
};

enum up_stall {
	/* To leave its sockmap at a later look. */
	UP_STALL_LEAVES = 0,
	/* To leave it now. */
	UP_STALL_LEAVES_NOW = 1,
	/* To be nudged wherever it is: its other end is closed, and it was not told. */
	UP_STALL_ORPHAN = 2,
};

/* Kept with the client's socket, and with the database's. */
struct up_spliced {
	__u64 id;
	struct up_reader reader;
};

/* What an end is in the connection between an application and the agent. */
enum up_leg {
	/* Nothing: its connection is one between a client and a database. */
	UP_LEG_NONE = 0,
	/* The application's. */
	UP_LEG_APP = 1,
	/* The agent's own. */
	UP_LEG_OWN = 2,
};

enum up_leg_ask {
	UP_LEG_ENTER = 0,
	/* Both ends leave. */
	UP_LEG_LEAVE = 1,
	/* The agent has closed its socket. */
	UP_LEG_END = 2,
};

/* The agent's question to leg_look: to enter the two sockets of a leg, or to have them leave. By addresses, and
 * by cookies: where one is gone, another may be found. */
struct up_leg_question {
	__u64 app_cookie;
	__u64 own_cookie;
	struct up_endpoint app;
	struct up_endpoint own;
	/* enum up_leg_ask */
	__u32 ask;
	__u32 pad;
};

enum up_leg_refusal {
	UP_LEG_IN = 0,
	UP_LEG_GONE = 1,
	/* The application's socket is not O_NONBLOCK. */
	UP_LEG_BLOCKS = 2,
	/* A sockmap has one of them already, or it speaks TLS in the kernel. */
	UP_LEG_TAKEN = 3,
	UP_LEG_FULL = 4,
	/* The leg has ended, and its application has something to read yet, or does not know of the end. */
	UP_LEG_LINGERS = 5,
};

/* The answer, in the question's place. */
struct up_leg_answer {
	/* enum up_leg_refusal */
	__u32 refusal;
	/* The errno of the map that did not take a socket. */
	__u32 error;
};

/* The agent's question to splice_look: to enrol a flow, or how it stands. */
struct up_splice_question {
	__u64 id;
	/* To enrol: the engines that it may use, bits by the numbers of enum up_splice_engine. The sockets by their
	 * addresses, and by their cookies: where one is gone, another is found, or a listener. The dialled
	 * socket's is the id. */
	__u64 enrol;
	__u64 near_app_cookie;
	__u64 near_leg_cookie;
	struct up_endpoint near_app;
	struct up_endpoint near_leg;
	struct up_endpoint far_leg;
	struct up_endpoint far_app;
};

enum up_splice_refusal {
	UP_SPLICE_ENROLLED = 0,
	UP_SPLICE_NO_NEAR_APP = 1,
	UP_SPLICE_NO_NEAR_LEG = 2,
	UP_SPLICE_NO_FAR_LEG = 3,
	/* Another program's map has the socket, or it speaks TLS in the kernel. */
	UP_SPLICE_NEAR_APP_TAKEN = 4,
	UP_SPLICE_NEAR_LEG_TAKEN = 5,
	UP_SPLICE_FAR_LEG_TAKEN = 6,
	UP_SPLICE_FULL = 7,
	UP_SPLICE_UNKNOWN = 8,
	/* The client's socket is not O_NONBLOCK. */
	UP_SPLICE_NEAR_APP_BLOCKS = 9,
	/* There is something to read at the dialled socket: try again when there is not. */
	UP_SPLICE_BUSY = 10,
	/* The one engine that it may use is from a database's socket on this host, and there is none
	 * that could be enrolled. */
	UP_SPLICE_NO_ENGINE = 11,
};

/* Why the far application's socket is not in its map. */
enum up_splice_sender {
	/* The socket is in the map. */
	UP_SPLICE_SENDER_IN = 0,
	/* The question does not allow it. */
	UP_SPLICE_SENDER_OFF = 1,
	/* The socket is not in this namespace. */
	UP_SPLICE_SENDER_ELSEWHERE = 2,
	/* The socket is not O_NONBLOCK. */
	UP_SPLICE_SENDER_BLOCKS = 3,
	/* The map does not take it. */
	UP_SPLICE_SENDER_TAKEN = 4,
};

/* The answer, in the question's place. Sequence numbers are as the sockets have them. */
struct up_splice_answer {
	__u32 refusal;
	__u32 near_leg_write_seq;
	__u32 near_leg_copied_seq;
	__u32 far_leg_copied_seq;
	/* The errno of a map that did not take a socket. */
	__u32 error;
	/* enum up_splice_engine: by which it was enrolled. */
	__u32 engine;
	/* enum up_splice_sender. */
	__u32 sender;
	/* Whether the accepted socket's connection is over for both sides, as after a reset. Who redirects to it may
	 * have been told of the reset, and then its owner is not. */
	__u32 is_reset;
	/* Of a flow that was refused when sockets of applications had been entered: bytes wait for one of them, of
	 * which FIONREAD may not have told it. */
	__u32 to_nudge;
};

/* Written by the agent, one entry: what bounds the shortcut. */
struct up_shortcut_limits {
	/* CLOCK_MONOTONIC, in ns; the agent moves it on while it lives. Past it, flows return to
	 * TCP, because nobody would nudge their readers. */
	__u64 until_ns;
	/* The host's TCP memory, in pages, from which on bytes take TCP. */
	__u64 host_pages;
	__u32 flow_bytes;
	__u32 bulk_bytes;
};

/* A client's connection, by which its database's end is found: at both ends the same. */
struct up_shortcut_key {
	__u64 netns_cookie;
	struct up_endpoint client;
	struct up_endpoint server;
};

/* A client's end that waits for its database's. */
struct up_shortcut_first {
	__u64 cookie;
	/* The kernel's struct sock. */
	__u64 sock;
	/* Sequence numbers that the other end must have, too: two ends of one connection. */
	__u32 write_seq;
	__u32 copied_seq;
};

/* One end of a flow on the shortcut, by its socket's cookie. */
struct up_shortcut_end {
	/* The other end's cookie; 0 until that is enrolled. */
	__u64 peer;
	/* The other end's struct sock: read only by bpf_probe_read_kernel, and believed only
	 * while it carries the cookie `peer`. */
	__u64 peer_sock;
	/* Bytes and messages that were put into the other end's queue. */
	__u64 put_bytes;
	__u64 put_messages;
	/* `put_bytes` at the last messages whose number is a multiple of the step. */
	__u64 marks[8];
	/* The last message took TCP. */
	__u8 on_tcp;
	/* Bytes in TCP lie behind bytes in the reader's queue for the shortcut, and were not announced since that is empty. */
	__u8 spilled;
	/* The database's end, which is counted for its flow. */
	__u8 is_server;
	/* enum up_leg */
	__u8 leg;
	/* This end's own reader was nudged after the other end had gone, of which nobody knows whether it had spilled. */
	__u8 is_nudged;
	/* The other end is closed, and this one, which was not told, asks whether it is there. */
	__u8 asks;
	/* The other end's receive buffer had little room at this end's last message that could not be sure of it. */
	__u8 is_narrow;
	__u8 pad[1];
	/* Of this end's own application. */
	struct up_reader reader;
	/* The rest is of the client's end: who dialled, under which rule, when, from where. */
	struct up_connect connect;
	__u64 opened_ns;
	struct up_endpoint client;
	/* Why its other end does not come: 1 + an up_cause; 0: it may come yet. */
	__u32 refusal;
};

/* A flow that is to take the shortcut; kept with the client's socket until that is enrolled. */
struct up_shortcut_wish {
	struct up_connect connect;
	/* Of its connect(): CLOCK_MONOTONIC. */
	__u64 wished_ns;
	/* Why it is not enrolled, ever: 1 + an up_cause; 0: it may be yet. */
	__u32 refusal;
	__u32 pad;
};

/* A flow that does not take the shortcut, as the agent is told. */
struct up_shortcut_refusal {
	struct up_shortcut_wish wish;
	struct up_endpoint client;
	__u32 pad;
};

/* Per turn and CPU. */
struct up_turn_count {
	__u64 messages;
	__u64 bytes;
};

/* Per CPU. */
struct up_shortcut_count {
	__u64 begun;
	__u64 ended;
};

/* One look over the host's sockets that have a queue besides TCP's. */
struct up_nudge_count {
	/* Edges that were given to readers who may have missed one. */
	__u64 nudged;
	/* Queues that hold bytes: their readers may miss one yet. */
	__u64 filled;
};

/* Per rule slot and CPU. */
struct up_decisions {
	__u64 by_outcome[8];
};

_Static_assert(UP_RULE_WORDS * 64 == UP_MAX_RULES, "a bit for each rule");
_Static_assert((UP_BACKEND_SLOTS & (UP_BACKEND_SLOTS - 1)) == 0, "a mask draws a lot");
_Static_assert(sizeof(struct up_backend_slots) == UP_BACKEND_SLOTS, "up_backend_slots");
_Static_assert(UP_MAX_BACKENDS <= UP_NO_BACKEND, "a lot names every backend");
_Static_assert(sizeof(struct up_rule) == 24, "up_rule");
_Static_assert(sizeof(struct up_endpoint) == 20, "up_endpoint");
_Static_assert(sizeof(struct up_target_key) == 28, "up_target_key");
_Static_assert(sizeof(struct up_source_key) == 24, "up_source_key");
_Static_assert(sizeof(struct up_database_key) == 24, "up_database_key");
_Static_assert(sizeof(struct up_incoming_dial) == 44, "up_incoming_dial");
_Static_assert(sizeof(struct up_process_key) == 24, "up_process_key");
_Static_assert(sizeof(struct up_opener) == 80, "up_opener");
_Static_assert(sizeof(struct up_remembered) == 16, "up_remembered");
_Static_assert(sizeof(struct up_connect) == 112, "up_connect");
_Static_assert(sizeof(struct up_connect_key) == 32, "up_connect_key");
_Static_assert(sizeof(struct up_netns_agent) == 56, "up_netns_agent");
_Static_assert(sizeof(struct up_unserved) == 24, "up_unserved");
_Static_assert(sizeof(struct up_flow) == 168, "up_flow");
_Static_assert(sizeof(struct up_held) == 296, "up_held");
_Static_assert(sizeof(struct up_observed) == 144, "up_observed");
_Static_assert(sizeof(struct up_adoption) == 168, "up_adoption");
_Static_assert(sizeof(struct up_agent_settings) == 48, "up_agent_settings");
_Static_assert(sizeof(struct up_quota) == 16, "up_quota");
_Static_assert(sizeof(struct up_denial) == 112, "up_denial");
_Static_assert(sizeof(struct up_cursor) == 44, "up_cursor");
_Static_assert(sizeof(struct up_direction) == 320, "up_direction");
_Static_assert(sizeof(struct up_meter) == 6144, "up_meter");
_Static_assert(sizeof(struct up_tap_outcome) == 12, "up_tap_outcome");
_Static_assert(sizeof(struct up_tap_share) == 8, "up_tap_share");
_Static_assert(sizeof(struct up_tap_record) == 48, "up_tap_record");
_Static_assert(sizeof(struct up_tap_begin) == 48 + sizeof(struct up_connect) + 24, "up_tap_begin");
_Static_assert(sizeof(struct up_frame_position) == 28, "up_frame_position");
_Static_assert(sizeof(struct up_splice_order) == 96, "up_splice_order");
_Static_assert(sizeof(struct up_splice_slot) == 104, "up_splice_slot");
_Static_assert(sizeof(struct up_splice) == 160, "up_splice");
_Static_assert(sizeof(struct up_splice_question) == 112, "up_splice_question");
_Static_assert(sizeof(struct up_splice_answer) == 36, "up_splice_answer");
_Static_assert(sizeof(struct up_leg_question) == 64, "up_leg_question");
_Static_assert(sizeof(struct up_leg_answer) == 8, "up_leg_answer");
_Static_assert(sizeof(struct up_shortcut_limits) == 24, "up_shortcut_limits");
_Static_assert(sizeof(struct up_shortcut_key) == 48, "up_shortcut_key");
_Static_assert(sizeof(struct up_shortcut_first) == 24, "up_shortcut_first");
_Static_assert(sizeof(struct up_shortcut_end) == 264, "up_shortcut_end");
_Static_assert(sizeof(struct up_stalled) == 16, "up_stalled");
_Static_assert(sizeof(struct up_shortcut_wish) == sizeof(struct up_connect) + 16, "up_shortcut_wish");
_Static_assert(sizeof(struct up_shortcut_refusal) == sizeof(struct up_shortcut_wish) + 24,
	       "up_shortcut_refusal");
