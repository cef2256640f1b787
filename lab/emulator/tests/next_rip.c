// SPDX-License-Identifier: GPL-2.0-only
/*
 * After an exit by an instruction, next_rip is the address of the one after it, whatever its prefixes; RIP is its
 * own.
 */
#include "svm.h"

#define EXIT_IOIO 0x7b
#define EXIT_MSR 0x7c

#define OF 4
#define BR 5
#define FLAG_OF 0x800ul
#define CR0_EM 4ul

/*
 * Every instruction lies between two labels of its own; one that is not intercepted ends in #UD. There are the
 * intercepts of instructions in AMD's manual (volume 2, 15.9 to 15.11, and INT3, INTO and BOUND of 15.12) but for:
 *
 * - Other control registers, and DR8 to DR15: no processor has them, so #UD comes first.
 * - DR4 and DR5: with CR4.DE clear they are DR6 and DR7. The manual does not say whose intercept they ask for.
 * - MONITORX, MWAITX, RDPRU, INVLPGB, INVPCID, MCOMMIT and TLBSYNC: TCG does not know them, so #UD comes first.
 * - MWAIT while the monitor is armed (8Ch) and HLT without a virtual interrupt (A6h): TCG never asks for these, only
 *   for MWAIT's and HLT's other intercepts.
 * - Task switches, and the traps that follow a write of EFER or of a control register (7Dh, 8Fh to 9Fh): the manual
 *   does not count them among those of instructions.
 */
#define CODES(_)                                                               \
	_(cpuid, EXIT_CPUID, "cpuid")                                          \
	_(cpuid_prefixed, EXIT_CPUID, ".byte 0x66, 0x2e, 0x48; cpuid")         \
	_(cpuid_long, EXIT_CPUID, ".byte 0x3e, 0x3e, 0x3e, 0x3e, 0x3e; cpuid") \
	_(rdtsc, 0x6e, "rdtsc")                                                \
	_(rdtscp, 0x87, "rdtscp")                                              \
	_(hlt, EXIT_HLT, "hlt")                                                \
	_(pause, EXIT_PAUSE, "pause")                                          \
	_(invlpg, 0x79, "invlpg (%rdi)")                                       \
	_(invlpg_long, 0x79, "invlpg %fs:0x12345678(%r9, %r10, 8)")            \
	_(invlpga, 0x7a, "invlpga %rax, %ecx")                                 \
	_(in_dx, EXIT_IOIO, "inb %dx, %al")                                    \
	_(in_immediate, EXIT_IOIO, "inl $0x70, %eax")                          \
	_(out_dx, EXIT_IOIO, "outw %ax, %dx")                                  \
	_(out_immediate, EXIT_IOIO, "outb %al, $0x70")                         \
	_(outs, EXIT_IOIO, "outsb")                                            \
	_(rep_outs, EXIT_IOIO, "rep outsl")                                    \
	_(ins, EXIT_IOIO, "insb")                                              \
	_(rdmsr, EXIT_MSR, "rdmsr")                                            \
	_(wrmsr, EXIT_MSR, "wrmsr")                                            \
	_(read_cr0, 0x00, "movq %cr0, %rax")                                   \
	_(read_cr2, 0x02, "movq %cr2, %rax")                                   \
	_(read_cr3, 0x03, "movq %cr3, %r10")                                   \
	_(read_cr4, 0x04, "movq %cr4, %r9")                                    \
	_(read_cr8, 0x08, "movq %cr8, %rax")                                   \
	_(read_cr8_locked, 0x08, "lock; movq %cr0, %rax")                      \
	_(write_cr0, 0x10, "movq %rax, %cr0")                                  \
	_(write_cr0_selective, 0x65, "movq %r11, %cr0")                        \
	_(write_cr2, 0x12, "movq %rax, %cr2")                                  \
	_(write_cr3, 0x13, "movq %rax, %cr3")                                  \
	_(write_cr4, 0x14, "movq %r9, %cr4")                                   \
	_(write_cr8, 0x18, "movq %rax, %cr8")                                  \
	_(write_cr8_locked, 0x18, "lock; movq %rdx, %cr0")                     \
	_(clts, 0x10, "clts")                                                  \
	_(lmsw, 0x10, "lmsw %ax")                                              \
	_(lmsw_selective, 0x65, "lmsw %r11w")                                  \
	_(lmsw_selective_unchanged, 0x65, "lmsw %r8w")                         \
	_(smsw, 0x00, "smsw %eax")                                             \
	_(read_dr0, 0x20, "movq %dr0, %rax")                                   \
	_(read_dr1, 0x21, "movq %dr1, %rax")                                   \
	_(read_dr2, 0x22, "movq %dr2, %rax")                                   \
	_(read_dr3, 0x23, "movq %dr3, %rax")                                   \
	_(read_dr6, 0x26, "movq %dr6, %rax")                                   \
	_(read_dr7, 0x27, "movq %dr7, %r9")                                    \
	_(write_dr0, 0x30, "movq %rax, %dr0")                                  \
	_(write_dr1, 0x31, "movq %rax, %dr1")                                  \
	_(write_dr2, 0x32, "movq %rax, %dr2")                                  \
	_(write_dr3, 0x33, "movq %rax, %dr3")                                  \
	_(write_dr6, 0x36, "movq %rax, %dr6")                                  \
	_(write_dr7, 0x37, "movq %rax, %dr7")                                  \
	_(rdpmc, 0x6f, "rdpmc")                                                \
	_(pushf, 0x70, "pushfq")                                               \
	_(popf, 0x71, "popfq")                                                 \
	_(rsm, 0x73, "rsm")                                                    \
	_(iret, EXIT_IRET, "iretq")                                            \
	_(int_n, 0x75, "int $0x61")                                            \
	_(int_n_3, 0x75, ".byte 0xcd, 0x03")                                   \
	_(int3, EXIT_EXCEPTION + BP, "int3")                                   \
	_(int3_prefixed, EXIT_EXCEPTION + BP, ".byte 0x2e; int3")              \
	_(invd, 0x76, "invd")                                                  \
	_(sidt, 0x66, "sidt (%rdi)")                                           \
	_(sgdt, 0x67, "sgdt (%rdi)")                                           \
	_(sldt, 0x68, "sldt %eax")                                             \
	_(str, 0x69, "str %eax")                                               \
	_(lidt, 0x6a, "lidt (%rdi)")                                           \
	_(lgdt, 0x6b, "lgdt (%rdi)")                                           \
	_(lldt, 0x6c, "lldt %ax")                                              \
	_(ltr, 0x6d, "ltr %bx")                                                \
	_(vmrun, 0x80, "vmrun %rax")                                           \
	_(vmmcall, EXIT_VMMCALL, "vmmcall")                                    \
	_(vmmcall_prefixed, EXIT_VMMCALL, ".byte 0x2e, 0x48; vmmcall")         \
	_(vmload, 0x82, "vmload %rax")                                         \
	_(vmsave, 0x83, "vmsave %rax")                                         \
	_(stgi, 0x84, "stgi")                                                  \
	_(clgi, 0x85, "clgi")                                                  \
	_(skinit, 0x86, "skinit")                                              \
	_(icebp, 0x88, ".byte 0xf1")                                           \
	_(icebp_prefixed, 0x88, ".byte 0x2e, 0xf1")                            \
	_(wbinvd, 0x89, "wbinvd")                                              \
	_(wbnoinvd, 0x89, "rep; wbinvd")                                       \
	_(monitor, 0x8a, "monitor")                                            \
	_(mwait, 0x8b, "mwait")                                                \
	_(xsetbv, 0x8d, "xsetbv")

/* 64-bit code does not have these. */
#define CODES_32(_)                                               \
	_(into, EXIT_EXCEPTION + OF, "into")                      \
	_(into_prefixed, EXIT_EXCEPTION + OF, ".byte 0x2e; into") \
	_(bound, EXIT_EXCEPTION + BR, "bound %eax, (%edi)")       \
	_(bound_long, EXIT_EXCEPTION + BR, "bound %ax, %es:0x10(%edi)")

#define SYMBOLS(name, code, text) extern const u8 at_##name[], after_##name[];
CODES(SYMBOLS)
CODES_32(SYMBOLS)
#define LINES(name, code, text) "at_" #name ": " text "\nafter_" #name ": ud2\n"
asm(CODES(LINES) ".code32\n" CODES_32(LINES) ".code64\n");

#define ENTRIES(name, code, text) { #name, code, at_##name, after_##name },
static const struct code {
	const char *name;
	u64 exit;
	const u8 *at, *after;
} codes[] = { CODES(ENTRIES) }, codes_32[] = { CODES_32(ENTRIES) };

static struct vm vm;

/* Intercept this and no more, for what looks like another instruction must not be taken for it. */
static void only(u64 exit)
{
	u16 masks[4]; /* reads and writes of control registers, then of debug registers */

	for (u64 i = 0; i < 4; i++)
		masks[i] = exit >> 4 == i ? 1 << (exit & 15) : 0;
	vm.vmcb->intercept_cr_read = masks[0];
	vm.vmcb->intercept_cr_write = masks[1];
	vm.vmcb->intercept_dr_read = masks[2];
	vm.vmcb->intercept_dr_write = masks[3];
	vm.vmcb->intercept_exceptions = 0xffffffff;
	vm.vmcb->intercept = INTERCEPT(I_INTR) | INTERCEPT(I_NMI) | INTERCEPT(I_SHUTDOWN) | INTERCEPT(I_VMRUN);
	if (exit >= EXIT_INTR)
		vm.vmcb->intercept |= INTERCEPT(exit - EXIT_INTR);
}

/* A breakpoint or an overflow that is not intercepted. */
static void passes(struct frame *frame)
{
	(void)frame;
}

static void one(const struct code *code)
{
	u64 exit;

	vm_goto(&vm, (void (*)(void))code->at);
	vm.vmcb->flags |= FLAG_OF; /* for INTO */
	vm.regs.rdi = vm.regs.rsi = (u64)vm.stack;
	vm.regs.rcx = vm.regs.rdx = 0;
	/* A selector within the GDT and legal CR0s, for #GP would come before the intercept; R11's differs in EM. */
	vm.regs.rbx = vm.vmcb->ss.selector;
	vm.regs.r8 = vm.vmcb->cr0;
	vm.regs.r11 = vm.vmcb->cr0 ^ CR0_EM;
	only(code->exit);
	vm.vmcb->rax = PAGE;
	vm.vmcb->next_rip = 0x1234;
	while ((exit = vm_run(&vm)) == EXIT_INTR)
		;
	check(code->name, exit == code->exit && vm.vmcb->rip == (u64)code->at && vm.vmcb->next_rip == (u64)code->after,
	      "exit %lx at %lx, next %lx; wanted %lx, %lx, %lx", exit, vm.vmcb->rip, vm.vmcb->next_rip, code->exit,
	      (u64)code->at, (u64)code->after);
}

/* An exit that is no instruction's has none. */
static void others(void)
{
	vm_goto(&vm, (void (*)(void))after_cpuid);
	vm.vmcb->next_rip = 0x1234;
	while (vm_run(&vm) == EXIT_INTR)
		;
	check("a fault has no next_rip", vm.vmcb->exit_code == EXIT_EXCEPTION + UD && !vm.vmcb->next_rip,
	      "exit %lx, %lx", vm.vmcb->exit_code, vm.vmcb->next_rip);
	vm_goto(&vm, (void (*)(void))at_cpuid);
	*entry(vm.table, 1ul << 40, 1) = (1ul << 39) | P;
	vm.vmcb->rip = 1ul << 40;
	vm.vmcb->next_rip = 0x1234;
	while (vm_run(&vm) == EXIT_INTR)
		;
	check("a nested page fault has no next_rip", vm.vmcb->exit_code == EXIT_NPF && !vm.vmcb->next_rip,
	      "exit %lx, %lx", vm.vmcb->exit_code, vm.vmcb->next_rip);
}

void run(void)
{
	u8 *every;

	if (!svm_has(HAS_NRIPS)) {
		skip("next_rip", "no NRIPS");
		return;
	}
	on(BP, passes);
	on(OF, passes);
	vm_init(&vm, NULL);
	every = (u8 *)vm.vmcb->iopm;
	for (u32 i = 0; i < 3 * PAGE; i++)
		every[i] = 0xff;
	every = (u8 *)vm.vmcb->msrpm;
	for (u32 i = 0; i < 2 * PAGE; i++)
		every[i] = 0xff;
	for (u32 i = 0; i < sizeof(codes) / sizeof(*codes); i++)
		one(&codes[i]);
	others();
	/* Still in long mode, with the same page table. */
	vm.vmcb->cs = (struct segment){ 0x08, 0xc9b, 0xffffffff, 0 };
	for (u32 i = 0; i < sizeof(codes_32) / sizeof(*codes_32); i++)
		one(&codes_32[i]);
}
