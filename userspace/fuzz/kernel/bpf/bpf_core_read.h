/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Nothing of the kernel is read here. */
#pragma once
