/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* One variable of each type in abi.h, so that this file's BTF names them all.
 * `cargo xtask generate` compiles it and reads that BTF; nothing loads it. */
#include "abi.h"

enum up_limit abi_limit;
enum up_action abi_action;
enum up_fail abi_fail;
enum up_outcome abi_outcome;
enum up_cause abi_cause;
struct up_endpoint abi_endpoint;
struct up_settings abi_settings;
struct up_rule_set abi_rule_set;
struct up_policy abi_policy;
struct up_rule abi_rule;
struct up_target_key abi_target_key;
struct up_process_key abi_process_key;
struct up_uid_key abi_uid_key;
struct up_cgroup_key abi_cgroup_key;
struct up_opener abi_opener;
struct up_remembered abi_remembered;
struct up_leg abi_leg;
struct up_flow abi_flow;
struct up_held abi_held;
struct up_release abi_release;
enum up_framing abi_framing;
enum up_sync abi_sync;
struct up_cursor abi_cursor;
struct up_direction abi_direction;
struct up_meter abi_meter;
enum up_splice_down abi_splice_down;
enum up_splice_refusal abi_splice_refusal;
enum up_place_framing abi_place_framing;
struct up_place abi_place;
struct up_splice_order abi_splice_order;
struct up_splice_slot abi_splice_slot;
struct up_splice abi_splice;
struct up_spliced abi_spliced;
struct up_splice_question abi_splice_question;
struct up_splice_answer abi_splice_answer;
struct up_decisions abi_decisions;
enum up_turn abi_turn;
struct up_shortcut_limits abi_shortcut_limits;
struct up_shortcut_key abi_shortcut_key;
struct up_shortcut_first abi_shortcut_first;
struct up_shortcut_end abi_shortcut_end;
struct up_turn_count abi_turn_count;
struct up_shortcut_count abi_shortcut_count;
struct up_nudge_count abi_nudge_count;
