/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Quotas: nobody without privileges holds all of the flows that the agent may carry.
 *
 * The agent counts flows by user, by cgroup, and by user in a cgroup. Whoever is at a quota is entered in
 * `full_quotas`, and further flows follow their rule's `fail` until some have ended. A flow counts for the
 * cgroup that its opener cannot choose: the topmost one above it that belongs to somebody other than root, or
 * is a user's slice, beneath which whoever it was given to makes as many cgroups as he likes; where there is
 * none, its own.
 *
 * No quota holds for the host's root, who could stop the agent. Reads full_quotas.
 */
#pragma once

#include "decide.h"

#define CAP_SYS_ADMIN 21

/* Of systemd: user-1000.slice has all sessions of user 1000. */
#define USER_SLICE "user-"

struct holder {
	__u64 cgroup_id;
	__u32 uid;
	__u32 unlimited;
};

/* Who can enter any namespace and change what he likes. Root of a container is not. */
static __always_inline int is_root_of_host(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	const struct cred *cred = BPF_CORE_READ(task, cred);
	__u64 caps = 0;

	if (BPF_CORE_READ(cred, user_ns, level))
		return 0;
	bpf_core_read(&caps, sizeof(caps), &cred->cap_effective);
	return (caps >> CAP_SYS_ADMIN) & 1;
}

/* Whether somebody other than root may make cgroups beneath this one, or its name says that what is beneath it
 * is one user's. */
static __always_inline int is_somebodys(struct kernfs_node *node)
{
	struct kernfs_iattrs *attributes = BPF_CORE_READ(node, iattr);
	char name[sizeof(USER_SLICE)] = {};

	if (attributes && BPF_CORE_READ(attributes, ia_uid.val))
		return 1;
	bpf_probe_read_kernel_str(name, sizeof(name), BPF_CORE_READ(node, name));
	return name[0] == 'u' && name[1] == 's' && name[2] == 'e' && name[3] == 'r' && name[4] == '-';
}

/* From the top, because whoever may make cgroups makes them as deep as he likes. */
VERIFIED_ONCE __u64 holder_cgroup(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct cgroup *own = BPF_CORE_READ(task, cgroups, dfl_cgrp), *above;
	struct kernfs_node *node;
	__u64 ancestors, id = 0;
	int level;

	if (!bpf_core_field_exists(((struct cgroup *)0)->ancestors))
		return bpf_get_current_cgroup_id();
	level = BPF_CORE_READ(own, level);
	ancestors = (__u64)(long)own + bpf_core_field_offset(struct cgroup, ancestors);
	NO_UNROLL for (int i = 0; i < UP_CGROUP_DEPTH && i <= level; i++) {
		if (bpf_probe_read_kernel(&above, sizeof(above),
					  (void *)(long)(ancestors + i * sizeof(above))))
			break;
		node = BPF_CORE_READ(above, kn);
		id = BPF_CORE_READ(node, id);
		if (is_somebodys(node))
			break;
	}
	return id;
}

static __always_inline void find_holder(struct holder *holder)
{
	holder->uid = (__u32)bpf_get_current_uid_gid();
	holder->cgroup_id = holder_cgroup();
	holder->unlimited = is_root_of_host();
}

/* Why this holder gets no further flow, or UP_CAUSES when he does. */
VERIFIED_ONCE __u32 quota_refuses(const struct holder *holder)
{
	struct up_quota quota = {};

	if (!holder || holder->unlimited)
		return UP_CAUSES;
	quota.uid = holder->uid;
	if (bpf_map_lookup_elem(&full_quotas, &quota))
		return UP_CAUSE_USER_FULL;
	quota.cgroup_id = holder->cgroup_id;
	if (bpf_map_lookup_elem(&full_quotas, &quota))
		return UP_CAUSE_USER_FULL;
	quota.uid = 0;
	quota.any_uid = 1;
	if (bpf_map_lookup_elem(&full_quotas, &quota))
		return UP_CAUSE_CGROUP_FULL;
	return UP_CAUSES;
}
