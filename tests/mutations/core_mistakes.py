# SPDX-License-Identifier: GPL-2.0-only
"""More mistakes that the simulator's tests of `bpf/` must find: in who may run, who is near, who is told, what
begins and ends.
"""

from tests.mutations.mutation import Mutation

OF_OPERATIONS = [
    Mutation(
        "a runner about which something changes has left",
        "cohort.bpf.c",
        "if (!(deq_flags & SCX_DEQ_SLEEP))",
        "if (false)",
    ),
    Mutation("a waker's pCPU is idle", "cohort.bpf.c", "wake_flags & ~SCX_WAKE_SYNC, &idle", "wake_flags, &idle"),
    Mutation(
        "whoever makes room does so for one who could go there himself",
        "placement.h",
        "\t\tif (waiter && task_allowed_on(waiter, other))\n\t\t\tcontinue;\n",
        "",
    ),
    Mutation(
        "nobody is said to wait for room",
        "cohort.bpf.c",
        "room_for(prev, t, &best->rank, waiter, cpu)",
        "room_for(prev, t, &best->rank, NULL, cpu)",
    ),
    Mutation(
        "who changes while it waits begins to wait anew",
        "cohort.bpf.c",
        "leave(t, !(deq_flags & SCX_DEQ_SLEEP), now);",
        "leave(t, false, now);",
    ),
    Mutation(
        "who becomes a real-time task waits for ever",
        "cohort.bpf.c",
        "\tt->queued_ns = 0;\n\tt->unserved_ns = 0;\n}",
        "}",
    ),
    Mutation(
        "a runner that changed has come anew",
        "runner.h",
        "if (!t->charged_ns)\n\t\treturn false;",
        "if (now)\n\t\treturn false;",
    ),
    Mutation(
        "who has left still has the pCPU",
        "runner.h",
        "\t\tc->curr_pid = 0;\n",
        "",
    ),
    Mutation(
        "a runner that is confined is not known to be",
        "cohort.bpf.c",
        "v->restricted = !t->everywhere;",
        ";",
    ),
    Mutation(
        "who becomes real-time runs on",
        "cohort.bpf.c",
        ".disable = (void *)cohort_disable,",
        "",
    ),
    Mutation(
        "what an entity used elsewhere counts for ever",
        "order_vm.h",
        "if (elapsed_ns(now, e->served_ns) > REST_NS && time_before(most, e->vtime))",
        "if (0)",
    ),
    Mutation(
        "what a task used elsewhere counts for ever",
        "order_vm.h",
        "if (waited_ns(t, now) > REST_NS && time_before(most, t->vtime))",
        "if (0)",
    ),
    Mutation(
        "the scope around a VM saves for later what the VM leaves to others",
        "order_vm.h",
        "if (!e || e->nr_active != 1)",
        "if (e)",
    ),
    Mutation(
        "a VM for which there is no number has the last one's",
        "registry.h",
        "vm = vm_at(i);\n\t\tif (!vm || vm->kvm",
        "vm = vm_at(id = i);\n\t\tif (!vm || vm->kvm",
    ),
    Mutation(
        "who is recalled goes before all by the time within its group",
        "aside.h",
        "scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER, order_key(t));",
        "scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER, t->vtime);",
    ),
    Mutation(
        "of no more cgroups is known whose part they are than there are numbers",
        "state.h",
        "__uint(max_entries, MAX_CGROUPS);",
        "__uint(max_entries, MAX_ENTITIES);",
    ),
    Mutation(
        "at each switch between real-time tasks all are asked to go",
        "pcpu_ops.h",
        "if (c->emptied)\n\t\treturn;",
        ";",
    ),
    Mutation(
        "who comes to a pCPU after a real-time task is not asked to go by the next",
        "cohort.bpf.c",
        "\tc->emptied = 0;\n",
        "",
    ),
    Mutation(
        "who loses its pCPU the moment it gets it has been served",
        "account.h",
        "elapsed_ns(now, t->unserved_ns ?: t->queued_ns) : 0;",
        "elapsed_ns(now, t->queued_ns) : 0;",
    ),
    Mutation(
        "nobody asks for a timer where nobody may run",
        "gate_quota.h",
        "if (!e->timer_on)\n\t\t\t\tquota_start_timer(e, slot);\n\t\t\tif (!e->throttled",
        "if (!e->throttled",
    ),
    Mutation("the end of a table is not raised", "state.h", "if (old > number ||", "if (old ||"),
    Mutation("the table of VMs has no end", "registry.h", "raise_end(&vm->end, id);", ";"),
    Mutation(
        "a VM's entity is never free again",
        "registry.h",
        "entity_free(vm->entity);\n\tvm->entity = 0;",
        "vm->entity = 0;",
    ),
    Mutation(
        "who has set a vCPU up stays that vCPU",
        "registry.h",
        "return v && v->pid && v->pid != p->pid;",
        "return v && !v->pid && v->pid != p->pid;",
    ),
    Mutation("a number's new owner has the old one's clocks", "tree.h", "clocks_reset(slot);", ";"),
    Mutation(
        "what was paid at the old weight is paid back at the new one",
        "tree.h",
        "scale_by_entity(rest_ns, e) - paid + still - ahead",
        "still - ahead",
    ),
    Mutation(
        "a VM that is too deep competes as if it were nowhere",
        "tree.h",
        "if (!up || up->depth >= MAX_DEPTH) {",
        "if (!up) {",
    ),
    Mutation(
        "a queue that was looked at too early is never looked at again",
        "runqueue.h",
        "if (!queue_is_marked(cpu) && scx_bpf_dsq_nr_queued(cpu) > 0)",
        "if (0)",
    ),
    Mutation(
        "the overdue have whole turns",
        "runqueue.h",
        "scx_bpf_dsq_move_set_slice(BPF_FOR_EACH_ITER, OVERDUE_SLICE_NS);",
        ";",
    ),
    Mutation(
        "a boost goes before one that has waited too long",
        "wish.h",
        "return !rival->urgency && !wish_is_outranked(",
        "return !wish_is_outranked(",
        "spin boost",
    ),
    Mutation("what a VM was told is kept to be told again", "tally.h", "own->runtime_ns = 0;", ""),
    Mutation("waiting that was told is kept to be told again", "tally.h", "own->wait_ns = 0;", ""),
    Mutation("switches that were told are kept to be told again", "tally.h", "own->switches = 0;", ""),
    Mutation(
        "a thread of a VMM takes what it has counted to another VM",
        "registry.h",
        "\ttally_end(t);\n\tif (!vm) {",
        "\tif (!vm) {",
    ),
    Mutation(
        "counts of a VM that is gone are another's",
        "tally.h",
        "__builtin_memset(&t->untold, 0, sizeof(t->untold));",
        ";",
    ),
    Mutation("empty tables are read whole", "life_ops.h", "raise_end(&nobody->end, 0);", ";"),
    Mutation(
        "who leaves a VM tells it nothing",
        "tally.h",
        "if (vm)\n\t\ttally_tell(t, vm);",
        "if (false)\n\t\ttally_tell(t, vm);",
    ),
    Mutation("exits that were told are kept to be told again", "tally.h", "atomic_add(&own->ple, -ple);", ";"),
    Mutation("those put aside on the pCPUs beyond 64 stay there", "aside.h", "if (word * 64 >= nr_cpus)", "if (word)"),
    Mutation(
        "nobody is told of those who may run again",
        "aside.h",
        "task_is_pinned(p) ? -1 : scx_bpf_pick_idle_cpu(p->cpus_ptr, 0)",
        "-1",
    ),
    Mutation(
        "those put aside because their quota is used up claim all that they missed",
        "aside.h",
        "\t\torder_wake(t, cpu, now, true);\n",
        "",
    ),
    Mutation(
        "who stays aside when others are let go is forgotten",
        "aside.h",
        "if (scx_bpf_dsq_nr_queued(ASIDE_DSQ(cpu)) <= 0)",
        "if (scan)",
    ),
    Mutation(
        "whose turn a kernel thread interrupts has had it",
        "wake.h",
        "c->resume_end_ns = c->turn_end_ns;",
        "c->resume_end_ns = 0;",
    ),
    Mutation(
        "who waits for the end of a turn that began before waits for a tick", "wake.h", "\tturn_watch(cpu, now);\n", ""
    ),
    Mutation(
        "a kernel thread that comes upon another has the turn's rest",
        "wake.h",
        "if (c && c->interrupted) {",
        "if (!c) {",
    ),
    Mutation(
        "who became part of another entity while it ran is where it was in the old one",
        "wake.h",
        "if (t->cpu < 0 || !t->waited_ns)",
        "if (t->cpu < 0)",
    ),
    Mutation(
        "a sibling is forced onto the leader's own pCPU", "force.h", "if (there != but && force_may", "if (force_may"
    ),
    Mutation(
        "two siblings are forced onto one pCPU",
        "force.h",
        " &&\n\t       !(c->wish_pid && c->wish_at_ns == now);",
        ";",
    ),
    Mutation(
        "the leader may lose its pCPU in its turn",
        "force.h",
        "\tforce_hold(cpu, vm_id, end_ns);\n\tbpf_for",
        "\tbpf_for",
    ),
    Mutation(
        "who has waited for long is kept off by turns",
        "force.h",
        "waited_ns(t, now) > starve_ns)",
        "waited_ns(t, now) > ASIDE_MAX_NS)",
    ),
    Mutation(
        "a guard's grace takes from the turn that it interrupts",
        "grace.h",
        "c->resume_end_ns = now + grace_ns + rest_ns;",
        "c->resume_end_ns = now + rest_ns;",
    ),
    Mutation(
        "a kernel thread is stopped for the vCPU that it interrupts", "grace.h", " || c->resume_pid == v->pid)", ")"
    ),
    Mutation("graces are counted for ever, not in a row", "grace.h", "\tif (!v->in_grace)\n\t\tv->graces = 0;\n", ""),
    Mutation(
        "an interrupt is seen in the hint where an APIC in hardware has it always set",
        "kernel.h",
        "if (bpf_core_field_exists(apic->apicv_active) && BPF_CORE_READ(apic, apicv_active))",
        "if (bpf_core_field_exists(apic->apicv_active) && !BPF_CORE_READ(apic, apicv_active))",
    ),
    Mutation(
        "who was preempted in user mode counts as preempted in kernel mode",
        "kernel.h",
        "return BPF_CORE_READ(v, preempted) && BPF_CORE_READ(v, arch.preempted_in_kernel);",
        "return BPF_CORE_READ(v, preempted);",
    ),
    Mutation(
        "what a gang has put off for the end of an operation is done again and again",
        "gang_calls.h",
        "\tc->settle_vm = 0;\n",
        "",
    ),
    Mutation(
        "no gang hears the clock tick", "gang_calls.h", "tick, gang_##name.tick(t, cpu, now))", "tick, (void)cpu)"
    ),
    Mutation("a period comes once", "period.h", "\tbpf_timer_start(&timer->timer, ns, 0);\n\tif (which", "\tif (which"),
    Mutation(
        "the gang has the order's periods", "period.h", "if (which == PERIOD_ORDER)", "if (which != PERIOD_ORDER)"
    ),
    Mutation(
        "who moves to another cgroup is charged to the old one",
        "cgroup_ops.h",
        "\tif (t)\n\t\tt->tree_generation = 0;\n",
        "\t(void)t;\n",
    ),
    Mutation(
        "a quota that was set before the scheduler came is not known",
        "cgroup_ops.h",
        "quota_set(cgrp, args->bw_period_us, args->bw_quota_us, args->bw_burst_us);",
        ";",
    ),
    Mutation(
        "a cgroup that was idle before the scheduler came is not",
        "cgroup_ops.h",
        "\t\ttree_set_idle(cgrp, true);",
        "\t\t;",
    ),
    Mutation("a quota stays when its cgroup goes", "cgroup_ops.h", "\tquota_drop(cgrp);\n", ""),
    Mutation(
        "an idle pCPU is not told of what is queued there",
        "wake.h",
        "keep_challenge(t, c, now);\n\t\tscx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);",
        "keep_challenge(t, c, now);",
    ),
    Mutation(
        "no other pCPU that idles is told of who waits",
        "wake.h",
        "\t\t\tscx_bpf_kick_cpu(idle, SCX_KICK_IDLE);",
        "\t\t\t;",
    ),
    Mutation(
        "whoever wakes asks for the pCPU of a set in its turn",
        "gang_calls.h",
        "holds, return gang_##name.holds(c, now))",
        "holds, return false)",
    ),
    Mutation(
        "no gang hears that a pCPU falls idle",
        "gang_calls.h",
        "idles, gang_##name.idles(cpu, now))",
        "idles, (void)cpu)",
    ),
    Mutation("a thread that exits stays a vCPU of its VM", "life_ops.h", "vm_leave(t, p->pid);", ";"),
    Mutation("at the start no pCPU counts as online", "life_ops.h", "nr_online++;", ";"),
    Mutation(
        "the neighbours are searched from the second",
        "topology.h",
        "return near->cpu[i];",
        "return i ? near->cpu[i] : -1;",
    ),
    Mutation(
        "the farthest neighbour is never reached",
        "topology.h",
        "if (i >= near->n || i >= NEIGHBOURS)",
        "if (i + 1 >= near->n || i >= NEIGHBOURS)",
    ),
    Mutation(
        "what is far away is as near as the rest",
        "topology.h",
        "return (i >= near->core_end) + (i >= near->llc_end) + (i >= near->node_end);",
        "return 0;",
    ),
    Mutation(
        "one waiter more is a reason to leave a cache",
        "placement.h",
        "cost += i >= near->node_end ? 16 : 4;",
        ";",
    ),
    Mutation(
        "an idle pCPU takes from the longest queue, however far",
        "runqueue.h",
        "if (longest >= 0 && (i == near->llc_end || i == near->node_end))",
        "if (0)",
    ),
    Mutation(
        "a light one that is nearly due stops a heavy one",
        "vm_rank.h",
        "return width > own ? width : own;",
        "return own ? width : width;",
        "order vm",
    ),
    Mutation(
        "light ones that have slept wait for heavy ones",
        "order_vm.h",
        "*fresh_until(t) = t->paid_until_ns + slice_ns / 2;",
        ";",
        "order vm",
    ),
]
