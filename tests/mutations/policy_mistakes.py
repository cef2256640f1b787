# SPDX-License-Identifier: GPL-2.0-only
"""More mistakes that the simulator's tests of `bpf/` must find: in what a policy chooses; and those of `sets/`."""

from tests.mutations.mutation import Mutation

OF_POLICIES = [
    Mutation("interrupts to a vCPU that is not there count", "traffic.h", "to >= vm->vcpu_end || ", ""),
    Mutation(
        "a touch of long ago is a message", "shared_pages.h", " && elapsed_ns(now, last->at_ns) < TOUCH_WINDOW_NS", ""
    ),
    Mutation("who touched a page is forgotten", "shared_pages.h", "last->vcpu = t->vcpu;", ";"),
    Mutation("a page is every VM's", "shared_pages.h", "gfn << 16 | t->vm", "gfn << 16"),
    Mutation(
        "a newcomer has the past of whose place it has", "shared_pages.h", "last->generation == vm->generation && ", ""
    ),
    Mutation(
        "what runs and is not charged yet is left when a period ends",
        "gate_quota.h",
        "left = quota_left(e), more",
        "left = e->budget_ns, more",
    ),
    Mutation(
        "what runs and is not charged yet is left for others",
        "gate_quota.h",
        "if (e->quota_ns && quota_left(e) <= 0)",
        "if (e->quota_ns && e->budget_ns <= 0)",
    ),
    Mutation(
        "each of those that run has all that is left of a quota",
        "gate_quota.h",
        "(u64)left / (nr_uncharged(e) ?: 1)",
        "(u64)left",
    ),
    Mutation("who has stopped runs on for its quota", "gate_quota.h", "goes_on && t->runs_since ?", "t->runs_since ?"),
    Mutation("nobody is under a quota", "gate_quota.h", "return t->limits;", "return false;"),
    Mutation(
        "no order is asked about who has waited for less than ten seconds",
        "account.h",
        "return waited > starve_ns || waited > OVERDUE_NS;",
        "return waited > OVERDUE_NS;",
    ),
    Mutation("a quota that is used up ends no turn if nobody waits", "turn.h", " || c->cut_short))", "))"),
    Mutation("only those to lower vCPUs count", "traffic.h", "to == t->vcpu)", "to >= t->vcpu)"),
    Mutation("who spins is not stopped", "spin_yield.h", "scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);", ";"),
    Mutation(
        "who is thrown out by vCPU 0's siblings is back at once",
        "gang_procco.h",
        ".gate = force_gate,\n",
        "\n",
    ),
    Mutation("a turn that vCPU 0 leads is over soon", "gang_procco.h", "now + slice_ns", "now + slice_ns / 4"),
    Mutation(
        "siblings that wake in the turn of pCPU 0's VM wait", "gang_cpuco.h", "leader->curr_vm == vm_id", "!vm_id"
    ),
    Mutation(
        "a spinner stops itself though KVM is about to yield for it",
        "sibling.h",
        "return class > BOOST_CLASS_USER;",
        "return false;",
    ),
    Mutation(
        "what KVM did not offer after all is forgotten",
        "sibling.h",
        "return spinner->exit_served == EXIT_SERVED && c",
        "return false && c",
    ),
    Mutation(
        "who was woken is no better",
        "sibling.h",
        "if (v->woken || ",
        "if (",
    ),
    Mutation(
        "one that was woken once has something to answer for ever", "registry.h", "v->woken = 0;", ";", "spin boost"
    ),
    Mutation(
        "who has an interrupt to answer is no better",
        "sibling.h",
        "\tif (v->woken || vcpu_irq_pending(kvm_vcpu))\n\t\treturn BOOST_CLASS_IRQ;\n",
        "",
    ),
    Mutation(
        "a storm of exits does not back off",
        "sibling.h",
        "return time_before(now, spinner->boost_after_ns);",
        "return false;",
    ),
    Mutation(
        "KVM's choice is not honoured",
        "spin_boost.h",
        "if (!(boost & BOOST_CANDIDATE))",
        "if (boost)",
        "boost candidate",
    ),
    Mutation(
        "KVM's choice runs elsewhere than where it waits",
        "spin_boost.h",
        "asked = boost_ask(cpu, t->vm, t->vcpu_at, target, now);",
        "asked = boost_ask(cpu, t->vm, f->vcpu_at, target, now);",
        "boost candidate",
    ),
    Mutation(
        "nobody is chosen at an exit", "spin_boost.h", "if (!(boost & BOOST_ANY_MODE))", "if (boost)", "boost any-mode"
    ),
    Mutation(
        "a sibling that is called gets the rest of its VM's turn",
        "spin_boost.h",
        "WISH_BRIEF | (asked == cpu",
        "(asked == cpu",
        "boost ipi",
    ),
    Mutation(
        "a call disturbs others in vain",
        "spin_boost.h",
        " || (asked != cpu && !(boost & BOOST_MIGRATE) && boost_is_in_vain(called, asked, now)))",
        ")",
        "boost ipi",
    ),
    Mutation(
        "whether a call asks in vain is found out twice",
        "spin_boost.h",
        "asked != cpu && !(boost & BOOST_MIGRATE) && boost_is_in_vain",
        "asked != cpu && boost_is_in_vain",
        "boost ipi",
    ),
    Mutation(
        "one that sleeps is boosted by a call", "spin_boost.h", " || called->state != VCPU_WAITING", "", "boost ipi"
    ),
    Mutation(
        "nobody is told of a call where interrupts are no traffic",
        "irq.h",
        "if (!irqs_are_traffic && !vector_is_call(vector))",
        "if (!irqs_are_traffic)",
    ),
    Mutation(
        "who is called runs before it has its interrupt",
        "irq.h",
        "if (calls_have_no_end || to >= CALLS_MAX)",
        "if (true)",
        "boost ipi",
    ),
    Mutation("a call is heard again", "irq.h", "v->calls = 0;", ";", "boost ipi"),
    Mutation("an interrupt is no traffic", "irq.h", "\tif (irqs_are_traffic)\n\t\ttraffic_add(t, to);\n", ""),
    Mutation(
        "every interrupt is a call",
        "kernel.h",
        "return vector == VECTOR_CALL_SINGLE || ",
        "return vector || ",
        "boost ipi",
    ),
    Mutation(
        "of those in user mode the one that has waited least is chosen",
        "sibling.h",
        "if (found == *class && !time_before(v->since_ns, best_since))",
        "if (found == *class && time_before(v->since_ns, best_since))",
        "boost any-mode",
    ),
    Mutation(
        "a dirty vCPU that is first in its queue is passed over again",
        "order_sbco.h",
        "if (v && !v->dirty)",
        "if (v)",
    ),
    Mutation(
        "who has the pCPU counts among those that are ahead of who waits",
        "order_sbco.h",
        "u32 ahead = 0;",
        "u32 ahead = 1;",
    ),
    Mutation(
        "a VMM's thread takes a vCPU's part of the VM's weight",
        "flat.h",
        "return lately_active(&f->vcpus, vcpus, now);",
        "return lately_active(&f->vcpus, active, now);",
    ),
    Mutation(
        "a VMM's threads that work all the time have a vCPU's part each, on top",
        "flat.h",
        "f->apart = 1;",
        ";",
    ),
    Mutation(
        "a VMM's threads once apart are apart for ever",
        "flat.h",
        "f->apart = 0;\n\t\treturn 0;",
        ";\n\t\treturn 0;",
    ),
    Mutation(
        "what a VMM's threads run nobody pays for",
        "order_sbco.h",
        "at_rate(delta_ns + helped_of(t, delta_ns), rate)",
        "at_rate(delta_ns + 0 * helped_of(t, delta_ns), rate)",
    ),
    Mutation(
        "loans add up without a bound",
        "order_sbco.h",
        "return (u64)already < most ? most - (u64)already : 0;",
        "return most;",
    ),
    Mutation(
        "a task that does not use its turn is not paid back",
        "order_task.h",
        "\t.end = vtime_end,\n",
        "",
    ),
    Mutation(
        "of a runner nobody knows what it has paid for",
        "order_task.h",
        "\t.rank_of_runner = vtime_rank_of_runner,\n",
        "",
    ),
    Mutation("who joins a turn gets a whole one", "gang_aligned.h", "vm->turn_end_ns - now : 0;", "slice_ns : 0;"),
    Mutation(
        "each that joins a turn makes it longer", "gang_aligned.h", "t->vcpu < 0 || in_turn(vm, now))", "t->vcpu < 0)"
    ),
    Mutation(
        "siblings are asked for where others deserve the pCPU more",
        "gang_aligned.h",
        " || !would_preempt(c, &rank, now))",
        ")",
    ),
    Mutation(
        "a wide VM without a seat is never urgent",
        "gang_strict.h",
        "s->on = strict_is_seated(vm_id);",
        "s->on = 1;",
    ),
    Mutation(
        "a VM runs in parts as another one did that had its number",
        "strict_seats.h",
        "if (s->generation == generation)",
        "if (generation)",
    ),
    Mutation(
        "who is boosted is so for ever if no tick finds it running",
        "order_credit.h",
        "if (s->m.class != CREDIT_BOOST || owes)",
        "if (s->m.class != CREDIT_BOOST)",
    ),
    Mutation(
        "who owed when it woke is UNDER when nothing has been given",
        "order_credit.h",
        "owes = within < 0 || (!within && s->m.class == CREDIT_OVER && d->owed_ns < 0);",
        "owes = within < 0;",
    ),
    Mutation("a pCPU is two vCPUs' seat", "strict_seats.h", " || c->taken || seat->next_vm)", " || c->taken)"),
    Mutation(
        "a seat is where its vCPU may not run",
        "strict_seats.h",
        "if (strict_is_free(cpu, s, how) && vcpu_allowed_on(v, cpu))",
        "if (strict_is_free(cpu, s, how))",
    ),
    Mutation(
        "VMs have their seats whatever host tasks deserve",
        "strict_seats.h",
        "return !seat->host || strict_before(",
        "return !seat->host || how || strict_before(",
    ),
    Mutation(
        "whoever sits down where a sibling sat is not told",
        "strict_seats.h",
        " || (seat->next_vm && seat->vcpu != seat->next_vcpu);",
        ";",
    ),
    Mutation(
        "who can go to few pCPUs chooses last",
        "strict_seats.h",
        "!!v->restricted != (round == STRICT_RESTRICTED)",
        "!v->restricted != (round == STRICT_RESTRICTED)",
    ),
    Mutation(
        "who is forced late in a turn stays beyond it",
        "gang_cpuco.h",
        "force_siblings(vm_id, 0, leader->turn_end_ns, now);",
        "force_siblings(vm_id, 0, now + slice_ns, now);",
    ),
    Mutation(
        "what is said of a VM's vCPUs goes for whoever has its block of the map",
        "sets.h",
        " || (value >> 16 & 0xffff) != vm_id)",
        ")",
    ),
    Mutation(
        "the second VM's vCPUs look into the first one's sets",
        "sets.h",
        "return vm ? set_place_of(vm, t->vm, t->vcpu_at) : 0;",
        "return vm ? set_place_of(vm, t->vm, t->vcpu) : 0;",
    ),
    Mutation(
        "unfair boosts lend nothing",
        "wish.h",
        "boost & BOOST_UNFAIR ? lag_ns :",
        "boost & BOOST_UNFAIR ? 0 :",
        "boost unfair",
    ),
    Mutation(
        "unfair boosts lend without limit",
        "wish.h",
        "boost & BOOST_UNFAIR ? lag_ns :",
        "boost & BOOST_UNFAIR ? 1ULL << 60 :",
        "boost unfair",
    ),
    Mutation(
        "a spinner for whose pCPU nobody waits is stopped all the same",
        "spin_yield.h",
        "\tif (!queue_is_marked(cpu))\n\t\treturn;\n",
        "",
    ),
    Mutation(
        "a grace is a whole turn",
        "guard_kernel_mode.h",
        "return guard_grace_ns < slice_ns ? guard_grace_ns : slice_ns;",
        "return slice_ns;",
    ),
    Mutation("a pCPU is kept for those that sleep long", "guard_halted.h", "v->slept_ns > guard_keep_ns || ", ""),
    Mutation("no pCPU is kept", "guard_halted.h", "\treturn guard_keep_ns;", "\treturn 0;"),
    Mutation(
        "a pCPU is kept for one whose sibling waits there",
        "keep.h",
        "\tif (siblings_on(t, scx_bpf_task_cpu(p)))\n\t\treturn;\n",
        "",
    ),
    Mutation(
        "a VM does not pay for a pCPU that is kept",
        "order_vm.h",
        "\t\t\tbreak;\n\t\tatomic_add(&e->vtime, scale_by_entity(delta_ns, e));",
        "\t\t\tbreak;",
        "guard halted",
    ),
    Mutation(
        "whoever takes a pCPU that is kept has a turn of its own",
        "keep.h",
        "return rest < slice ? rest : slice;",
        "return slice;",
    ),
    Mutation(
        "whoever deserves a pCPU that is kept waits for it",
        "wake.h",
        "\t\tc->kept_until_ns = now;",
        "\t\t;",
        "guard halted",
    ),
    Mutation(
        "a turn goes on for as long as if the pCPU had not been kept",
        "runner.h",
        "slice = cut_short(p, t, c, slice);",
        "slice = cut_short(p, t, c, p->scx.slice);",
    ),
    Mutation("nobody pays for a pCPU that is kept", "keep.h", "order_kept(t, p->scx.weight, kept_ns);", ";"),
    Mutation(
        "an offline pCPU was kept all the time",
        "keep.h",
        "time_before(now, c->kept_until_ns) ? now : c->kept_until_ns",
        "now",
    ),
    Mutation(
        "a pCPU is kept until something else happens there",
        "turn.h",
        "\t\tscx_bpf_kick_cpu(*key, SCX_KICK_IDLE);",
        "\t\t;",
        "guard halted",
    ),
    Mutation(
        "one long sleep is never forgotten", "registry.h", "slept_ns = SLEPT_MAX * guard_keep_ns;", ";", "guard halted"
    ),
    Mutation(
        "a member that sleeps has no pCPU where it is to have one",
        "set_turn.h",
        "(sleepers_hold() && c->set_held == claim)",
        "false",
        of="gang partial-held",
    ),
    Mutation(
        "who waits where a member sleeps is never asked",
        "set_turn.h",
        "if (is_overdue(t, now) || order_before(&g->other, &g->chosen, 0))",
        "if (is_overdue(t, now))",
        of="gang partial-held",
    ),
    Mutation(
        "who falls asleep in its set's turn gives its pCPU away",
        "gang_partial_held.h",
        "if (from == VCPU_RUNNING)",
        "if (from == VCPU_ASLEEP)",
    ),
    Mutation(
        "a set that sleeps keeps its pCPUs until its turn ends",
        "gang_partial_held.h",
        "if (!set || !member || !(set->tell & TELL_HELD))",
        "if (set || !member)",
    ),
]

# The same of sets/, which finds the sets of gang partial-auto; its own tests must find them.
OF_SETS = [
    Mutation("what was counted long ago counts as much as now", "finder.rs", "self.matrix.age();", ""),
    Mutation("counters count anew each time", "finder.rs", "count.saturating_sub(before)", "count.max(before)"),
    Mutation(
        "sums are compared and not means",
        "tree.rs",
        "(sum(a) * pairs(b)).cmp(&(sum(b) * pairs(a)))",
        "sum(a).cmp(&sum(b))",
    ),
    Mutation(
        "of equals the last are joined",
        "tree.rs",
        "Ordering::Less => pair,",
        "Ordering::Less | Ordering::Equal => pair,",
    ),
    Mutation("who never communicates is together", "tree.rs", "if *d == 0.0 || left.d()", "if left.d()"),
    Mutation("a part is split whatever it depends on", "tree.rs", "left.d() > t * d", "left.d() > 0.0 * d"),
    Mutation(
        "a vCPU may be in two sets",
        "given.rs",
        "if std::mem::replace(seen, true) {",
        "if std::mem::replace(seen, false) {",
    ),
    Mutation(
        "a line of its own counts less than everybody's",
        "given.rs",
        'self.vms.get(name).or_else(|| self.vms.get("*"))',
        'self.vms.get("*").or_else(|| self.vms.get(name))',
    ),
    Mutation("an entry is of any VM", "lib.rs", "u64::from(vm) << 16 |", "0 * u64::from(vm) |"),
    Mutation("one who is in a set by itself waits for it", "lib.rs", "set.len() > 1", "!set.is_empty()"),
    Mutation("a pair is known from one side", "matrix.rs", "self.events[y * self.vcpus + x] = sum;", ""),
    Mutation(
        "what was counted moves when a vCPU comes",
        "matrix.rs",
        "larger.events[x * larger.vcpus + y]",
        "larger.events[x * self.vcpus + y]",
    ),
]
