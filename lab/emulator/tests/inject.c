// SPDX-License-Identifier: GPL-2.0-only
/*
 * Events that the host injects at VMRUN: delivered once, with what belongs to them; and what an exit says of one
 * that was not.
 */
#include "svm.h"

#define VECTOR 0x60
#define SOFT_VECTOR 0x61
#define HOST_VECTOR 0x50
#define WAKE 0x51
#define GPA (1ul << 39) /* a stack for which nested paging has no memory, at first */
#define STACK (1ul << 40)

/* Guests that use no stack of their own. */
void waits(void), raises_ud(void), raises_soft(void), raises_bp(void);
asm("waits: vmmcall; jmp waits\n"
    "raises_ud: ud2; jmp waits\n"
    "raises_soft: int $0x61; jmp waits\n"
    "raises_bp: int3; jmp waits\n");

static struct vm vm;
static u64 counts[256], host_count, other_side;
static u64 leftovers, not_once; /* of interrupted deliveries */
static u32 left;		/* what exit_int_info said after the last one that was delivered */
static struct frame last;
static u64 last_cr2;
static u64 woken, entered, sent; /* rounds */
static enum { INTERRUPT, SPLIT_LOCK } fire;

static void delivered(struct frame *frame)
{
	counts[frame->vector]++;
	last = *frame;
	asm volatile("movq %%cr2, %0" : "=r"(last_cr2));
	if (!vm_on_stack(&vm, frame) && ((u64)frame & ~0xffful) != STACK)
		other_side++;
	if (frame->vector == UD && *(u16 *)frame->rip == 0x0b0f)
		frame->rip += 2;
}

static void wakes(struct frame *frame)
{
	(void)frame;
	eoi();
}

static void host_delivered(struct frame *frame)
{
	(void)frame;
	host_count++;
	eoi();
}

/* Inject, run until VMMCALL. */
static void inject(u32 event, u32 error)
{
	vm.vmcb->event_inj = event | EVENT_VALID;
	vm.vmcb->event_inj_error = error;
	last = (struct frame){};
	vm_ask(&vm, 0);
	left = vm.vmcb->exit_int_info;
}

static void one(const char *name, u32 event, u32 error)
{
	u64 vector = event & 0xff, before = counts[vector], at = vm.vmcb->rip, at_first;

	inject(event, error);
	at_first = counts[vector] - before;
	vm_ask(&vm, 0);
	check(name,
	      at_first == 1 && counts[vector] == before + 1 && last.error == error && last.rip == at && !other_side,
	      "came %lu times, then %lu, error %lx, at %lx instead of %lx", at_first,
	      counts[vector] - before - at_first, last.error, last.rip, at);
}

static void plain(void)
{
	vm_goto(&vm, waits);
	vm_ask(&vm, 0);
	one("an interrupt, with IF=0", EVENT_INTR | VECTOR, 0);
	check("exit_int_info is 0 after it", !left, "%x", left);
	check("its handler has IF=0, its guest's flags are back", !(last.flags & IF) && !(vm.vmcb->flags & IF),
	      "flags %lx", last.flags);
	vm.vmcb->flags |= IF;
	one("an interrupt, with IF=1", EVENT_INTR | VECTOR, 0);
	check("the guest's IF is back", last.flags & IF && vm.vmcb->flags & IF, "flags %lx", last.flags);
	one("an NMI", EVENT_NMI | NMI, 0);
	one("another NMI", EVENT_NMI | NMI, 0);
	one("#GP with an error code", EVENT_EXCEPTION | EVENT_HAS_ERROR | GP, 0x1234);
	one("#UD without one", EVENT_EXCEPTION | UD, 0);
	vm.vmcb->cr2 = 0x12345678;
	one("#PF with an address", EVENT_EXCEPTION | EVENT_HAS_ERROR | PF, 6);
	check("exit_int_info is 0 after an exception", !left, "%x", left);
	check("its address is in the guest's CR2", last_cr2 == 0x12345678, "%lx", last_cr2);
}

/* What an instruction raises continues after that. */
static void soft(const char *name, void (*code)(void), u32 event, u32 length)
{
	u64 vector = event & 0xff, before = counts[vector];

	if (!svm_has(HAS_NRIPS)) {
		skip(name, "no NRIPS");
		return;
	}
	vm_goto(&vm, code);
	vm.vmcb->next_rip = vm.vmcb->rip + length;
	inject(event, 0);
	check(name, counts[vector] == before + 1 && last.rip == (u64)code + length, "came %lu times, at %lx for %lx",
	      counts[vector] - before, last.rip, (u64)code);
}

/* An exit in the middle of a delivery says so; injected again, the event comes once. */
static void interrupted(const char *name, void (*code)(void), u32 inject_event, u32 wanted, u32 error)
{
	u64 vector = wanted & 0xff, before = counts[vector];
	u32 info, wanted_error = wanted & EVENT_HAS_ERROR ? error : 0;

	vm_goto(&vm, code);
	vm.vmcb->rsp = STACK + PAGE - 8;
	*entry(vm.table, STACK, 1) = GPA | P | W;
	map(vm.nested, GPA, 0, 0);
	vm.vmcb->tlb_ctl = FLUSH_ALL;
	if (inject_event) {
		vm.vmcb->event_inj = inject_event | EVENT_VALID;
		vm.vmcb->event_inj_error = error;
	}
	while (vm_run(&vm) == EXIT_INTR)
		;
	vm.vmcb->tlb_ctl = FLUSH_NOTHING;
	info = vm.vmcb->exit_int_info;
	check(name,
	      vm.vmcb->exit_code == EXIT_NPF && info == (wanted | EVENT_VALID) && counts[vector] == before &&
		      (!wanted_error || vm.vmcb->exit_int_error == wanted_error) && vm.vmcb->rip == (u64)code,
	      "exit %lx, in delivery %x, error %x, came %lu times, at %lx for %lx", vm.vmcb->exit_code, info,
	      vm.vmcb->exit_int_error, counts[vector] - before, vm.vmcb->rip, (u64)code);
	if (vm.vmcb->exit_code != EXIT_NPF)
		return;
	map(vm.nested, GPA, page(), P | W | U);
	/* What an instruction raises is raised again by the instruction. */
	if (inject_event) {
		vm.vmcb->event_inj = info;
		vm.vmcb->event_inj_error = vm.vmcb->exit_int_error;
	}
	vm_ask(&vm, 0);
	leftovers += vm.vmcb->exit_int_info != 0;
	not_once += counts[vector] != before + 1;
}

/* A guest that runs until CPU 1 has done its part, in each round. */
static void runs(void)
{
	for (;;) {
		u64 round = vmmcall(0);

		WRITE(entered, round);
		while (READ(sent) != round)
			;
	}
}

/*
 * CPU 1 sleeps between the rounds, since the machine may be busy. An emulator stops all other CPUs for a split lock:
 * a kick without an interrupt.
 */
static void send(void)
{
	static u8 two_pages[2 * PAGE] PAGE_ALIGNED;

	for (u64 round = 1;; round++) {
		asm volatile("cli");
		while (READ(woken) != round)
			asm volatile("sti; hlt; cli" ::: "memory");
		while (READ(entered) != round)
			pause();
		if (READ(fire) == INTERRUPT)
			send_ipi(0, HOST_VECTOR);
		else
			asm volatile("lock incl %0" : "+m"(*(u32 *)(two_pages + PAGE - 2)));
		for (u64 until = rdtsc() + 10000; rdtsc() < until;)
			;
		WRITE(sent, round);
	}
}

/* An interrupt is injected, and then CPU 1 does something while the guest runs. */
static void under_fire(const char *name, u32 with, bool uninterrupted)
{
	static u64 round;
	u32 i, rounds = with == INTERRUPT ? 100 : 4;
	u64 wanted_by_host = with == INTERRUPT ? rounds : 0;
	u64 before = counts[VECTOR], host_before, exits = 0, again = 0;

	vm_goto(&vm, runs);
	vm_ask(&vm, 0);
	vm.uninterrupted = uninterrupted;
	WRITE(fire, with);
	host_before = READ(host_count);
	for (i = 0; i < rounds && counts[VECTOR] == before + i; i++) {
		vm.vmcb->rax = ++round;
		WRITE(woken, round);
		send_ipi(1, WAKE);
		vm.vmcb->event_inj = EVENT_VALID | EVENT_INTR | VECTOR;
		while (vm_run(&vm) == EXIT_INTR) {
			exits++;
			if (vm.vmcb->exit_int_info & EVENT_VALID) {
				again++;
				vm.vmcb->event_inj = vm.vmcb->exit_int_info;
			}
		}
		if (vm.vmcb->exit_code != EXIT_VMMCALL)
			vm_die(&vm, "VMMCALL");
		vm.vmcb->rip += 3;
	}
	vm.uninterrupted = false;
	check(name,
	      i == rounds && counts[VECTOR] == before + rounds && READ(host_count) == host_before + wanted_by_host &&
		      exits <= rounds && !(uninterrupted && exits),
	      "of %u, %lu came to the guest and %lu to the host, with %lu exits", i, counts[VECTOR] - before,
	      READ(host_count) - host_before, exits);
	say("info %s: %lu exits, %lu injected again", name, exits, again);
}

void run(void)
{
	static const u8 vectors_used[] = { VECTOR, SOFT_VECTOR, NMI, GP, UD, PF, BP };

	for (u32 i = 0; i < sizeof(vectors_used); i++)
		on(vectors_used[i], delivered);
	on(HOST_VECTOR, host_delivered);
	on(WAKE, wakes);
	vm_init(&vm, waits);
	plain();
	soft("INT n", raises_soft, EVENT_SOFT | SOFT_VECTOR, 2);
	soft("INT3", raises_bp, EVENT_EXCEPTION | BP, 1);
	interrupted("a page fault below an interrupt", waits, EVENT_INTR | VECTOR, EVENT_INTR | VECTOR, 0);
	interrupted("a page fault below an NMI", waits, EVENT_NMI | NMI, EVENT_NMI | NMI, 0);
	interrupted("a page fault below #GP", waits, EVENT_EXCEPTION | EVENT_HAS_ERROR | GP,
		    EVENT_EXCEPTION | EVENT_HAS_ERROR | GP, 0x1234);
	interrupted("a page fault below the guest's #UD", raises_ud, 0, EVENT_EXCEPTION | UD, 0);
	interrupted("a page fault below the guest's INT n", raises_soft, 0, EVENT_SOFT | SOFT_VECTOR, 0);
	interrupted("a page fault below the guest's INT3", raises_bp, 0, EVENT_EXCEPTION | BP, 0);
	check("exit_int_info is 0 after what was interrupted", !leftovers, "not after %lu of 6", leftovers);
	check("what was interrupted is delivered once", !not_once, "%lu of 6 were not", not_once);
	start_second(send);
	asm volatile("sti");
	under_fire("delivered once, with the host's interrupts", INTERRUPT, false);
	under_fire("delivered once, while the host's interrupts wait", INTERRUPT, true);
	under_fire("delivered once, with a split lock on the other CPU", SPLIT_LOCK, false);
}
