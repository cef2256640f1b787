// SPDX-License-Identifier: GPL-2.0-only
/*
 * PAUSE exits at each one, or with a filter after as many as the VMCB says; every entry starts to count anew, and so
 * does one that comes later after the last than a threshold.
 */
#include "svm.h"

void pauses(void);
asm("pauses:\n"
    "1: incq %rcx\n"
    "pause_at: pause\n"
    "jmp 1b\n");
extern const u8 pause_at[];

/* So many (RSI), each this long (RDI, in cycles of the TSC) after the one before. */
void pauses_apart(void);
asm("pauses_apart:\n"
    "1: rdtsc\n"
    "shlq $32, %rdx\n"
    "orq %rdx, %rax\n"
    "leaq (%rax, %rdi), %r8\n"
    "2: rdtsc\n"
    "shlq $32, %rdx\n"
    "orq %rdx, %rax\n"
    "cmpq %r8, %rax\n"
    "jb 2b\n"
    "incq %rcx\n"
    "pause\n"
    "cmpq %rsi, %rcx\n"
    "jb 1b\n"
    "vmmcall\n");

#define APART_MAX 100

static struct vm vm;

/* Return how many PAUSEs it takes; with a count in the VMCB. */
static u64 pauses_until_exit(u32 count)
{
	vm.regs.rcx = 0;
	vm.vmcb->pause_count = count;
	while (vm_run(&vm) == EXIT_INTR)
		;
	if (vm.vmcb->exit_code != EXIT_PAUSE || vm.vmcb->rip != (u64)pause_at)
		vm_die(&vm, "PAUSE");
	vm.vmcb->rip += 2;
	return vm.regs.rcx;
}

/* Return how many such PAUSEs it takes; 0: APART_MAX were not enough. */
static u64 pauses_apart_until_exit(u32 count, u32 threshold, u64 gap)
{
	vm_goto(&vm, pauses_apart);
	vm.regs.rcx = 0;
	vm.regs.rsi = APART_MAX;
	vm.regs.rdi = gap;
	vm.vmcb->pause_count = count;
	vm.vmcb->pause_threshold = threshold;
	while (vm_run(&vm) == EXIT_INTR)
		;
	vm.vmcb->pause_threshold = 0;
	if (vm.vmcb->exit_code == EXIT_PAUSE)
		return vm.regs.rcx;
	if (vm.vmcb->exit_code != EXIT_VMMCALL)
		vm_die(&vm, "PAUSE or VMMCALL");
	return 0;
}

/* The emulator takes the threshold for 16 times as many cycles: KVM sets 128, for real instructions. */
static void threshold(void)
{
	u64 apart = pauses_apart_until_exit(10, 0, 1000000), late = pauses_apart_until_exit(10, 4000, 1000000);
	u64 soon = pauses_apart_until_exit(10, 4000, 0), between = pauses_apart_until_exit(10, 4000, 16000);

	say("info exits after %lu apart, %lu late, %lu soon, %lu between", apart, late, soon, between);
	check("without a threshold it counts those that are far apart", apart == 10 || apart == 11, "%lu", apart);
	check("one that is late starts to count anew", late == 0, "%lu", late);
	/* Where the emulator is stopped for a moment one is late that was not meant to be. */
	check("those that are not late are counted", soon >= 10, "%lu", soon);
	check("later than 16 times the threshold is late", between >= 10, "%lu", between);
}

void run(void)
{
	static const u16 counts[] = { 1, 2, 300, 65535 };
	u64 first, second;
	bool far = true, anew = true, stays = true;

	vm_init(&vm, pauses);
	vm.vmcb->intercept |= INTERCEPT(I_PAUSE);
	check("without a count each PAUSE exits", pauses_until_exit(0) == 1 && pauses_until_exit(0) == 1, "not so");
	if (!svm_has(HAS_PAUSE_FILTER)) {
		check("a count is ignored where there is no filter", pauses_until_exit(1000) == 1, "not so");
		skip("the filter", "no PauseFilter");
		return;
	}
	for (u32 i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
		first = pauses_until_exit(counts[i]);
		second = pauses_until_exit(counts[i]);
		/* Manuals leave open whether the one is filtered with which the counter gets to 0. */
		far = far && (first == counts[i] || first == counts[i] + 1u);
		anew = anew && first == second;
		stays = stays && vm.vmcb->pause_count == counts[i];
		say("info a count of %u: %lu PAUSEs, then %lu", counts[i], first, second);
	}
	check("the filter counts as far as it says", far, "not so");
	check("every entry starts anew", anew, "not so");
	check("the VMCB's count stays", stays, "not so");
	if (svm_has(HAS_PAUSE_THRESHOLD))
		threshold();
	else
		skip("the threshold", "no PauseFilterThreshold");
}
