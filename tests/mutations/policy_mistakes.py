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
    Mutation("a quota that is used up ends no turn if nobody waits", "turn.h", " || c->cut_short))", "))"),
    Mutation(
        "a light task's turn costs it no more than others'", "order_vm.h", "costs = r->own_turn;", "costs = slice_ns;"
    ),
    Mutation(
        "who is left behind by siblings goes first only within a turn of the heaviest",
        "order_vm.h",
        "if (*turn < costs)",
        "if (!*turn || *turn > costs)",
    ),
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
]
