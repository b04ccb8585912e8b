/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* In the place of libbpf's header. */
#pragma once

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define bpf_htons(n) __builtin_bswap16(n)
#define bpf_htonl(n) __builtin_bswap32(n)
#else
#define bpf_htons(n) (n)
#define bpf_htonl(n) (n)
#endif
#define bpf_ntohs bpf_htons
#define bpf_ntohl bpf_htonl
