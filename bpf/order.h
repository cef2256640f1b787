/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef COHORT_ORDER_H
#define COHORT_ORDER_H

#include "fair.h"

#endif
