// SPDX-License-Identifier: GPL-2.0-only
/*
 * Code that is written in one address space and executed in another, on one CPU: the host's and two guests'. And
 * memory that appears and disappears by a chip's register, which no TLB knows of.
 */
#include "svm.h"

#define ALIAS (1ul << 40)
#define STEPS 4000
#define HOLE 0xd0000ul		 /* RAM of the firmware's, or nothing: as the chipset's register says */
#define CHIP_REGISTER 0x80000090 /* PAM0 to PAM3 */

enum { WRITE_CODE = 1, CALL_CODE, READ_HOLE };

static struct vm vms[2];
static u8 code[PAGE] PAGE_ALIGNED = { 0xb8, 0, 0, 0, 0, 0xc3 }; /* mov $0, %eax; ret */

/* Of an operation, and an operand above it. */
static u64 does(u64 question, u64 at)
{
	switch (question & 0xff) {
	case WRITE_CODE:
		*(volatile u32 *)(at + 1) = question >> 8;
		return 0;
	case CALL_CODE:
		return ((u64(*)(void))at)() & 0xffffffff;
	case READ_HOLE:
		return *(volatile u32 *)HOLE;
	}
	return 0;
}

static void guest(void)
{
	u64 answer = 0;

	for (;;)
		answer = does(vmmcall(answer), ALIAS);
}

/* Nobody is a guest that is 2. */
static u64 ask(u32 who, u64 question)
{
	return who == 2 ? does(question, (u64)code) : vm_ask(&vms[who], question);
}

static void writes(void)
{
	u64 random = 7, wrong = 0;

	for (u32 i = 1; i <= STEPS; i++) {
		u32 writer, first, second;

		random = random * 6364136223846793005 + 1442695040888963407;
		writer = (random >> 33) % 3;
		first = (random >> 43) % 3;
		second = (random >> 53) % 3;
		ask(writer, WRITE_CODE | (u64)i << 8);
		wrong += ask(first, CALL_CODE) != i;
		wrong += ask(second, CALL_CODE) != i;
	}
	check("code written in another address space is executed", !wrong, "%lu of %u calls were of old code", wrong,
	      2 * STEPS);
}

static void hole(bool is_ram)
{
	u32 value;

	asm volatile("outl %0, %1" ::"a"(CHIP_REGISTER), "Nd"((u16)0xcf8));
	value = in32(0xcfc);
	/* Each half of PAM2 is of 16 KiB: C8000 and CC000; PAM3: D0000 and D4000. Bit 0 reads, bit 1 writes. */
	value = (value & 0xccffffff) | (is_ram ? 0x33000000 : 0);
	asm volatile("outl %0, %1" ::"a"(value), "Nd"((u16)0xcfc));
}

static void holes(void)
{
	u64 wrong = 0;

	hole(true);
	*(volatile u32 *)HOLE = 0x12345678;
	if (*(volatile u32 *)HOLE != 0x12345678) {
		skip("memory that disappears is gone everywhere", "the chip has no such register");
		return;
	}
	for (u32 i = 0; i < 60; i++) {
		hole(i & 1);
		for (u32 who = 0; who < 3; who++)
			wrong += (ask((who + i) % 3, READ_HOLE) == 0x12345678) != (i & 1);
	}
	check("memory that disappears is gone everywhere", !wrong, "%lu of 180 looks saw what was before", wrong);
}

void run(void)
{
	for (u32 i = 0; i < 2; i++) {
		vm_init(&vms[i], guest);
		map(vms[i].table, ALIAS, code, P | W);
		vm_ask(&vms[i], 0);
	}
	writes();
	holes();
}
