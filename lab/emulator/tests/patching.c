// SPDX-License-Identifier: GPL-2.0-only
/*
 * CPU 0 changes an instruction of five bytes that CPU 1 executes all the time, as Linux does it: INT3 over the first
 * byte, all CPUs serialize; the other bytes, all serialize; the first byte, all serialize. CPU 1 must never see a
 * mixture, no INT3 when all is done, and not the old instruction either. Also with one aligned store, which is
 * enough then, and with many in a row. First with CPU 1 as a host, then in a guest, which has the page elsewhere.
 */
#include "svm.h"

#define RUN_US 400000
#define ASK 0x50
#define ANSWER 0x51
#define ALIAS ((1ul << 40) + 3 * PAGE)

static u8 code[PAGE] PAGE_ALIGNED = { 0xb8, 1, 1, 1, 1, 0xc3 }; /* mov $0x01010101, %eax; ret */
static const u32 values[] = { 0x01010101, 0x02020202 };
static struct vm vm;
static bool in_guest, stop, stopped;
static u32 turn;
static u64 version; /* odd: in between */
static u64 asked, answered;
static u64 calls, breakpoints, late_breakpoints, mixtures, old;

static void breakpoint(struct frame *frame)
{
	breakpoints++;
	if (!(READ(version) & 1))
		late_breakpoints++;
	frame->rip += 4;
	frame->rax = values[READ(version) >> 1 & 1];
}

static void serialize(void)
{
	u64 question = READ(asked);
	u32 a = 0, b, c = 0, d;

	asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d)::"memory");
	WRITE(answered, question);
	send_ipi(0, ANSWER);
}

static void answers(struct frame *frame)
{
	(void)frame;
	eoi();
}

static void asks(struct frame *frame)
{
	(void)frame;
	serialize();
	eoi();
}

/* A guest is not interrupted: it looks, between calls. */
static void execute(u64 address)
{
	u32 (*function)(void) = (u32(*)(void))address;

	while (!READ(stop)) {
		u64 before = READ(version), after;
		u32 value = function();

		after = READ(version);
		calls++;
		if (value != values[0] && value != values[1])
			mixtures++;
		else if (before == after && !(before & 1) && value != values[before >> 1 & 1])
			old++;
		if (READ(in_guest) && READ(asked) != READ(answered))
			serialize();
	}
}

static void guest(void)
{
	for (;;) {
		execute(ALIAS);
		vmmcall(0);
	}
}

/* Four turns as a host, four as a guest. */
static void second(void)
{
	vm_init(&vm, guest);
	map(vm.table, ALIAS, code, P);
	asm volatile("sti");
	for (u32 i = 0; i < 8; i++) {
		while (READ(turn) != i)
			pause();
		if (i < 4)
			execute((u64)code);
		else
			vm_ask(&vm, 0);
		WRITE(stopped, true);
	}
}

/* CPU 0 sleeps meanwhile: on a busy machine CPU 1 would not run else. */
static void all_serialize(void)
{
	asked++;
	if (!in_guest)
		send_ipi(1, ASK);
	asm volatile("cli");
	while (READ(answered) != asked)
		asm volatile("sti; hlt; cli" ::: "memory");
	asm volatile("sti");
}

static void by_steps(u32 value)
{
	WRITE(code[0], 0xcc);
	all_serialize();
	WRITE(*(u32 *)(code + 1), value);
	all_serialize();
	WRITE(code[0], 0xb8);
	all_serialize();
}

static void at_once(u32 value)
{
	WRITE(*(u64 *)code, 0xc300000000b8 | (u64)value << 8);
	all_serialize();
}

/* While CPU 1 translates what the first store left, the others come. */
static void in_a_burst(u32 value)
{
	for (u32 i = 2 + version / 2 % 23; i; i--)
		WRITE(*(u32 *)(code + 1), i & 1 ? value : value ^ values[0] ^ values[1]);
	all_serialize();
}

/* The same with stores that leave no translation of the page behind: an emulator stops watching it then. */
static void in_a_whole_burst(u32 value)
{
	for (u32 i = 2 + version / 2 % 23; i; i--)
		WRITE(*(u64 *)code, 0xc300000000b8 | (u64)(i & 1 ? value : value ^ values[0] ^ values[1]) << 8);
	all_serialize();
}

static void changes(const char *name, void (*change)(u32 value))
{
	u64 from = now_us(), before = version;

	while (now_us() < from + RUN_US && !READ(mixtures) && !READ(late_breakpoints) && !READ(old)) {
		WRITE(version, version + 1);
		change(values[(version >> 1 & 1) ^ 1]);
		WRITE(version, version + 1);
		/* Sometimes at once, sometimes when CPU 1 is well under way. */
		for (u64 until = rdtsc() + (version * 977 & 8191); rdtsc() < until;)
			;
	}
	check(name, !mixtures && !late_breakpoints && !old, "%lu mixtures, %lu INT3s too late, %lu old instructions",
	      mixtures, late_breakpoints, old);
	say("info %s: %lu changes, %lu calls, %lu INT3s", name, (version - before) / 2, calls, breakpoints);
	WRITE(stop, true);
	while (!READ(stopped))
		pause();
	stopped = false;
	calls = breakpoints = mixtures = late_breakpoints = old = 0;
	WRITE(stop, false);
	WRITE(turn, turn + 1);
}

void run(void)
{
	on(BP, breakpoint);
	on(ASK, asks);
	on(ANSWER, answers);
	start_second(second);
	changes("code that a host executes, changed by steps", by_steps);
	changes("code that a host executes, changed at once", at_once);
	changes("code that a host executes, changed in bursts", in_a_burst);
	changes("code that a host executes, changed whole in bursts", in_a_whole_burst);
	in_guest = true;
	changes("code that a guest executes, changed by steps", by_steps);
	changes("code that a guest executes, changed at once", at_once);
	changes("code that a guest executes, changed in bursts", in_a_burst);
	changes("code that a guest executes, changed whole in bursts", in_a_whole_burst);
}
