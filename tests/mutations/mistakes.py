# SPDX-License-Identifier: GPL-2.0-only
"""Mistakes that the simulator's tests of `bpf/` must find: one line of the scheduler each, changed for the worse."""

from tests.mutations.mutation import Mutation

# At least one for each file that decides something, two for each mechanism.
MUTATIONS = [
    Mutation(
        "a heavy task is charged more, not less",
        "account.h",
        "delta_ns * WEIGHT_DEFAULT / (weight ?: 1)",
        "delta_ns * weight / WEIGHT_DEFAULT",
    ),
    Mutation(
        "a heavy entity is charged as a light one",
        "tree.h",
        "e->inv_weight = (WEIGHT_DEFAULT << INV_WEIGHT_SHIFT) / weight;",
        "e->inv_weight = 1 << INV_WEIGHT_SHIFT;",
    ),
    Mutation(
        "a child's weight is taken from its parent's neighbours",
        "tree.h",
        "e->path[i] = i < up->depth ? up->path[i] : 0;",
        "e->path[i] = 0;",
    ),
    Mutation(
        "a cgroup is active for each of its tasks in its parent",
        "tree.h",
        "if (old != (n > 0 ? 0 : 1))",
        "if (old < 0)",
    ),
    Mutation(
        "who sleeps collects without bound",
        "order_vm.h",
        "if (time_before(vtime, clock - lag))",
        "if (time_before(vtime + (1ULL << 60), clock))",
    ),
    Mutation(
        "a clock stands where the turns will end that are paid for",
        "order_vm.h",
        "return e->vtime - scale_by_entity(turns_rest_ns(e, now), e);",
        "return e->vtime;",
    ),
    Mutation(
        "siblings who go on without a new turn yet count as if they had paid for one",
        "order_vm.h",
        "return (u64)rest_ns < count * slice_ns ? (u64)rest_ns : count * slice_ns;",
        "return e->nr_running * slice_ns;",
    ),
    Mutation(
        "who sleeps is placed by the queue that has come farthest",
        "order_vm.h",
        "return time_before(clock, least) ? least : clock;",
        "return time_before(clock, least) ? least : clock_of(entity, cpu, everywhere);",
    ),
    Mutation(
        "a VM whose vCPUs sleep may claim as much as one of them",
        "order_vm.h",
        "return lag_ns * (vcpus > nr_cpus ? nr_cpus : vcpus ?: 1);",
        "return lag_ns * (vcpus ? 1 : 1);",
    ),
    Mutation(
        "a newcomer is owed the past",
        "order_vm.h",
        "if (!waited_ns)\n\t\treturn clock;",
        "if (!waited_ns)\n\t\treturn 0;",
    ),
    Mutation(
        "one clock for all pCPUs lifts who competes elsewhere",
        "state.h",
        "u32 index = entity * nr_cpus + cpu;",
        "u32 index = entity * nr_cpus;",
    ),
    Mutation(
        "what is not used of a turn is not paid back",
        "order_vm.h",
        "\tif (more < 0)\n",
        "\tif (more < 0)\n\t\treturn;\n\tif (more < 0)\n",
    ),
    Mutation("a turn is paid for afterwards", "order_vm.h", "t->paid_until_ns = t->charged_ns + slice;", "return;"),
    Mutation(
        "time since a later moment is very long",
        "state.h",
        "return (s64)(now - then) > 0 ? now - then : 0;",
        "return now - then;",
    ),
    Mutation(
        "who runs beyond its turn, by another pCPU's clock, has paid for all time",
        "order_vm.h",
        "unused = elapsed_ns(c->turn_end_ns, now);",
        "unused = c->turn_end_ns - now;",
    ),
    Mutation(
        "a thread of the VMM waits for its VM's turn",
        "order_vm.h",
        "return t->vm && t->vcpu < 0 ? lag_ns : 0;",
        "return 0;",
    ),
    Mutation(
        "a VM's sleeping vCPUs count as active",
        "registry.h",
        "atomic_add(&vm->nr_active, -1);",
        "atomic_add(&vm->nr_active, 0);",
    ),
    Mutation(
        "a VM's number is never free again",
        "registry.h",
        "if (atomic_add(&vm->nr_vcpus, -1) == 1)",
        "if (!vm->nr_vcpus)",
    ),
    Mutation("a VM's entity is never free again", "registry.h", "entity_free(vm->entity);", ";"),
    Mutation("a VM's blocks of vCPUs are never free again", "registry.h", "*owner = free;", "*owner = free + id;"),
    Mutation(
        "siblings are queued together",
        "placement.h",
        "cost = (u64)siblings_on(t, cpu) << 32;",
        "cost = (u64)!siblings_on(t, cpu) << 32;",
    ),
    Mutation(
        "who may go elsewhere makes no room for who may not",
        "placement.h",
        "if (is_idle(other))\n\t\t\treturn other;",
        ";",
    ),
    Mutation(
        "nor for who is before others by a turn", "placement.h", "!order_before(rank, &runner, slice_ns))", "rank)"
    ),
    Mutation(
        "nobody who runs is asked for by an idle pCPU", "placement.h", "scx_bpf_kick_cpu(other, SCX_KICK_PREEMPT);", ";"
    ),
    Mutation(
        "the furthest child of a cgroup is not followed",
        "order_vm.h",
        "child_clock_follow(parent, vtime);",
        ";",
    ),
    Mutation("the pCPU of a real-time task looks free", "placement.h", "cost += (u64) !!c->taken << 24;", ";"),
    Mutation(
        "who waits where a real-time task comes is stuck",
        "pcpu_ops.h",
        "\tc->taken = 1;\n\treenqueue_local();",
        "\tc->taken = 1;",
    ),
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
        "nobody starves",
        "order_vm.h",
        "elapsed_ns(now, t->queued_ns) <= starve_ns)",
        "elapsed_ns(now, t->queued_ns) >= 0)",
    ),
    Mutation("nobody is overdue", "runqueue.h", "if (t && is_overdue(t, now))", "if (!t)"),
    Mutation(
        "those found overdue are not taken",
        "runqueue.h",
        "if (scx_bpf_dsq_nr_queued(OVERDUE_DSQ(cpu)) <= 0 ||",
        "if (c ||",
    ),
    Mutation(
        "the wrong one is better", "runqueue.h", "return order_before(r, &best->rank, margin_ns);", "return false;"
    ),
    Mutation("who may run again stays aside", "aside.h", "if (!t || gate_for(t, cpu, now))", "if (t)"),
    Mutation("what has run is counted by no gate", "account.h", "gate_charge(t, delta, now);", ";"),
    Mutation("tasks are ordered as if each were a VM's", "order_task.h", ".rank = vtime_rank,", ""),
    Mutation("a stale wish is granted", "wish.h", "time_before(c->wish_at_ns + WISH_STALE_NS, now)", "false"),
    Mutation(
        "no order is asked where a queue has its end", "policy_calls.h", "result = order_##name.key(t)", "(void)t"
    ),
    Mutation(
        "a gate that is closed is not asked",
        "policy_calls.h",
        "answer = gate_##name.ask(t, cpu, now);",
        "answer = GATE_OPEN;",
    ),
    Mutation(
        "a turn is not begun where one goes on",
        "cohort.bpf.c",
        "order_begin(t, cpu, slice, prev->scx.weight, true);",
        ";",
    ),
    Mutation(
        "a quota is not charged",
        "gate_quota.h",
        "atomic_add(&e->budget_ns, -(s64)delta_ns)",
        "atomic_add(&e->budget_ns, 0)",
    ),
    Mutation(
        "only the innermost quota counts",
        "gate_quota.h",
        "if (e->quota_ns && e->budget_ns <= 0)\n\t\t\treturn GATE_ASIDE;\n\t\tslot = e->parent;",
        "if (e->quota_ns && e->budget_ns <= 0)\n\t\t\treturn GATE_ASIDE;\n\t\tslot = 0;",
    ),
    Mutation(
        "a burst is never there",
        "gate_quota.h",
        "s64 most = e->quota_ns + e->burst_ns, budget;",
        "s64 most = e->quota_ns, budget;",
    ),
    Mutation(
        "what was overdrawn is forgotten",
        "gate_quota.h",
        "budget = e->budget_ns + (s64)(periods * e->quota_ns);",
        "budget = most + 1;",
    ),
    Mutation(
        "each period counts as throttled",
        "gate_quota.h",
        "if (e->throttled_since_ns)\n\t\te->nr_throttled += periods;",
        "e->nr_throttled += periods;",
    ),
    Mutation(
        "a new cgroup inherits the statistics of the one before",
        "tree.h",
        "e->nr_periods = e->nr_throttled = e->throttled_ns = 0;",
        ";",
    ),
    Mutation("cpu.idle is forgotten", "tree.h", "e->idle = idle;", ";"),
    Mutation("a posted interrupt is not seen", "kernel.h", "BPF_CORE_READ(vmx, vt.pi_desc.control) & 1)", "0)"),
    Mutation(
        "an interrupt in the page of an APIC in hardware is not seen",
        "kernel.h",
        "for (i = 0; regs && i < APIC_WORDS; i++) {",
        "for (i = 0; regs && i < 1; i++) {",
    ),
    Mutation(
        "a VM is known by its address alone",
        "registry.h",
        "if (vm && vm->kvm == kvm && vm->tgid == tgid)",
        "if (vm && vm->kvm == kvm)",
    ),
    Mutation(
        "a thread that goes on as another vCPU is taken for the old one",
        "registry.h",
        "if (kvm && ((u64)v != t->kvm_vcpu || kvm != t->kvm || registry_retries(t)))",
        "if (kvm && (kvm != t->kvm || registry_retries(t)))",
    ),
    Mutation(
        "who found no room is never tried again",
        "registry.h",
        "return !t->vm && t->registry_generation != registry_generation;",
        "return false;",
    ),
    Mutation("a turn ends at a tick", "turn.h", "scx_bpf_kick_cpu(*key, SCX_KICK_PREEMPT);", ";"),
    Mutation(
        "a timer is set for a turn, not for what is left of it",
        "turn.h",
        "end = c->turn_end_ns;",
        "end = now + slice_ns;",
    ),
    Mutation(
        "a boosted vCPU leaves the place where its turn has come",
        "spin_boost.h",
        "found = wish_is_outranked(&runner, &rank, wish_margin());",
        "found = true;",
        "boost migrate",
    ),
    Mutation(
        "a boosted vCPU stays where its turn does not come",
        "spin_boost.h",
        "found = wish_is_outranked(&runner, &rank, wish_margin());",
        "found = false;",
        "boost migrate",
    ),
    Mutation(
        "who may not migrate is stopped all the same",
        "cohort.bpf.c",
        "if (!c || !best || let_out(prev, cpu, best->now))",
        "if (!c || !best)",
    ),
    Mutation(
        "a section that forbids migration is never ended",
        "cohort.bpf.c",
        "|| c->lets_out >= LET_OUT_MAX) {",
        ") {",
    ),
    Mutation(
        "a kernel thread ends a turn",
        "cohort.bpf.c",
        "if (take_overdue(cpu) || resume(cpu, best->now))",
        "if (take_overdue(cpu))",
    ),
    Mutation(
        "whose turn was interrupted has a whole one anew",
        "cohort.bpf.c",
        "take(pid, cpu, cpu, c->resume_end_ns - now)",
        "take(pid, cpu, cpu, slice_ns)",
    ),
    Mutation(
        "a spin in user mode is boosted, one in kernel mode is not", "spin_boost.h", "if (!in_kernel)", "if (in_kernel)"
    ),
    Mutation(
        "siblings are searched during the back-off too",
        "spin_boost.h",
        "stat_inc(STAT_PLE_BACKOFF);\n\t\treturn;",
        "stat_inc(STAT_PLE_BACKOFF);",
    ),
    Mutation(
        "a boost goes where affinity forbids it", "wish.h", "allowed = task_allowed_on(p, cpu);", "allowed = true;"
    ),
    Mutation(
        "who was preempted in kernel mode once, and was woken since, counts as preempted there",
        "kernel.h",
        "return BPF_CORE_READ(v, preempted) && BPF_CORE_READ(v, arch.preempted_in_kernel);",
        "return BPF_CORE_READ(v, arch.preempted_in_kernel);",
    ),
    Mutation(
        "another VM's vCPU is boosted",
        "spin_boost.h",
        "!f->vm || f->vm != t->vm)",
        "!f->vm || f->vm == t->vm)",
    ),
    Mutation("one exit gives the pCPU away twice", "sibling.h", "if (!spinner->exit_served)", "if (spinner)"),
    Mutation(
        "an exit that had its boost is never over", "cohort.bpf.c", "v->exit_served--;", "v->exit_served = EXIT_SERVED;"
    ),
    Mutation(
        "turns have ended when they begin",
        "gang_aligned.h",
        "vm->turn_end_ns = now + slice_ns;",
        "vm->turn_end_ns = now;",
    ),
    Mutation(
        "a vCPU that was moved while it ran is not called to its new seat",
        "gang_strict.h",
        "} else if (from == VCPU_RUNNING && v->state == VCPU_WAITING && *seat_of && *seat_of != (u32)v->cpu + 1) {",
        "} else if (from > 1000) {",
    ),
    Mutation(
        "a VM runs with those of its vCPUs that have found a pCPU",
        "gang_strict.h",
        "if (!strict_seat_all(vm_id, how)) {",
        "if (strict_seat_all(vm_id, how) != ~0U) {",
    ),
    Mutation(
        "an idle vCPU keeps its pCPU",
        "gang_strict.h",
        "if (v->state == VCPU_ASLEEP && *seat_of) {",
        "if (v->state == VCPU_ASLEEP && *seat_of && !now) {",
    ),
    Mutation("a wide VM's same vCPUs run every time", "strict_seats.h", "s->first = s->unseated;", "s->first = 0;"),
    Mutation(
        "nobody waits for who is left behind",
        "gang_relaxed.h",
        "if (!r || !r->stopped || is_overdue(t, now))",
        "if (r || is_overdue(t, now))",
    ),
    Mutation(
        "who waits for one that has run since goes on waiting",
        "gang_relaxed.h",
        "return slowest_runs ? RELAXED_GOES_ON : RELAXED_STOPPED;",
        "return RELAXED_STOPPED;",
    ),
    Mutation(
        "a set runs in part when there is no room for all",
        "gang_partial.h",
        "return found & SET_UNFIT || !(found & SET_NO_ROOM);",
        "return true;",
    ),
    Mutation(
        "a member runs whether its set can or not",
        "gang_partial.h",
        "return set_in_turn(set, now) || set_begin(t, c, set, place, cpu, now);",
        "return true;",
    ),
    Mutation(
        "a set takes pCPUs whatever their runners deserve",
        "set_turn.h",
        "if (!order_before(rank, runner, wakeup_gran_ns))",
        "if (!runner)",
    ),
    Mutation("members that sleep count", "set_turn.h", "v->state == VCPU_ASLEEP ||", ""),
    Mutation(
        "a newcomer is in the sets of whose place it has",
        "sets.h",
        "(u32)(value >> 32) != vm->generation || ",
        "",
    ),
    Mutation("interrupts to a vCPU that is not there count", "traffic.h", "to >= vm->vcpu_end || ", ""),
    Mutation(
        "a touch of long ago is a message", "shared_pages.h", " && elapsed_ns(now, last->at_ns) < TOUCH_WINDOW_NS", ""
    ),
    Mutation("who touched a page is forgotten", "shared_pages.h", "last->vcpu = t->vcpu;", ";"),
    Mutation("a page is every VM's", "shared_pages.h", "gfn << 16 | t->vm", "gfn << 16"),
    Mutation(
        "a newcomer has the past of whose place it has", "shared_pages.h", "last->generation == vm->generation && ", ""
    ),
    Mutation("only those to lower vCPUs count", "traffic.h", "to == t->vcpu)", "to >= t->vcpu)"),
    Mutation("nobody calls its siblings", "gang_procco.h", "if (t->vcpu == 0)", "if (t->vcpu == 99)"),
    Mutation("another pCPU leads", "gang_cpuco.h", "if (cpu == 0 && t->vcpu >= 0)", "if (cpu == 1 && t->vcpu >= 0)"),
    Mutation(
        "who was thrown out throws out the leader",
        "force.h",
        "return time_before(now, turn->end_ns) ? GATE_WAIT : GATE_OPEN;",
        "return GATE_OPEN;",
    ),
    Mutation("a pCPU that goes offline is still used", "pcpu_ops.h", "c->online = 0;", "c->online = 1;"),
    Mutation(
        "who deserves the pCPU more waits for the end of a slice",
        "wake.h",
        "if (would_preempt(c, &rank, now)) {",
        "if (!would_preempt(c, &rank, now) && !now) {",
    ),
    Mutation(
        "a vCPU in kernel mode has its pCPU back for ever",
        "guard_kernel_mode.h",
        "v->graces >= GUARD_GRACES",
        "v->graces > 100",
    ),
    Mutation("who gave its pCPU to a sibling has it back first", "guard_kernel_mode.h", "if (v->gave_way || ", "if ("),
    Mutation("whose turn a grace interrupts has lost it", "grace.h", "c->resume_pid = c->curr_pid;", ";"),
    Mutation(
        "where no VM competes as one, siblings are not kept from borrowing",
        "wish.h",
        "!(order_is_of_vms() && rank_same_leaf(rival, rank))",
        "!rank_same_leaf(rival, rank)",
        "order task",
    ),
    Mutation("a spinner does not stand back", "spin_prefer.h", "t->vtime += least - own.own;", ";"),
    Mutation(
        "a preference is forgotten at once",
        "spin_prefer.h",
        "if (index >= 0 && v && prefer_is_needed(spinner, v, now))",
        "if (index < 0 && v && prefer_is_needed(spinner, v, now))",
    ),
    Mutation(
        "two that wait for each other give the pCPU to and fro",
        "spin_prefer.h",
        "elapsed_ns(now, v->preferred_ns) < PREFER_DEBOUNCE_NS",
        "v->preferred_ns > now",
    ),
    Mutation(
        "who wakes with credit is not boosted",
        "order_credit.h",
        "s->m.class = CREDIT_BOOST;",
        "s->m.class = CREDIT_UNDER;",
    ),
    Mutation("who owes credit is UNDER", "order_credit.h", "within < 0 ? CREDIT_OVER", "within < 0 ? CREDIT_UNDER"),
    Mutation(
        "a boost does not end", "order_credit.h", "if (s->m.class == CREDIT_BOOST && since_ns", "if (!s && since_ns"
    ),
    Mutation(
        "what a domain cannot use is lost",
        "domains.h",
        "division_left_ns -= d->peak_ns;",
        "division_left_ns -= left / 4;",
    ),
    Mutation("who sleeps counts for ever", "domains.h", "d->slept[old] = 0;", ";"),
    Mutation("all domains weigh the same", "domains.h", "WEIGHT_IDLE : e->weight;", "WEIGHT_IDLE : WEIGHT_DEFAULT;"),
    Mutation(
        "the latest deadline is first",
        "order_sedf.h",
        "return time_before(a->own + margin_ns, b->own);",
        "return time_before(b->own + margin_ns, a->own);",
    ),
    Mutation("a slice is never used up", "order_sedf.h", "s->left_ns -= of_slice;", ";"),
    Mutation(
        "who sleeps takes others' time",
        "order_sedf.h",
        "if (!rest || (s->left_ns > 0 &&",
        "if (rest || (s->left_ns > 0 &&",
    ),
    Mutation("who spins goes on", "spin_yield.h", "t->steps_back = true;", ";"),
    Mutation(
        "who yields may be next", "cohort.bpf.c", "(!steps_back && !order_before(", "(!order_before(", "spin yield"
    ),
    Mutation(
        "who borrows receives more than its sibling lends",
        "order_sbco.h",
        "sbco_lend(d->to_pid, d->to, -(s64)d->amount)",
        "sbco_lend(d->to_pid, d->to, -2 * (s64)d->amount)",
    ),
    Mutation(
        "a dirty vCPU takes part in another exchange",
        "order_sbco.h",
        "v->state != VCPU_WAITING || READ_ONCE(v->dirty))",
        "v->state != VCPU_WAITING)",
    ),
    Mutation(
        "a VM's weight is each of its vCPUs'",
        "flat.h",
        "rate *= active_of(slot, e->nr_active);",
        "(void)active_of(slot, 1);",
    ),
    Mutation(
        "who sleeps for a moment leaves its part to its siblings and has it too",
        "flat.h",
        "if (active < held->most && time_before(now, held->until_ns))",
        "if (active > nr_active)",
    ),
    Mutation("no distance is far enough", "order_sbco.h", "return index + 1;", "return 0;"),
]
