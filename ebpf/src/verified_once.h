/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#pragma once

/*
 * A function that the verifier looks at once, whatever leads to it, for it is not static. It knows
 * nothing of what comes in: each pointer is asked for, and something must be returned. With the loops
 * over rule sets in such functions connect4 is verified in 18,000 steps, of 219,000 before.
 */
#define VERIFIED_ONCE __attribute__((noinline))
