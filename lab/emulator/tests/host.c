// SPDX-License-Identifier: GPL-2.0-only
/* What is the host's again after an exit, what stays the guest's in the VMCB, and what VMRUN refuses. */
#include "svm.h"

#define EXIT_INVALID (~0ul)

void changes_all(void);
asm("changes_all:\n"
    "movq $0x1111, %rax; movq %rax, %cr2\n"
    "movq %cr0, %rax; andq $~0x10000, %rax; movq %rax, %cr0\n"
    "movq %cr4, %rax; xorq $0x80, %rax; movq %rax, %cr4\n"
    "movq %cr3, %rax; movq %rax, %cr3\n"
    "movl $0x10, %eax; movl %eax, %ds; movl %eax, %es; movl %eax, %ss\n"
    "movq $0x401, %rax; movq %rax, %dr7\n"
    "movl $7, %eax; movq %rax, %cr8\n"
    "lidt empty_table(%rip)\n"
    "movq $0x2222, %rsp\n"
    "std; sti\n"
    "movq $0x3333, %rax; vmmcall\n"
    "empty_table: .word 0; .quad 0\n");

struct state {
	u64 cr0, cr2, cr3, cr4, cr8, dr7, efer, flags;
	struct table_pointer idt, gdt;
	u16 cs, ds, es, ss;
};

static struct vm vm;

static struct state state(void)
{
	struct state s = {};

	asm("movq %%cr0, %0" : "=r"(s.cr0));
	asm("movq %%cr2, %0" : "=r"(s.cr2));
	asm("movq %%cr3, %0" : "=r"(s.cr3));
	asm("movq %%cr4, %0" : "=r"(s.cr4));
	asm("movq %%cr8, %0" : "=r"(s.cr8));
	asm("movq %%dr7, %0" : "=r"(s.dr7));
	asm("pushfq; popq %0" : "=r"(s.flags));
	s.efer = rdmsr(0xc0000080);
	asm("sidt %0" : "=m"(s.idt));
	asm("sgdt %0" : "=m"(s.gdt));
	asm("movw %%cs, %0; movw %%ds, %1; movw %%es, %2; movw %%ss, %3"
	    : "=m"(s.cs), "=m"(s.ds), "=m"(s.es), "=m"(s.ss));
	return s;
}

static void same(const char *name, u64 before, u64 after)
{
	check(name, before == after, "%lx, then %lx", before, after);
}

static void exits(void)
{
	struct state before, after;
	struct vmcb *vmcb = vm.vmcb;

	asm volatile("sti");
	before = state();
	if (vm_run(&vm) != EXIT_VMMCALL)
		vm_die(&vm, "VMMCALL");
	after = state();
	same("the host's CR0", before.cr0, after.cr0);
	same("the host's CR3", before.cr3, after.cr3);
	same("the host's CR4", before.cr4, after.cr4);
	same("the host's CR8", before.cr8, after.cr8);
	same("the host's EFER", before.efer, after.efer);
	same("the host's IF and DF", before.flags & 0x600, after.flags & 0x600);
	same("the host's breakpoints are off", after.dr7, 0x400);
	same("the host's IDT", before.idt.base, after.idt.base);
	same("the host's IDT's limit", before.idt.limit, after.idt.limit);
	same("the host's GDT", before.gdt.base, after.gdt.base);
	same("the host's segments", (u64)before.cs << 48 | (u64)before.ds << 32 | (u64)before.es << 16 | before.ss,
	     (u64)after.cs << 48 | (u64)after.ds << 32 | (u64)after.es << 16 | after.ss);
	same("the guest's CR2", vmcb->cr2, 0x1111);
	same("the guest's CR0", vmcb->cr0, before.cr0 & ~0x10000ul);
	same("the guest's CR4", vmcb->cr4, before.cr4 ^ 0x80);
	same("the guest's CR3", vmcb->cr3, (u64)vm.table);
	same("the guest's DR7", vmcb->dr7, 0x401);
	same("the guest's CR8", vmcb->int_ctl & 15, 7);
	same("the guest's IDT", vmcb->idtr.base | vmcb->idtr.limit, 0);
	same("the guest's RSP", vmcb->rsp, 0x2222);
	same("the guest's RAX", vmcb->rax, 0x3333);
	same("the guest's flags", vmcb->flags & 0x602, 0x602);
	same("the guest's CPL", vmcb->cpl, 0);
}

static void refuses(const char *name, bool refused)
{
	check(name, refused, "exit %lx", vm.vmcb->exit_code);
}

/* The host goes on after a VMCB that is no good. */
static void invalid(void)
{
	struct vmcb good;

	vm_init(&vm, changes_all);
	good = *vm.vmcb;
	vm.vmcb->asid = 0;
	refuses("ASID 0 is refused", vm_run(&vm) == EXIT_INVALID);
	*vm.vmcb = good;
	vm.vmcb->intercept &= ~INTERCEPT(I_VMRUN);
	refuses("no VMRUN intercept is refused", vm_run(&vm) == EXIT_INVALID);
	*vm.vmcb = good;
	vm.vmcb->cr0 |= 1ul << 32;
	refuses("a large CR0 is refused", vm_run(&vm) == EXIT_INVALID);
	*vm.vmcb = good;
	vm.vmcb->efer &= ~0x1000ul;
	refuses("EFER without SVME is refused", vm_run(&vm) == EXIT_INVALID);
	*vm.vmcb = good;
	vm.vmcb->dr7 |= 1ul << 32;
	refuses("a large DR7 is refused", vm_run(&vm) == EXIT_INVALID);
	*vm.vmcb = good;
	vm.vmcb->event_inj = EVENT_VALID | EVENT_EXCEPTION | NMI;
	refuses("an exception that is none is refused", vm_run(&vm) == EXIT_INVALID);
	*vm.vmcb = good;
	refuses("then a good one runs", vm_run(&vm) == EXIT_VMMCALL);
}

void run(void)
{
	vm_init(&vm, changes_all);
	exits();
	invalid();
}
