// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a guest sees after an entry of the nested page table was changed, and after something that forgets the old
 * one; which changes need no flush; what a nested page fault says; and whether the host's own entries outlive a
 * guest.
 */
#include "svm.h"

#define GPA (1ul << 39) /* guest-physical: data, code, a page table */
#define DATA GPA
#define CODE (GPA + PAGE)
#define TABLE (GPA + 2 * PAGE)
#define LARGE_GPA (GPA + (2ul << 21))
#define VA (1ul << 40) /* where the guest has them; the last is a page through the moving table */
#define VA_LARGE (VA + (2ul << 21))
#define VA_BY_TABLE (VA + (4ul << 21))
#define HOST_WINDOW (3ul << 39)

enum { READ_DATA, CALL_CODE, READ_BY_TABLE, READ_LARGE, WRITE_DATA, INVLPG, LOAD_CR3, LOOKS = 4 };

extern u64 host_pml4[];
static struct vm vm;
static u8 *pages[2], *code_pages[2];
static u64 *tables[2];

static u64 load(u64 address)
{
	return *(volatile u64 *)address;
}

static void guest(void)
{
	u64 answer = 0, cr3;

	for (;;) {
		switch (vmmcall(answer)) {
		case READ_DATA:
			answer = load(VA);
			break;
		case CALL_CODE:
			answer = ((u64(*)(void))(VA + PAGE))() & 0xff;
			break;
		case READ_BY_TABLE:
			answer = load(VA_BY_TABLE);
			break;
		case READ_LARGE:
			answer = load(VA_LARGE + (u64)pages[0] % (1ul << 21));
			break;
		case WRITE_DATA:
			*(volatile u64 *)VA = 77;
			break;
		case INVLPG:
			asm volatile("invlpg (%0)" ::"r"(VA) : "memory");
			break;
		case LOAD_CR3:
			asm volatile("movq %%cr3, %0; movq %0, %%cr3" : "=r"(cr3)::"memory");
			break;
		}
	}
}

static u64 ask(u64 what)
{
	u64 answer = vm_ask(&vm, what);

	vm.vmcb->tlb_ctl = FLUSH_NOTHING;
	return answer;
}

static void show_in(u64 *nested, u32 n)
{
	map(nested, DATA, pages[n], P | W | U);
	map(nested, CODE, code_pages[n], P | U);
	map(nested, TABLE, tables[n], P | W | U);
	*entry(nested, LARGE_GPA, 2) = (((u64)pages[0] >> 21) + 8 * n) << 21 | P | W | U | LARGE;
}

static void forgets(const char *name, bool must, u32 tlb_ctl, u64 guest_does, void (*host_does)(void))
{
	static const char *const looks[] = { "data", "code", "a page table", "a large page" };
	u64 answers[LOOKS];
	bool good = true;

	show_in(vm.nested, 0);
	vm.vmcb->tlb_ctl = FLUSH_ALL;
	for (u32 i = 0; i < LOOKS; i++)
		if (ask(i) != 1)
			die("%s: %s was not what it was made", name, looks[i]);
	show_in(vm.nested, 1);
	if (host_does)
		host_does();
	vm.vmcb->tlb_ctl = tlb_ctl;
	if (guest_does)
		ask(guest_does);
	for (u32 i = 0; i < LOOKS; i++) {
		answers[i] = ask(i);
		if (good && (answers[i] == 0 || answers[i] > 2 || (must && answers[i] != 2))) {
			check(name, false, "%s is %lu", looks[i], answers[i]);
			good = false;
		}
	}
	if (good && must)
		check(name, true, "nothing");
	say("info %s: data %s, code %s, a page table %s, a large page %s", name, answers[0] == 1 ? "kept" : "forgotten",
	    answers[1] == 1 ? "kept" : "forgotten", answers[2] == 1 ? "kept" : "forgotten",
	    answers[3] == 1 ? "kept" : "forgotten");
}

static void new_asid(void)
{
	vm.vmcb->asid += 100;
}

/* Another nested table, with a flush, as a hypervisor must; the old one stays as it is. */
static void new_table(void)
{
	vm.nested = identity();
	vm.vmcb->nested_cr3 = (u64)vm.nested;
	show_in(vm.nested, 1);
}

/* Give a guest that faults what it needs; nothing is flushed. */
static void faults(void)
{
	u64 page_frame = (u64)pages[0];

	show_in(vm.nested, 0);
	map(vm.nested, DATA, pages[0], P | U);
	vm.vmcb->tlb_ctl = FLUSH_ALL;
	ask(READ_DATA);
	vm.vmcb->rax = WRITE_DATA;
	check("a nested page that is not writable faults", vm_run(&vm) == EXIT_NPF, "exit %lx", vm.vmcb->exit_code);
	check("its codes say so", vm.vmcb->exit_info_1 == (1ul << 32 | P | W | U) && vm.vmcb->exit_info_2 == DATA,
	      "info %lx %lx", vm.vmcb->exit_info_1, vm.vmcb->exit_info_2);
	map(vm.nested, DATA, pages[0], P | W | U);
	while (vm_run(&vm) == EXIT_INTR)
		;
	check("made writable it needs no flush", vm.vmcb->exit_code == EXIT_VMMCALL && *(u64 *)page_frame == 77,
	      "exit %lx, %lu", vm.vmcb->exit_code, *(u64 *)page_frame);
	if (vm.vmcb->exit_code == EXIT_VMMCALL)
		vm.vmcb->rip += 3;
	*(u64 *)page_frame = 1;

	map(vm.nested, DATA, 0, 0);
	vm.vmcb->tlb_ctl = FLUSH_ALL;
	vm.vmcb->rax = READ_DATA;
	check("a nested page that is not there faults", vm_run(&vm) == EXIT_NPF, "exit %lx", vm.vmcb->exit_code);
	vm.vmcb->tlb_ctl = FLUSH_NOTHING;
	check("and its codes say that", vm.vmcb->exit_info_1 == (1ul << 32 | U) && vm.vmcb->exit_info_2 == DATA,
	      "info %lx %lx", vm.vmcb->exit_info_1, vm.vmcb->exit_info_2);
	map(vm.nested, DATA, pages[1], P | W | U);
	check("made present it needs no flush", ask(READ_DATA) == 2, "another page");

	map(vm.nested, TABLE, 0, 0);
	vm.vmcb->tlb_ctl = FLUSH_ALL;
	vm.vmcb->rax = READ_BY_TABLE;
	check("a guest's page table that is not there faults", vm_run(&vm) == EXIT_NPF, "exit %lx", vm.vmcb->exit_code);
	vm.vmcb->tlb_ctl = FLUSH_NOTHING;
	check("its codes say what it was for",
	      vm.vmcb->exit_info_1 >> 32 == 2 && vm.vmcb->exit_info_2 >> 12 == TABLE >> 12, "info %lx %lx",
	      vm.vmcb->exit_info_1, vm.vmcb->exit_info_2);
	map(vm.nested, TABLE, tables[1], P | W | U);
	check("with it there the guest goes on", ask(READ_BY_TABLE) == 2, "another page");
}

/* The host's entries are an address space of their own. */
static void host(const char *name, bool must, u32 tlb_ctl, u64 does)
{
	u64 seen;

	map(host_pml4, HOST_WINDOW, pages[0], P | W);
	asm volatile("invlpg (%0)" ::"r"(HOST_WINDOW) : "memory");
	if (load(HOST_WINDOW) != 1)
		die("%s: the host's window is not what it was made", name);
	map(host_pml4, HOST_WINDOW, pages[1], P | W);
	vm.vmcb->tlb_ctl = tlb_ctl;
	ask(does);
	seen = load(HOST_WINDOW);
	if (must)
		check(name, seen == 2, "the host sees %lu", seen);
	say("info %s: the host's entry is %s", name, seen == 1 ? "kept" : "forgotten");
}

void run(void)
{
	for (u32 i = 0; i < 2; i++) {
		pages[i] = page();
		*(u64 *)pages[i] = i + 1;
		code_pages[i] = page();
		code_pages[i][0] = 0xb8; /* mov $i + 1, %eax; ret */
		code_pages[i][1] = i + 1;
		code_pages[i][5] = 0xc3;
		tables[i] = page();
		tables[i][0] = (u64)pages[i] | P;
	}
	*(u64 *)(pages[0] + (8ul << 21)) = 2;
	vm_init(&vm, guest);
	for (u64 i = 0; i < 2; i++)
		*entry(vm.table, VA + i * PAGE, 1) = (GPA + i * PAGE) | P | W;
	*entry(vm.table, VA_LARGE, 2) = LARGE_GPA | P | W | LARGE;
	*entry(vm.table, VA_BY_TABLE, 2) = TABLE | P | W;
	show_in(vm.nested, 0);
	vm_ask(&vm, 0);

	forgets("nothing", false, FLUSH_NOTHING, 0, NULL);
	forgets("the guest's INVLPG", false, FLUSH_NOTHING, INVLPG, NULL);
	forgets("the guest's CR3 load", false, FLUSH_NOTHING, LOAD_CR3, NULL);
	forgets("tlb_ctl 1", true, FLUSH_ALL, 0, NULL);
	if (svm_has(HAS_FLUSH_BY_ASID)) {
		forgets("tlb_ctl 3", true, FLUSH_ASID, 0, NULL);
		forgets("tlb_ctl 7", true, FLUSH_ASID_NOT_GLOBAL, 0, NULL);
	} else {
		skip("tlb_ctl 3", "no FlushByAsid");
		skip("tlb_ctl 7", "no FlushByAsid");
	}
	forgets("a new ASID", true, FLUSH_NOTHING, 0, new_asid);
	forgets("a new table", true, FLUSH_ALL, 0, new_table);
	faults();
	host("a guest that ran", false, FLUSH_NOTHING, READ_DATA);
	host("a guest's CR3 load", false, FLUSH_NOTHING, LOAD_CR3);
	host("tlb_ctl 1 for the host", true, FLUSH_ALL, READ_DATA);
	if (svm_has(HAS_FLUSH_BY_ASID))
		host("tlb_ctl 3 for the host", false, FLUSH_ASID, READ_DATA);
}
