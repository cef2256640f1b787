# SPDX-License-Identifier: GPL-2.0-only
"""Mistakes in what keeps users, guests and kernel threads from others' turns (`sim/tests/bpf/hostile.rs`)."""

from tests.mutations.mutation import Mutation

OF_HOSTS = [
    Mutation("who exits is the kernel's to schedule", "cohort.bpf.c", " | SCX_OPS_ENQ_EXITING", ""),
    Mutation(
        "of many that are aside the last are never looked at",
        "aside.h",
        "scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, ASIDE_DSQ(cpu), 0);",
        ";",
    ),
    Mutation(
        "who writes cpu.max ends turns of all beside whom somebody is aside",
        "gate_quota.h",
        "gate_recheck(limit_bit(slot), may_kick",
        "gate_recheck(~0ULL, may_kick",
    ),
    Mutation(
        "who writes cpu.max ends as many turns",
        "gate_quota.h",
        "may_kick ? SCX_KICK_PREEMPT : SCX_KICK_IDLE",
        "SCX_KICK_PREEMPT",
    ),
    Mutation(
        "a look at who was aside ends a turn",
        "make_way.h",
        "order_period_ns() ? 0 : rest_of_turn_ns(c, best->now)",
        "0",
    ),
    Mutation(
        "kernel threads follow one another for ever",
        "wake.h",
        "(c->interrupted ? elapsed_ns(now, c->interrupted_ns) : 0)",
        "0",
    ),
    Mutation(
        "kernel threads interrupt again and again",
        "wake.h",
        "c->interrupts_ns += elapsed_ns(now, c->interrupted_ns);",
        ";",
    ),
    Mutation(
        "a quota holds up who exits",
        "aside.h",
        "return p->flags & PF_EXITING ? GATE_OPEN : gate_for",
        "return gate_for",
    ),
    Mutation(
        "who is left of many that are aside is not looked at where nobody runs",
        "aside.h",
        "\tif (here && c->aside_rest)\n\t\tscx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);\n",
        "",
    ),
    Mutation("moments are not added up", "account.h", "t->unserved_ran_ns += ", "t->unserved_ran_ns = "),
    Mutation("moments are added up for ever", "account.h", "\t\tt->unserved_ran_ns = 0;\n", ""),
    Mutation(
        "a boost is asked for in vain",
        "spin_boost.h",
        "return vcpu_allowed_on(target, spinner_cpu) ? spinner_cpu : -1;",
        "return vcpu_allowed_on(target, spinner_cpu) ? spinner_cpu : cpu;",
    ),
    Mutation(
        "whoever may run on as many as are online may run everywhere",
        "tree.h",
        "lacks = true;",
        "lacks = p->nr_cpus_allowed < nr_online;",
    ),
    Mutation(
        "who exits leaves the clock where its turn began",
        "order_vm.h",
        "\tif (time_before(*clock, at))\n\t\t*clock = at;\n",
        "",
    ),
]
