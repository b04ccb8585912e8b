/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What the agent has decided of one session of a process, and its rule remembers: the same is
 * decided of later connections of that very process to that endpoint, here, without the agent.
 *
 * The key is all that the decision depended on besides the session: whoever changes its user or group,
 * its cgroup, its network namespace, its name or its program is asked again, and so is a fork. An entry holds in the
 * generation and since the forgetting that it was made in, so a decision that is entered too
 * late is not found. No agent is needed to recall: when it is dead, an entry holds until it
 * expires.
 */
#pragma once

#include "decide.h"

/* Who is connecting, and to where. */
static __always_inline void opener(struct up_opener *key, __u64 netns_cookie,
				   const struct up_endpoint *dst, const __u8 comm[UP_COMM_BYTES])
{
	struct task_struct *task = (void *)bpf_get_current_task();

	__builtin_memset(key, 0, sizeof(*key));
	key->start_ns = BPF_CORE_READ(task, group_leader, start_boottime);
	key->execs = BPF_CORE_READ(task, group_leader, self_exec_id);
	key->cgroup_id = bpf_get_current_cgroup_id();
	key->netns_cookie = netns_cookie;
	key->orig_dst = *dst;
	key->tgid = bpf_get_current_pid_tgid() >> 32;
	key->uid = (__u32)bpf_get_current_uid_gid();
	key->gid = bpf_get_current_uid_gid() >> 32;
	__builtin_memcpy(key->comm, comm, UP_COMM_BYTES);
}

/* True: the decision is now what it was then. */
static __noinline int recall(const struct up_agent_settings *s, __u64 netns_cookie,
			     const struct up_endpoint *dst, const __u8 comm[UP_COMM_BYTES],
			     struct decision *d)
{
	struct up_opener key;
	struct up_remembered *then;
	struct up_rule *rule;
	__u32 index;

	opener(&key, netns_cookie, dst, comm);
	then = bpf_map_lookup_elem(&remembered, &key);
	if (!then || then->forgets != s->forgets || then->generation != d->generation ||
	    then->until_ns < bpf_ktime_get_ns() || then->slot >= UP_MAX_RULES)
		return 0;
	index = d->generation * UP_MAX_RULES + then->slot;
	rule = bpf_map_lookup_elem(&rules, &index);
	if (!rule)
		return 0;
	d->slot = then->slot;
	/* Nothing else is remembered. */
	d->action = UP_ACTION_BYPASS;
	d->shortcut = rule->shortcut;
	return 1;
}
