# SPDX-License-Identifier: GPL-2.0-only
"""Mistakes in what keeps users, guests and kernel threads from others' turns (`hostile.rs`, `yields.rs`)."""

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
    Mutation(
        "who exits leaves the clock where its turn began, if VMs are nothing",
        "order_task.h",
        "\t.exits = vtime_exits,\n",
        "",
    ),
    Mutation(
        "who yields saves up what it leaves to others",
        "order_vm.h",
        "t->vtime = forfeit(t->vtime, least - lag_ns, lag_ns);",
        ";",
    ),
    Mutation(
        "a cgroup saves up what its only task leaves to others",
        "order_vm.h",
        "e->vtime = forfeit(e->vtime, least - entity_lag(e, t), lag_ns);",
        ";",
    ),
    Mutation(
        "who yields gives away what others of its cgroup are due",
        "order_vm.h",
        "if (!slot || !e || e->nr_active > 1)",
        "if (!slot || !e)",
    ),
    Mutation(
        "who yields once beside a light one forfeits seconds",
        "order_vm.h",
        "return least - vtime < LAG_APART * lag ? least : vtime + LAG_APART * lag;",
        "return least;",
    ),
    Mutation(
        "who yields saves up what it leaves to others in a flat queue",
        "order_sbco.h",
        "t->vtime += forfeit(own->own, to->own - lag, lag) - own->own;",
        "t->vtime += lag - lag;",
    ),
    Mutation(
        "who writes cpu.weight makes all look up their places",
        "tree.h",
        "tree_tell_vms(cgroup_slot(cgroup_id(cgrp)), weight);",
        "atomic_add(&tree_generation, 1);",
    ),
    Mutation(
        "a VM shows the weight that its cgroup had",
        "tree.h",
        "if (vm->kvm && vm->group == slot)",
        "if (!vm->kvm)",
    ),
    Mutation(
        "who writes cpu.max makes all look up their places",
        "gate_quota.h",
        "if (has && !quotas_known) {",
        "if (has || had) {",
    ),
]
