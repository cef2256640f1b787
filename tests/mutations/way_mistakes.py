# SPDX-License-Identifier: GPL-2.0-only
"""Mistakes in who makes way for whom, where not everybody may run everywhere (`make_way.h`)."""

from tests.mutations.mutation import Mutation

OF_WAYS = [
    Mutation(
        "who may go elsewhere makes no room for who may not",
        "make_way.h",
        "if (is_idle(other) && !wish_is_fresh(c, now) && !c->kept_pid)\n\t\t\treturn other;",
        ";",
    ),
    Mutation(
        "who makes room goes to an idle pCPU that is spoken for",
        "make_way.h",
        "is_idle(other) && !wish_is_fresh(c, now)",
        "is_idle(other)",
    ),
    Mutation(
        "nor for who is before others by a turn", "make_way.h", "!order_before(rank, &runner, slice_ns))", "rank)"
    ),
    Mutation(
        "nobody who runs is asked for by an idle pCPU",
        "make_way.h",
        "if (may)\n\t\t\tscx_bpf_kick_cpu(other, SCX_KICK_PREEMPT);",
        ";",
    ),
    Mutation(
        "who makes room looks near its pCPU only", "make_way.h", "to = scx_bpf_pick_idle_cpu(prev->cpus_ptr, 0);", ";"
    ),
    Mutation(
        "who waits where a real-time task is has to deserve another pCPU much more",
        "runqueue.h",
        "other->taken ? 0 : ",
        "",
    ),
    Mutation("a new cgroup ends turns", "gate_quota.h", "if (!has && !had)\n\t\treturn;", ";"),
    Mutation("who was put aside has waited for others", "aside.h", "t->unserved_ns = now;", ";"),
    Mutation(
        "whoever makes room does so for one who could go there himself",
        "make_way.h",
        "\t\tif (waiter && task_allowed_on(waiter, other))\n\t\t\tcontinue;\n",
        "",
    ),
    Mutation(
        "nobody is said to wait for room",
        "make_way.h",
        "room_for(prev, t, best, waiter)",
        "room_for(prev, t, best, NULL)",
    ),
    Mutation(
        "who makes room loses its turn to those who wait there",
        "make_way.h",
        "if (to >= 0 && !is_idle(to) && !would_be_first(t, to, best->now))",
        "if (false)",
    ),
    Mutation("no third is asked", "make_way.h", "to = way_of(other, best, prev->pid);", "to = -1;"),
    Mutation("a third who is asked stays", "make_way.h", "t->placed = to + 1;\n\treturn true;", "return false;"),
    Mutation(
        "only who idles is worth asking a third for",
        "make_way.h",
        "return rank_of_runner(c, now, &runner) && order_before(rank, &runner, margin_ns);",
        "return rank_of_runner(c, now, &runner) && order_before(rank, &runner, margin_ns) && !rank;",
    ),
    Mutation(
        "nobody is sent on",
        "make_way.h",
        "!steps_back && is_sent_on(prev, t, best)",
        "!steps_back && is_sent_on(prev, t, best) && !t",
    ),
    Mutation("who is sent is not looked for", "make_way.h", "if (!c->takes_from)", "if (c)"),
    Mutation(
        "whoever sends somebody on has a turn for that",
        "cohort.bpf.c",
        "if (fate == GOES_ON_FOR_NOW && slice > STARVED_SLICE_NS)",
        "if (false)",
    ),
    Mutation(
        "who was put aside where a real-time task is now stays there",
        "aside.h",
        "recall_aside(i, scan, false, now);",
        "break;",
    ),
    Mutation(
        "nobody is asked to look where a real-time task is",
        "aside.h",
        "if (at != cpu && c && c->online && !c->taken) {",
        "if (at != cpu && c && !c->online) {",
    ),
    Mutation(
        "who waits counts as woken when something about it is set",
        "runner.h",
        "t->comes_back = comes_back && t->cpu >= 0;",
        "t->comes_back = false;",
    ),
    Mutation(
        "what others ran long ago delays sleepers for ever",
        "order_vm.h",
        "if (everywhere && e && time_before(most, e->free_clock))",
        "if (!e)",
        of="order vm",
    ),
    Mutation(
        "those put aside are looked at for every choice",
        "aside.h",
        "if (here && !READ_ONCE(c->aside_look) && !c->aside_rest &&",
        "if (!c &&",
    ),
    Mutation("nobody hears that a gate has opened", "aside.h", "\t\t\tc->aside_look = 1;\n", ""),
    Mutation("who yields and comes first goes on", "cohort.bpf.c", "\t\t\tt->steps_back = true;\n", "\t\t\t;\n"),
    Mutation("those found overdue are forgotten", "runqueue.h", "\t\tc->has_overdue = 1;\n", ""),
    Mutation(
        "a queue is crowded for no choice",
        "cohort.bpf.c",
        "c->crowded = best->waiting > QUEUE_SCAN;",
        "c->crowded = 0;",
    ),
    Mutation(
        "a busy pCPU looks at others' queues for every choice",
        "runqueue.h",
        "\t\tc->looked_around_ns = best->now;\n",
        "",
    ),
    Mutation(
        "a busy pCPU never looks at others' queues",
        "runqueue.h",
        "elapsed_ns(best->now, c->looked_around_ns) < slice_ns / PULL_LOOKS)",
        "c)",
    ),
    Mutation(
        "what a cgroup's children owe theirs comes before what it owes them",
        "vm_rank.h",
        "u64 by = OWED_FIRST * slice_ns,",
        "u64 by = ~0ULL >> 2,",
    ),
    Mutation(
        "who is on the way to a runner's place is taken elsewhere",
        "runqueue.h",
        "if (promised && p->pid == promised)",
        "if (promised && !p->pid)",
    ),
    Mutation(
        "siblings that share a pCPU change places as rarely as others",
        "shared_pcpu.h",
        "? margin_ns / SIBLING_PARTS : margin_ns;",
        "? margin_ns : margin_ns;",
    ),
    Mutation(
        "one whose sibling waits in vain has whole turns",
        "shared_pcpu.h",
        "e->nr_active > e->nr_running ?",
        "!e->weight ?",
    ),
    Mutation(
        "one that is sent for another's sake has to come before the runner by the usual margin",
        "placement.h",
        "return order_before(r, &runner, 0);",
        "return order_before(r, &runner, wakeup_gran_ns);",
    ),
    Mutation(
        "who has all it wants is as far as others elsewhere, whoever waits for its pinned threads",
        "order_vm.h",
        "if (e->bound_ns && elapsed_ns(now, e->bound_ns) <= REST_NS)",
        "if (!e)",
        of="order vm",
    ),
    Mutation(
        "what a cgroup with cpu.idle is behind is as long as what any other is",
        "vm_rank.h",
        "entity_weight(e)) : 0;",
        "e->weight) : 0;",
    ),
    Mutation(
        "who has waited for too long though it is ahead has as long a moment as who is not",
        "runqueue.h",
        "u64 slice = slice_ns / OVERDUE_PARTS;",
        "u64 slice = STARVED_SLICE_NS;",
    ),
    Mutation(
        "whoever has waited for too long has a moment alone",
        "cohort.bpf.c",
        "if (best->urgency == URGENCY_OVERDUE)",
        "if (best->urgency)",
    ),
]
