// SPDX-License-Identifier: GPL-2.0-only
/*
 * A CPU's state is its own: CPU 0 enters a guest and leaves it, over and over, while CPU 1 does nothing but load its
 * x87 state, as KVM does at every entry. CPU 0's GIF, nested paging, NMI mask and interrupt flag must be what CPU 0
 * made of them.
 */
#include "svm.h"

#define RUN_US 1500000
#define VECTOR 0x50
#define NMIS_A_ROUND 20

static struct vm vm;
static u64 *seen; /* a page that nested paging has elsewhere */
static bool stop;

static void guest(void)
{
	for (;;)
		vmmcall(READ(*seen));
}

static void load_x87(void)
{
	static u8 environment[32];

	asm volatile("fninit; fnstenv %0" : "=m"(environment));
	while (!READ(stop))
		asm volatile("fldenv %0" ::"m"(environment));
}

static bool reaches(u64 *counter, u64 value)
{
	u64 start = now_us();

	while (READ(*counter) != value)
		if (now_us() > start + 200000)
			return false;
	return true;
}

enum { IN_GUEST, IN_HOST, IF_OFF, GIF_OFF, GIF_ON, NMI_GIF_OFF, NMI_GIF_ON, NOTHING };
static const char *const names[] = {
	[IN_GUEST] = "nested paging in the guest", [IN_HOST] = "no nested paging in the host",
	[IF_OFF] = "no interrupt with IF=0",	   [GIF_OFF] = "no interrupt with GIF=0",
	[GIF_ON] = "interrupts with GIF=1",	   [NMI_GIF_OFF] = "no NMI with GIF=0",
	[NMI_GIF_ON] = "NMIs with GIF=1",
};

/* Return what is wrong. */
static u32 round(void)
{
	u64 before = READ(interrupts), nmis_before = READ(nmis);

	if (vm_ask(&vm, 0) != 2)
		return IN_GUEST;
	asm volatile("invlpg %0" ::"m"(*seen));
	if (READ(*seen) != 1)
		return IN_HOST;
	asm volatile("cli");
	send_ipi(0, VECTOR);
	asm volatile("nop; nop; nop");
	if (READ(interrupts) != before)
		return IF_OFF;
	asm volatile("clgi; sti; nop; nop");
	if (READ(interrupts) != before)
		return GIF_OFF;
	asm volatile("stgi");
	if (!reaches(&interrupts, before + 1))
		return GIF_ON;
	/* What changes the state most often in a given time. */
	for (u64 i = 0; i < NMIS_A_ROUND; i++) {
		asm volatile("clgi");
		send_ipi(0, IPI_NMI);
		if (READ(nmis) != nmis_before + i)
			return NMI_GIF_OFF;
		asm volatile("stgi");
		if (!reaches(&nmis, nmis_before + i + 1))
			return NMI_GIF_ON;
	}
	return NOTHING;
}

void run(void)
{
	u32 wrong = NOTHING;
	u64 start, rounds = 0, *elsewhere = page();

	seen = page();
	*seen = 1;
	*elsewhere = 2;
	vm_init(&vm, guest);
	/* The first GiB in pages of 2 MiB, but for the one with that page. */
	*entry(vm.nested, 0, 3) = 0;
	for (u64 at = 0; at < 1ul << 30; at += 1ul << 21)
		*entry(vm.nested, at, 2) = at | P | W | U | LARGE;
	*entry(vm.nested, (u64)seen, 2) = 0;
	for (u64 at = (u64)seen >> 21 << 21, i = 0; i < 512; i++, at += PAGE)
		map(vm.nested, at, (void *)at, P | W | U);
	map(vm.nested, (u64)seen, elsewhere, P | W | U);

	on(VECTOR, count_interrupt);
	on(NMI, count_nmi);
	start_second(load_x87);
	for (start = now_us(); wrong == NOTHING && now_us() < start + RUN_US; rounds++)
		wrong = round();
	WRITE(stop, true);
	/* What goes wrong first says nothing about the others. */
	for (u32 i = 0; i < NOTHING; i++)
		if (wrong == NOTHING || wrong == i)
			check(names[i], wrong != i, "in round %lu", rounds);
	say("info rounds: %lu", rounds);
}
