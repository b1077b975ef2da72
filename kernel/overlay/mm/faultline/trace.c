// SPDX-License-Identifier: GPL-2.0-only
/* Faultline: the tracepoints of all features. */

#define CREATE_TRACE_POINTS
#include <trace/events/faultline.h>
