/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Guests: a function of the program, with nested paging. Unless a test says otherwise a guest has the host's IDT,
 * segments and memory, its own stack, and exits by VMMCALL, at its host's interrupts and where the test wants.
 */
#pragma once

#include "run.h"

struct segment {
	u16 selector, attributes;
	u32 limit;
	u64 base;
};

struct vmcb {
	u16 intercept_cr_read, intercept_cr_write, intercept_dr_read, intercept_dr_write;
	u32 intercept_exceptions;
	u64 intercept;
	u8 reserved_1[40];
	u16 pause_threshold, pause_count;
	u64 iopm, msrpm, tsc_offset;
	u32 asid;
	u8 tlb_ctl, reserved_2[3];
	u32 int_ctl, int_vector;
	u64 int_state, exit_code, exit_info_1, exit_info_2;
	u32 exit_int_info, exit_int_error;
	u64 nested_ctl;
	u8 reserved_3[16];
	u32 event_inj, event_inj_error;
	u64 nested_cr3, lbr_ctl;
	u32 clean, reserved_4;
	u64 next_rip;
	u8 reserved_5[0x400 - 0xd0];
	struct segment es, cs, ss, ds, fs, gs, gdtr, ldtr, idtr, tr;
	u8 reserved_6[43], cpl;
	u32 reserved_7;
	u64 efer;
	u8 reserved_8[112];
	u64 cr4, cr3, cr0, dr7, dr6, flags, rip;
	u8 reserved_9[88];
	u64 rsp, s_cet, ssp, isst, rax, star, lstar, cstar, sfmask, kernel_gs_base;
	u64 sysenter_cs, sysenter_esp, sysenter_eip, cr2;
	u8 reserved_10[0x1000 - 0x648];
} __attribute__((packed));
_Static_assert(sizeof(struct vmcb) == PAGE, "a page");
_Static_assert(offsetof(struct vmcb, next_rip) == 0xc8 && offsetof(struct vmcb, asid) == 0x58, "control");
_Static_assert(offsetof(struct vmcb, rip) == 0x578 && offsetof(struct vmcb, cr2) == 0x640, "save");

/* Bits of intercept: those of the first word, then of the second one. */
#define INTERCEPT(n) (1ul << (n))
enum {
	I_INTR = 0,
	I_NMI = 1,
	I_VINTR = 4,
	I_RDTSC = 14,
	I_IRET = 20,
	I_INTN = 21,
	I_CPUID = 18,
	I_PAUSE = 23,
	I_HLT = 24,
	I_INVLPG = 25,
	I_INVLPGA = 26,
	I_IO = 27,
	I_MSR = 28,
	I_SHUTDOWN = 31,
	I_VMRUN = 32,
	I_VMMCALL = 33,
	I_RDTSCP = 39,
	I_WBINVD = 41,
	I_MONITOR = 42,
	I_MWAIT = 43,
	I_XSETBV = 45,
};

enum {
	EXIT_EXCEPTION = 0x40,
	EXIT_INTR = 0x60,
	EXIT_NMI = 0x61,
	EXIT_VINTR = 0x64,
	EXIT_CPUID = 0x72,
	EXIT_IRET = 0x74,
	EXIT_PAUSE = 0x77,
	EXIT_HLT = 0x78,
	EXIT_SHUTDOWN = 0x7f,
	EXIT_VMMCALL = 0x81,
	EXIT_NPF = 0x400,
};

/* int_ctl */
#define V_TPR(n) ((u32)(n))
#define V_IRQ (1u << 8)
#define V_PRIORITY(n) ((u32)(n) << 16)
#define V_IGNORE_TPR (1u << 20)
#define V_INTR_MASKING (1u << 24)

#define SHADOW 1ul /* in int_state */

/* event_inj and exit_int_info */
#define EVENT_INTR (0u << 8)
#define EVENT_NMI (2u << 8)
#define EVENT_EXCEPTION (3u << 8)
#define EVENT_SOFT (4u << 8)
#define EVENT_HAS_ERROR (1u << 11)
#define EVENT_VALID (1u << 31)

enum { FLUSH_NOTHING = 0, FLUSH_ALL = 1, FLUSH_ASID = 3, FLUSH_ASID_NOT_GLOBAL = 7 };

/* CPUID 8000000A, EDX */
#define HAS_NRIPS (1u << 3)
#define HAS_FLUSH_BY_ASID (1u << 6)
#define HAS_PAUSE_FILTER (1u << 10)
#define HAS_PAUSE_THRESHOLD (1u << 12)
static inline bool svm_has(u32 feature)
{
	return cpuid_edx(0x8000000a) & feature;
}

struct vm {
	struct vmcb *vmcb;
	struct {
		u64 rcx, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15;
	} regs;
	u64 *table;	       /* the guest's page table */
	u64 *nested;	       /* the nested one */
	u8 *stack, *stack_end; /* a page */
	bool uninterrupted;    /* the host's interrupts wait for the guest's exit */
};

/* What the code in a guest calls. The answer is what the host gives vm_ask(). */
static inline u64 vmmcall(u64 rax)
{
	asm volatile("vmmcall" : "+a"(rax)::"memory");
	return rax;
}

void vm_init(struct vm *vm, void (*code)(void));
/* Enter once; return the exit's code. The host's pending interrupts are taken if the caller takes any. */
u64 vm_run(struct vm *vm);
/*
 * Enter with RAX, run until VMMCALL, skip that; return its RAX. Any other exit but for interrupts ends the program.
 */
u64 vm_ask(struct vm *vm, u64 rax);
/* Start over at a function, with an empty stack. */
void vm_goto(struct vm *vm, void (*code)(void));
NORETURN void vm_die(struct vm *vm, const char *why);
bool vm_on_stack(struct vm *vm, const void *address);
