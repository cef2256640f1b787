// SPDX-License-Identifier: GPL-2.0-only
/* PAUSE exits at each one, or with a filter after as many as the VMCB says; every entry starts to count anew. */
#include "svm.h"

void pauses(void);
asm("pauses:\n"
    "1: incq %rcx\n"
    "pause_at: pause\n"
    "jmp 1b\n");
extern const u8 pause_at[];

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
}
