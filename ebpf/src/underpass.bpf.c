/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* All hooks in one object: one BTF, one set of maps, loaded and replaced together. */
#include "connect.bpf.c"
#include "names.bpf.c"
#include "legs.bpf.c"
#include "incoming.bpf.c"
#include "virtual.bpf.c"
#include "hold.bpf.c"
#include "meter.bpf.c"
#include "splice.bpf.c"
#include "shortcut.bpf.c"

char LICENSE[] SEC("license") = "Dual MIT/GPL";
