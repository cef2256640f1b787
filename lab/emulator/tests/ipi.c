// SPDX-License-Identifier: GPL-2.0-only
/*
 * CPU 0 enters a guest over and over, each time with a virtual interrupt, while CPU 1 sends it interrupts and NMIs,
 * the next when the last has come. None is lost, neither theirs nor the guest's.
 */
#include "svm.h"

#define RUN_US 1000000
#define LOST_US 1000000
#define VECTOR 0x60
#define HOST_VECTOR 0x50

void takes(void), leaves(void);
asm("takes: nop; vmmcall; jmp takes\n"
    "leaves: vmmcall; jmp leaves\n");

static struct vm vm;
static u64 virtual_came;
static u64 sent_interrupts, sent_nmis, entries;
static bool stop;

static void virtual(struct frame *frame)
{
	(void)frame;
	virtual_came++;
}

/* Return whether CPU 0 has got all; it had time and entries enough. */
static bool wait_for(u64 *counter, u64 value)
{
	u64 from = now_us(), before = READ(entries);

	while (READ(*counter) < value)
		if (READ(stop) || (now_us() > from + LOST_US && READ(entries) > before + 1000))
			return false;
	return true;
}

static void send(void)
{
	for (u64 i = 0; !READ(stop); i++) {
		if (i & 1)
			send_ipi(0, HOST_VECTOR);
		else
			send_ipi(0, IPI_NMI);
		WRITE(*(i & 1 ? &sent_interrupts : &sent_nmis), i / 2 + 1);
		if (!wait_for(i & 1 ? &interrupts : &nmis, i / 2 + 1))
			break;
		for (u64 until = rdtsc() + (i * 997 & 8191); rdtsc() < until;)
			;
	}
	WRITE(stop, true);
}

void run(void)
{
	u64 from, taken = 0;

	on(VECTOR, virtual);
	on(HOST_VECTOR, count_interrupt);
	on(NMI, count_nmi);
	vm_init(&vm, leaves);
	start_second(send);
	asm volatile("sti");
	for (from = now_us(); !READ(stop) && now_us() < from + RUN_US; entries++) {
		/* Most leave it pending, which takes the least time. */
		vm_goto(&vm, entries & 7 ? leaves : takes);
		vm.vmcb->int_ctl = V_INTR_MASKING | V_IRQ | V_PRIORITY(15);
		vm.vmcb->int_vector = VECTOR;
		if (!(entries & 7)) {
			vm.vmcb->flags |= IF;
			taken++;
		}
		while (vm_run(&vm) != EXIT_VMMCALL)
			if (vm.vmcb->exit_code != EXIT_INTR && vm.vmcb->exit_code != EXIT_NMI)
				vm_die(&vm, "VMMCALL");
	}
	if (!READ(stop)) {
		/* The last may be on its way. */
		wait_for(&nmis, READ(sent_nmis));
		wait_for(&interrupts, READ(sent_interrupts));
	}
	check("no interrupt is lost", interrupts >= sent_interrupts, "%lu of %lu came", interrupts, sent_interrupts);
	check("no NMI is lost", nmis >= sent_nmis, "%lu of %lu came", nmis, sent_nmis);
	check("no virtual interrupt is lost", virtual_came == taken, "%lu of %lu came", virtual_came, taken);
	say("info %lu entries, %lu interrupts, %lu NMIs, %lu virtual ones", entries, interrupts, nmis, virtual_came);
	WRITE(stop, true);
}
