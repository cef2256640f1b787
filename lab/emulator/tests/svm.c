// SPDX-License-Identifier: GPL-2.0-only
/* Guests: see svm.h. */
#include "svm.h"

#define MSR_EFER 0xc0000080
#define MSR_VM_HSAVE 0xc0010117

extern u64 host_pml4[];
void vm_enter(struct vmcb *vmcb, void *regs, bool interrupts_on);

void vm_goto(struct vm *vm, void (*code)(void))
{
	vm->vmcb->rip = (u64)code;
	vm->vmcb->rsp = (u64)vm->stack_end - 8; /* as after a call */
	vm->vmcb->flags = 2;
	vm->vmcb->int_state = 0;
	vm->vmcb->event_inj = 0;
	vm->vmcb->int_ctl = V_INTR_MASKING;
}

void vm_init(struct vm *vm, void (*code)(void))
{
	static bool has_hsave[2];
	static u32 asids;
	struct table_pointer idt = idt_pointer();
	struct vmcb *vmcb = page();

	if (!has_hsave[cpu()]) {
		has_hsave[cpu()] = true;
		wrmsr(MSR_VM_HSAVE, (u64)page());
	}
	*vm = (struct vm){ .vmcb = vmcb, .table = identity(), .nested = identity(), .stack = page() };
	vm->stack_end = vm->stack + PAGE;
	vmcb->intercept = INTERCEPT(I_INTR) | INTERCEPT(I_NMI) | INTERCEPT(I_SHUTDOWN) | INTERCEPT(I_VMRUN) |
			  INTERCEPT(I_VMMCALL);
	/* Bitmaps of zeros: no port and no register exits. */
	vmcb->iopm = (u64)page();
	page();
	page();
	vmcb->msrpm = (u64)page();
	page();
	vmcb->asid = ++asids;
	vmcb->nested_ctl = 1;
	vmcb->nested_cr3 = (u64)vm->nested;
	vmcb->cs = (struct segment){ 0x18, 0xa9b, 0xffffffff, 0 };
	vmcb->ss = (struct segment){ 0x10, 0xc93, 0xffffffff, 0 };
	vmcb->ds = vmcb->es = vmcb->ss;
	vmcb->idtr = (struct segment){ .limit = idt.limit, .base = idt.base };
	asm volatile("sgdt %0" : "=m"(idt));
	vmcb->gdtr = (struct segment){ .limit = idt.limit, .base = idt.base };
	vmcb->efer = rdmsr(MSR_EFER);
	asm volatile("movq %%cr0, %0" : "=r"(vmcb->cr0));
	asm volatile("movq %%cr4, %0" : "=r"(vmcb->cr4));
	vmcb->cr3 = (u64)vm->table;
	vmcb->dr6 = 0xffff0ff0;
	vmcb->dr7 = 0x400;
	vm_goto(vm, code);
}

u64 vm_run(struct vm *vm)
{
	u64 flags = flags_off();

	vm_enter(vm->vmcb, &vm->regs, !vm->uninterrupted);
	flags_back(flags);
	return vm->vmcb->exit_code;
}

u64 vm_ask(struct vm *vm, u64 rax)
{
	vm->vmcb->rax = rax;
	while (vm_run(vm) == EXIT_INTR)
		;
	if (vm->vmcb->exit_code != EXIT_VMMCALL)
		vm_die(vm, "VMMCALL");
	vm->vmcb->rip += 3;
	return vm->vmcb->rax;
}

void vm_die(struct vm *vm, const char *why)
{
	die("wanted %s, got exit %lx at %lx, info %lx %lx, in delivery %x", why, vm->vmcb->exit_code, vm->vmcb->rip,
	    vm->vmcb->exit_info_1, vm->vmcb->exit_info_2, vm->vmcb->exit_int_info);
}

bool vm_on_stack(struct vm *vm, const void *address)
{
	return (const u8 *)address >= vm->stack && (const u8 *)address < vm->stack_end;
}
