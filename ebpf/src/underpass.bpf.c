/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The host's object: every hook on this host's own connections and on those that come in. One object,
 * so that one BTF and one set of maps (maps.h) serve them all, and so that all are loaded and replaced
 * together. `edge.bpf.c` and `idle.bpf.c` are the other objects.
 *
 * hook                        fires                                     file, function
 * cgroup/connect4, 6          in connect(2), before the source port     connect.h connect4, connect6
 * cgroup/sock_release         when a socket is closed, if a rule limits  limit.h on_release
 * cgroup/getpeername4, 6      after the kernel has answered             names.h getpeername4, getpeername6
 * cgroup/getsockname4, 6      after the kernel has answered             names.h getsockname4, getsockname6
 * cgroup/getsockopt           after the kernel has answered             names.h original_dst
 * sockops                     from connect(2) and listen(2) to CLOSE    socket_events.h on_socket_event
 * sockops                     accepted, and CLOSE, if a rule limits     limit_incoming.h on_client_event
 * sk_lookup                   SYN from another host, to a database      incoming.h incoming_0 … incoming_7
 * sk_lookup                   SYN from another host, to a virtual one   virtual.h virtual_addresses
 * iter/tcp                    when the agent asks for listening sockets incoming.h find_databases
 * socket (filter)             each packet of an agent's listener        hold.h hold_syn
 * cgroup_skb/egress           each packet that leaves, if observed      meter.h meter_requests
 * cgroup_skb/ingress          each packet that comes in, if observed    meter.h meter_answers
 * iter/tcp                    when a policy that observes comes         adopt.h adopt_connections
 * sk_msg                      send(2) of a spliced client               splice.h splice_up
 * sk_msg                      send(2) of a spliced database             splice.h splice_back
 * sk_skb/stream_verdict       bytes arrive at a dialled socket          splice.h splice_down
 * classifier (run by agent)   when the agent enrols or asks             splice.h splice_look
 * sockops                     ESTABLISHED and CLOSE, shortcut's ends    shortcut.h on_shortcut_event
 * sk_msg                      send(2) of a socket on the shortcut       shortcut.h take_shortcut
 * iter/tcp                    when the agent looks after a spill        shortcut.h nudge_readers
 * iter/sockmap                when the agent looks for stalled readers  readers.h find_stalled
 * iter/sockmap                when the keeper looks beside the agent    readers.h find_stalled_beside
 * iter/tcp                    when a socket has left a sockmap          readers.h nudge_left
 * classifier (run by agent)   when the agent shortens a leg             legs.h leg_look
 * iter/bpf_sk_storage_map     when the agent asks who is not enrolled   shortcut.h tell_refusals
 *
 * What these share: abi.h (both sides see it), maps.h, kernel.h (the kernel's types), common.h
 * (addresses, counters), decide.h (first match), balance.h (backends), denial.h (who was refused), recall.h (remembered decisions),
 * databases.h and observe_incoming.h (sockets of databases here), clients.h (connections of a client), steer.h (sk_lookup's answers),
 * meter_frames.h and meter_latency.h (what the meter reads and times), tap.h (copies for the agent), frame_position.h and frames.h (positions
 * in a stream of frames).
 */
#include "connect.h"
#include "names.h"
#include "socket_events.h"
#include "incoming.h"
#include "virtual.h"
#include "hold.h"
#include "meter.h"
#include "adopt.h"
#include "splice.h"
#include "shortcut.h"
#include "legs.h"
#include "readers.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";
