// SPDX-License-Identifier: GPL-2.0-only
/* What an instruction that faults leaves behind: its flags, its CPU's registers; in the host as in a guest. */
#include "svm.h"

#define EDGE (1ul << 40) /* a page, and nothing after it */
#define FLAGS 0xcd5ul	 /* OF, DF, SF, ZF, AF, PF, CF */

extern u64 host_pml4[];
static struct vm vm;
static struct frame last;
static u64 faults;

/* Leave the instruction by the address that is in RBX. */
static void fault(struct frame *frame)
{
	last = *frame;
	faults++;
	frame->rip = frame->rbx;
}

/* A LOCK across two pages, which an emulator executes with all other CPUs stopped. */
static void split_lock(void)
{
	asm volatile("leaq 1f(%%rip), %%rbx; pushq %0; popfq; lock addl $0, (%1); 1: cld" ::"r"(FLAGS | 2),
		     "r"(EDGE + PAGE - 2)
		     : "rbx", "cc", "memory");
}

static void plain_store(void)
{
	asm volatile("leaq 1f(%%rip), %%rbx; pushq %0; popfq; movl $0, (%1); 1: cld" ::"r"(FLAGS | 2), "r"(EDGE + PAGE)
		     : "rbx", "cc", "memory");
}

static void reserved_cr4(void)
{
	asm volatile("movq %%cr4, %%rax; btsq $31, %%rax; leaq 1f(%%rip), %%rbx; movq %%rax, %%cr4; 1:" ::
			     : "rax", "rbx", "memory");
}

static void reserved_cr3(void)
{
	asm volatile("movq %%cr3, %%rax; btsq $55, %%rax; leaq 1f(%%rip), %%rbx; movq %%rax, %%cr3; 1:" ::
			     : "rax", "rbx", "memory");
}

static void guest(void)
{
	void (*question)(void);

	while ((question = (void (*)(void))vmmcall(0)))
		question();
}

static void one(const char *name, bool in_guest, void (*code)(void), u64 vector, u64 flags)
{
	u64 before = faults;

	last = (struct frame){};
	if (in_guest) {
		vm.vmcb->rax = (u64)code;
		while (vm_run(&vm) == EXIT_INTR)
			;
		if (vm.vmcb->exit_code != EXIT_VMMCALL) {
			check(name, false, "exit %lx", vm.vmcb->exit_code);
			vm_goto(&vm, guest);
			vm_ask(&vm, 0);
			return;
		}
		vm.vmcb->rip += 3;
	} else {
		code();
	}
	check(name, faults == before + 1 && last.vector == vector && (last.flags & flags) == flags,
	      "%lu faults, vector %lu, flags %lx", faults - before, last.vector, last.flags);
}

void run(void)
{
	u8 *last_page = page();

	on(PF, fault);
	on(GP, fault);
	vm_init(&vm, guest);
	map(host_pml4, EDGE, last_page, P | W);
	map(vm.table, EDGE, last_page, P | W);
	vm_ask(&vm, 0);
	one("a host's store that faults", false, plain_store, PF, FLAGS);
	one("a guest's store that faults", true, plain_store, PF, FLAGS);
	one("a host's split lock that faults", false, split_lock, PF, FLAGS);
	one("a guest's split lock that faults", true, split_lock, PF, FLAGS);
	one("reserved bits of a guest's CR4", true, reserved_cr4, GP, 0);
	one("reserved bits of a guest's CR3", true, reserved_cr3, GP, 0);
	one("reserved bits of a host's CR4", false, reserved_cr4, GP, 0);
	one("reserved bits of a host's CR3", false, reserved_cr3, GP, 0);
}
