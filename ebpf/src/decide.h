/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * First match over the policy, at a cost that does not grow with the number of rules.
 *
 * Each dimension (destination, uid, gid, process, namespace, cgroup) yields a set of the rules that hold
 * for this flow; the sets are ANDed and the lowest bit wins. That is two trie look-ups
 * for the destination (its port, any port), one look-up each for uid, gid, process and namespace, one per
 * level of the cgroup tree, and UP_RULE_WORDS words of AND, whether there is one rule or
 * UP_MAX_RULES. A dimension that no rule names is skipped. Rules in shadow are counted, and passed over.
 */
#pragma once

#include "verified_once.h"
#include "common.h"
#include "kernel.h"

struct nsproxy {
	struct net *net_ns;
} __attribute__((preserve_access_index));

struct user_namespace {
	int level;
} __attribute__((preserve_access_index));

/* 64 bits, as one word or as two. */
typedef struct {
	__u64 val;
} kernel_cap_t;

struct cred {
	kernel_cap_t cap_effective;
	struct user_namespace *user_ns;
} __attribute__((preserve_access_index));

struct css_set {
	struct cgroup *dfl_cgrp;
} __attribute__((preserve_access_index));

struct task_struct {
	struct nsproxy *nsproxy;
	const struct cred *cred;
	struct css_set *cgroups;
	struct task_struct *group_leader;
	__u64 start_boottime;
	__u64 self_exec_id;
	char comm[UP_COMM_BYTES];
} __attribute__((preserve_access_index));

struct decision {
	__u16 slot;
	__u8 generation;
	__u8 action;
	__u8 fail;
	__u8 shortcut;
	__u8 recalls;
	/* Its rule enriches a sample, and this flow is not of it. */
	__u8 drawn_out;
	/* As a rule's: whose backends stand behind the address. */
	__u8 balanced;
	/* As a rule's. */
	__u8 protects;
	__u8 taps;
	/* An up_group, of what this host opens. */
	__u8 group;
	/* Its rule has a limit: of clients on this host; of those on other hosts. */
	__u8 limited;
	__u8 limited_elsewhere;
	/* With UP_ACTION_DENY: the cause, or UP_CAUSES if its rule denies. */
	__u8 refused_for;
	/* As a rule's. */
	__u32 holdout;
};

/* Bits of a target key before the address. */
#define TARGET_HEAD_BITS 64
/* And of a source's. */
#define SOURCE_HEAD_BITS 32

static __always_inline struct up_rule_set *rules_to(__u32 generation, __be16 port,
						     const struct up_endpoint *dst)
{
	struct up_target_key key = {
		.prefix_bits = TARGET_HEAD_BITS + (dst->family == 4 ? 32 : 128),
		.generation = generation,
		.port_be = port,
		.family = dst->family,
	};

	if (dst->family == 4)
		__builtin_memcpy(key.addr, &dst->addr[12], 4);
	else
		__builtin_memcpy(key.addr, dst->addr, 16);
	return bpf_map_lookup_elem(&targets, &key);
}

static __always_inline struct up_rule_set *rules_from(__u32 generation,
						       const struct up_endpoint *client)
{
	struct up_source_key key = {
		.prefix_bits = SOURCE_HEAD_BITS + (client->family == 4 ? 32 : 128),
		.generation = generation,
		.family = client->family,
	};

	if (client->family == 4)
		__builtin_memcpy(key.addr, &client->addr[12], 4);
	else
		__builtin_memcpy(key.addr, client->addr, 16);
	return bpf_map_lookup_elem(&sources, &key);
}

/* The name in /proc/PID/comm: that of the process, not of the thread that connects
 * (a Java driver's threads are all named after its event loop). */
static __always_inline void process_name(__u8 comm[UP_COMM_BYTES])
{
	struct task_struct *task = (void *)bpf_get_current_task();

	BPF_CORE_READ_STR_INTO((char(*)[UP_COMM_BYTES])comm, task, group_leader, comm);
}

static __always_inline struct up_rule_set *rules_of_process(__u32 generation,
							     const __u8 comm[UP_COMM_BYTES])
{
	struct up_process_key key = {
		.prefix_bits = 8 + 8 * UP_COMM_BYTES,
		.generation = generation,
	};

	__builtin_memcpy(key.comm, comm, UP_COMM_BYTES);
	return bpf_map_lookup_elem(&processes, &key);
}

static __always_inline struct up_rule_set *rules_of_uid(__u32 generation)
{
	struct up_uid_key key = {
		.generation = generation,
		.uid = (__u32)bpf_get_current_uid_gid(),
	};

	return bpf_map_lookup_elem(&uids, &key);
}

static __always_inline struct up_rule_set *rules_of_gid(__u32 generation)
{
	struct up_gid_key key = {
		.generation = generation,
		.gid = bpf_get_current_uid_gid() >> 32,
	};

	return bpf_map_lookup_elem(&gids, &key);
}

/* The number of the caller's network namespace, as /proc/PID/ns/net has it. */
static __always_inline __u32 netns_inode(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	return BPF_CORE_READ(task, nsproxy, net_ns, ns.inum);
}

static __always_inline struct up_rule_set *rules_of_netns(__u32 generation)
{
	struct up_netns_key key = {
		.generation = generation,
		.inode = netns_inode(),
	};

	return bpf_map_lookup_elem(&namespaces, &key);
}

/* Keeps a loop over a set's words a loop: unrolled, it spills past the stack's 512 bytes. */
#define NO_UNROLL _Pragma("clang loop unroll(disable)")

VERIFIED_ONCE int unite(struct up_rule_set *into, const struct up_rule_set *set)
{
	if (!into || !set)
		return 0;
	NO_UNROLL for (int w = 0; w < UP_RULE_WORDS; w++)
		into->words[w] |= set->words[w];
	return 0;
}

/* Keeps the rules that are in one of two sets; none is there: an empty one. */
VERIFIED_ONCE int narrow(struct up_rule_set *left, const struct up_rule_set *one,
				   const struct up_rule_set *other)
{
	if (!left)
		return 0;
	NO_UNROLL for (int w = 0; w < UP_RULE_WORDS; w++)
		left->words[w] &= (one ? one->words[w] : 0) | (other ? other->words[w] : 0);
	return 0;
}

/* A rule's cgroup holds for everything beneath it: the union over the ancestors. */
static __always_inline void rules_of_cgroups(__u32 generation, struct up_rule_set *into)
{
	struct up_cgroup_key key = { .generation = generation };

	NO_UNROLL for (int level = 0; level < UP_CGROUP_DEPTH; level++) {
		key.cgroup_id = bpf_get_current_ancestor_cgroup_id(level);
		if (!key.cgroup_id)
			break;
		unite(into, bpf_map_lookup_elem(&cgroups, &key));
	}
}

/* The number of the lowest bit; `word` is not zero. BPF has no instruction for it. */
static __always_inline __u32 lowest_bit(__u64 word)
{
	__u32 n = 0;

	if (!(word & 0xffffffff)) {
		n += 32;
		word >>= 32;
	}
	if (!(word & 0xffff)) {
		n += 16;
		word >>= 16;
	}
	if (!(word & 0xff)) {
		n += 8;
		word >>= 8;
	}
	if (!(word & 0xf)) {
		n += 4;
		word >>= 4;
	}
	if (!(word & 0x3)) {
		n += 2;
		word >>= 2;
	}
	return n + !(word & 0x1);
}

VERIFIED_ONCE __u32 first_rule(const struct up_rule_set *of)
{
	NO_UNROLL for (int w = 0; of && w < UP_RULE_WORDS; w++) {
		if (of->words[w])
			return w * 64 + lowest_bit(of->words[w]);
	}
	return UP_MAX_RULES;
}

static __always_inline void count_rule(__u32 generation, __u32 slot, __u32 outcome)
{
	__u32 index = generation * UP_RULE_SLOTS + slot;
	struct up_decisions *n = bpf_map_lookup_elem(&decisions, &index);

	if (n && outcome < UP_OUTCOMES)
		n->by_outcome[outcome] += 1;
}

static __always_inline void count_outcome(const struct decision *d, __u32 outcome)
{
	count_rule(d->generation, d->slot, outcome);
}

/* Counts the rules in shadow that stand before the first one that decides, and takes them out. */
VERIFIED_ONCE int pass_shadows(struct up_rule_set *left, const struct up_rule_set *shadows,
			       __u32 generation)
{
	if (!left || !shadows)
		return 0;
	NO_UNROLL for (int n = 0; n < UP_MAX_SHADOWS; n++) {
		__u32 first = first_rule(left);
		__u32 word = first / 64;
		__u64 bit = 1ull << (first & 63);

		if (word >= UP_RULE_WORDS || !(shadows->words[word] & bit))
			break;
		count_rule(generation, first, UP_OUTCOME_SHADOWED);
		left->words[word] &= ~bit;
	}
	return 0;
}

VERIFIED_ONCE int keep_only(struct up_rule_set *left, const struct up_rule_set *set)
{
	if (!left || !set)
		return 0;
	NO_UNROLL for (int w = 0; w < UP_RULE_WORDS; w++)
		left->words[w] &= set->words[w];
	return 0;
}

/* Of what this host opens. `settler`: the rule that says which backends stand behind the address. */
static __always_inline __u32 first_match(__u32 generation, const struct up_policy *policy,
					 const struct up_endpoint *dst,
					 const __u8 comm[UP_COMM_BYTES], __u32 *settler)
{
	struct up_rule_set left = {};
	__u32 first;

	/* One set on the stack: with two, connect6 and what it calls have more than the 512 bytes that 6.1 counts. */
	if (policy->uses_cgroup) {
		unite(&left, &policy->any_cgroup);
		rules_of_cgroups(generation, &left);
		narrow(&left, rules_to(generation, dst->port_be, dst), rules_to(generation, 0, dst));
	} else {
		unite(&left, rules_to(generation, dst->port_be, dst));
		unite(&left, rules_to(generation, 0, dst));
	}
	if (policy->uses_source)
		keep_only(&left, &policy->here);
	if (policy->uses_uid)
		narrow(&left, &policy->any_uid, rules_of_uid(generation));
	if (policy->uses_gid)
		narrow(&left, &policy->any_gid, rules_of_gid(generation));
	if (policy->uses_process)
		narrow(&left, &policy->any_process, rules_of_process(generation, comm));
	if (policy->uses_netns)
		narrow(&left, &policy->any_netns, rules_of_netns(generation));
	if (policy->uses_shadows)
		pass_shadows(&left, &policy->shadows, generation);
	first = first_rule(&left);
	*settler = UP_MAX_RULES;
	if (policy->uses_backends && first < UP_MAX_RULES) {
		keep_only(&left, &policy->settles);
		*settler = first_rule(&left);
	}
	return first;
}

/* Of what a client on another host opens: of it there is no uid, gid, process, namespace or cgroup. */
static __always_inline __u32 first_match_elsewhere(__u32 generation,
						   const struct up_policy *policy,
						   const struct up_endpoint *client,
						   const struct up_endpoint *dst,
						   __u32 *settler)
{
	struct up_rule_set left = {};
	__u32 first;

	unite(&left, rules_to(generation, dst->port_be, dst));
	unite(&left, rules_to(generation, 0, dst));
	keep_only(&left, &policy->elsewhere);
	narrow(&left, &policy->any_source, rules_from(generation, client));
	first = first_rule(&left);
	*settler = UP_MAX_RULES;
	if (policy->uses_backends && first < UP_MAX_RULES) {
		keep_only(&left, &policy->settles);
		*settler = first_rule(&left);
	}
	return first;
}

/* What the rules say that have been found: the one that holds, and the one that settles who is behind the
 * address. False: a map is missing. */
static __always_inline int obey(const struct up_agent_settings *s, __u32 generation, __u32 settler,
				struct decision *d)
{
	__u32 index = generation * UP_MAX_RULES + d->slot;
	struct up_rule *rule = bpf_map_lookup_elem(&rules, &index);

	if (!rule)
		return 0;
	d->action = rule->action;
	d->refused_for = UP_CAUSES;
	d->fail = rule->fail;
	d->shortcut = rule->shortcut;
	d->recalls = rule->recalls;
	d->protects = rule->protects;
	d->taps = rule->taps;
	d->holdout = rule->holdout;
	d->limited = rule->limit && rule->limit_by != UP_LIMIT_BY_ADDRESS;
	d->limited_elsewhere = rule->limit && rule->limit_by == UP_LIMIT_BY_ADDRESS;
	/* Nobody would get a copy: it is read in the agent. */
	if (s->unmetered && rule->taps)
		d->action = UP_ACTION_ENRICH;
	d->drawn_out = rule->sample && bpf_get_prandom_u32() >= rule->sample;
	if (settler >= UP_MAX_RULES)
		return 1;
	index = generation * UP_MAX_RULES + settler;
	rule = bpf_map_lookup_elem(&rules, &index);
	if (rule)
		d->balanced = rule->balanced;
	return 1;
}

/* False: no rule speaks of it; the default is of what this host opens. */
static __always_inline int decide_elsewhere(const struct up_agent_settings *s,
					    const struct up_endpoint *client,
					    const struct up_endpoint *dst, struct decision *d)
{
	__u32 generation = s->generation & 1;
	struct up_policy *policy = bpf_map_lookup_elem(&policies, &generation);
	__u32 settler;

	if (!policy)
		return 0;
	d->generation = generation;
	d->slot = first_match_elsewhere(generation, policy, client, dst, &settler);
	if (d->slot >= UP_MAX_RULES)
		return 0;
	return obey(s, generation, settler, d);
}

/* False: there is no policy (a map is missing, which the loader rules out). Not inlined: its sets
 * would fill the hooks' stack. */
static __noinline int decide(const struct up_agent_settings *s, const struct up_endpoint *dst,
			     const __u8 comm[UP_COMM_BYTES], struct decision *d)
{
	__u32 generation = s->generation & 1;
	struct up_policy *policy = bpf_map_lookup_elem(&policies, &generation);
	__u32 settler;

	if (!policy)
		return 0;
	d->generation = generation;
	d->slot = first_match(generation, policy, dst, comm, &settler);
	if (d->slot >= UP_MAX_RULES) {
		d->action = policy->default_action;
		d->refused_for = UP_CAUSES;
		d->fail = policy->default_fail;
		return 1;
	}
	return obey(s, generation, settler, d);
}
