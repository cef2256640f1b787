// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a guest sees after an entry of its own page table was changed, and after something that forgets the old one.
 * Read as data and called as code, since an emulator has a cache for each. Whether the old entry is used before that
 * is up to the processor: "kept" shows that its TLB is tagged.
 */
#include "svm.h"

#define WINDOW (1ul << 39)
#define CODE_WINDOW (WINDOW + 5 * PAGE)
#define GLOBAL_WINDOW (WINDOW + 1024 * PAGE)
#define HUGE_WINDOW (WINDOW + (4ul << 21))
#define EDGE_WINDOW (WINDOW + 1536 * PAGE) /* an instruction from its last byte on */
#define GLOBAL_HUGE_WINDOW (WINDOW + (6ul << 21))
#define HUGE_MASK ((1ul << 21) - 1)
#define WINDOWS 7
/* Bits of windows, in the order of read_all(). */
#define ALL_WINDOWS ((1u << WINDOWS) - 1)
#define GLOBAL_WINDOWS (1u << 2 | 1u << 6)
#define HUGE_WINDOWS (1u << 3 | 1u << 5 | 1u << 6)
#define ASIDS 24 /* more than an emulator may keep apart */

/* What the guest is asked to do. */
enum {
	READ_WINDOW,
	CALL_WINDOW,
	READ_GLOBAL,
	READ_HUGE,
	CALL_EDGE,
	CALL_HUGE,
	READ_GLOBAL_HUGE,
	INVLPG,
	INVLPG_HUGE,
	LOAD_CR3,
	TOGGLE_PGE,
	WRITE_WINDOW
};

static struct vm vm;
static u8 *pages[2], *code_pages[2], *edge_page, *after_edge_pages[2];
static u64 faults;

static u64 load(u64 address)
{
	return *(volatile u64 *)address;
}

static void guest(void)
{
	u64 answer = 0, cr3, cr4;

	for (;;) {
		switch (vmmcall(answer)) {
		case READ_WINDOW:
			answer = load(WINDOW);
			break;
		case CALL_WINDOW:
			answer = ((u64(*)(void))CODE_WINDOW)() & 0xff;
			break;
		case READ_GLOBAL:
			answer = load(GLOBAL_WINDOW);
			break;
		case READ_HUGE:
			answer = load(HUGE_WINDOW + ((u64)pages[0] & HUGE_MASK));
			break;
		case CALL_EDGE:
			answer = ((u64(*)(void))(EDGE_WINDOW + PAGE - 1))() & 0xff;
			break;
		case CALL_HUGE:
			answer = ((u64(*)(void))(HUGE_WINDOW + ((u64)code_pages[0] & HUGE_MASK)))() & 0xff;
			break;
		case READ_GLOBAL_HUGE:
			answer = load(GLOBAL_HUGE_WINDOW + ((u64)pages[0] & HUGE_MASK));
			break;
		case INVLPG:
			asm volatile("invlpg (%0); invlpg (%1); invlpg (%2); invlpg (%3)" ::"r"(WINDOW),
				     "r"(CODE_WINDOW), "r"(GLOBAL_WINDOW), "r"(EDGE_WINDOW + PAGE)
				     : "memory");
			break;
		case INVLPG_HUGE: /* by another address in each */
			asm volatile("invlpg (%0); invlpg (%1)" ::"r"(HUGE_WINDOW + 17 * PAGE),
				     "r"(GLOBAL_HUGE_WINDOW + 17 * PAGE)
				     : "memory");
			break;
		case LOAD_CR3:
			asm volatile("movq %%cr3, %0; movq %0, %%cr3" : "=r"(cr3)::"memory");
			break;
		case TOGGLE_PGE:
			asm volatile("movq %%cr4, %0; movq %0, %1; xorq $0x80, %1; movq %1, %%cr4; movq %0, %%cr4"
				     : "=&r"(cr4), "=&r"(cr3)::"memory");
			break;
		case WRITE_WINDOW:
			*(volatile u64 *)WINDOW = 77;
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

/* Let all windows show page 0 or page 1. */
static void show(u32 n)
{
	u64 huge = (((u64)pages[0] >> 21) + 8 * n) << 21 | P | W | LARGE;

	map(vm.table, WINDOW, pages[n], P | W);
	map(vm.table, CODE_WINDOW, code_pages[n], P);
	map(vm.table, GLOBAL_WINDOW, pages[n], P | W | GLOBAL);
	map(vm.table, EDGE_WINDOW, edge_page, P);
	map(vm.table, EDGE_WINDOW + PAGE, after_edge_pages[n], P);
	*entry(vm.table, HUGE_WINDOW, 2) = huge;
	*entry(vm.table, GLOBAL_HUGE_WINDOW, 2) = huge | GLOBAL;
}

static void read_all(u64 *answers)
{
	static const u8 reads[WINDOWS] = { READ_WINDOW, CALL_WINDOW, READ_GLOBAL,     READ_HUGE,
					   CALL_EDGE,	CALL_HUGE,   READ_GLOBAL_HUGE };

	for (u32 i = 0; i < WINDOWS; i++)
		answers[i] = ask(reads[i]);
}

static const char *fate(u64 answer)
{
	return answer == 1 ? "kept" : "forgotten";
}

/*
 * Show page 0, have it seen, show page 1, forget, look: bits of `must` are windows that must be seen new, in the
 * order of read_all().
 */
static void forgets(const char *name, u32 must, u32 tlb_ctl, u64 guest_does, void (*host_does)(void))
{
	static const char *const windows[WINDOWS] = {
		"data",
		"code",
		"global data",
		"a large page",
		"code across pages",
		"a large page's code",
		"a global large page",
	};
	u64 before[WINDOWS], answers[WINDOWS];

	show(0);
	vm.vmcb->tlb_ctl = FLUSH_ALL;
	read_all(before);
	read_all(before);
	show(1);
	if (host_does)
		host_does();
	vm.vmcb->tlb_ctl = tlb_ctl;
	if (guest_does)
		ask(guest_does);
	read_all(answers);
	for (u32 i = 0; i < WINDOWS; i++) {
		if (before[i] != 1)
			die("%s: %s was %lu", name, windows[i], before[i]);
		if (must >> i & 1 && answers[i] != 2) {
			check(name, false, "%s is the old one", windows[i]);
			return;
		}
		if (answers[i] != 1 && answers[i] != 2) {
			check(name, false, "%s is %lu", windows[i], answers[i]);
			return;
		}
	}
	if (must)
		check(name, true, "nothing");
	say("info %s: data %s, code %s, global data %s, a large page %s, code across pages %s, a large page's code %s, "
	    "a global large page %s",
	    name, fate(answers[0]), fate(answers[1]), fate(answers[2]), fate(answers[3]), fate(answers[4]),
	    fate(answers[5]), fate(answers[6]));
}

static void new_asid(void)
{
	vm.vmcb->asid += 100;
}

static void invlpga(void)
{
	asm volatile("invlpga %0, %1" ::"a"(WINDOW), "c"(vm.vmcb->asid));
	asm volatile("invlpga %0, %1" ::"a"(CODE_WINDOW), "c"(vm.vmcb->asid));
	asm volatile("invlpga %0, %1" ::"a"(GLOBAL_WINDOW), "c"(vm.vmcb->asid));
	asm volatile("invlpga %0, %1" ::"a"(HUGE_WINDOW), "c"(vm.vmcb->asid));
	asm volatile("invlpga %0, %1" ::"a"(EDGE_WINDOW + PAGE), "c"(vm.vmcb->asid));
	asm volatile("invlpga %0, %1" ::"a"(GLOBAL_HUGE_WINDOW), "c"(vm.vmcb->asid));
}

static void host_loads_cr3(void)
{
	u64 cr3;

	asm volatile("movq %%cr3, %0; movq %0, %%cr3" : "=r"(cr3)::"memory");
}

/* Address spaces with the same addresses for different pages, in turn. */
static void many_asids(void)
{
	static u64 *tables[ASIDS], values[ASIDS];
	u64 own = vm.vmcb->asid, cr3 = vm.vmcb->cr3, wrong = 0, random = 1;

	for (u32 i = 0; i < ASIDS; i++) {
		u64 *data = page();
		u8 *code = page();

		tables[i] = identity();
		*data = values[i] = 1000 + i;
		code[0] = 0xb8; /* mov $i, %eax; ret */
		code[1] = i;
		code[5] = 0xc3;
		map(tables[i], WINDOW, data, P);
		map(tables[i], CODE_WINDOW, code, P);
	}
	for (u32 n = 0; n < 3000; n++) {
		/* Now among all, now among few. */
		u32 i = (random >> 33) % (n & 256 ? 5 : ASIDS);

		random = random * 6364136223846793005 + 1442695040888963407;
		vm.vmcb->asid = 300 + i;
		vm.vmcb->cr3 = (u64)tables[i];
		vm.vmcb->tlb_ctl = n % 500 == 0 ? FLUSH_ALL : n % 77 == 0 ? FLUSH_ASID : FLUSH_NOTHING;
		wrong += ask(READ_WINDOW) != values[i];
		wrong += ask(CALL_WINDOW) != i;
	}
	check("address spaces are kept apart", !wrong, "%lu of 6000 looks were into another one", wrong);
	vm.vmcb->asid = own;
	vm.vmcb->cr3 = cr3;
	vm.vmcb->tlb_ctl = FLUSH_ALL;
}

/* More rights need no flush: what faults is looked up again. */
static void page_fault(struct frame *frame)
{
	(void)frame;
	faults++;
	map(vm.table, WINDOW, pages[1], P | W);
}

static void more_rights(void)
{
	on(PF, page_fault);
	show(0);
	map(vm.table, WINDOW, pages[0], P);
	vm.vmcb->tlb_ctl = FLUSH_ALL;
	ask(READ_WINDOW);
	map(vm.table, WINDOW, pages[0], P | W);
	ask(WRITE_WINDOW);
	check("a page made writable needs no flush", load((u64)pages[0]) == 77 && !faults, "%lu faults, %lu", faults,
	      load((u64)pages[0]));
	*(u64 *)pages[0] = 1;
	map(vm.table, WINDOW, 0, 0);
	vm.vmcb->tlb_ctl = FLUSH_ALL;
	check("a page not there faults", ask(READ_WINDOW) == 2 && faults == 1, "%lu faults", faults);
}

void run(void)
{
	for (u32 i = 0; i < 2; i++) {
		pages[i] = page();
		*(u64 *)pages[i] = i + 1;
		code_pages[i] = page();
		code_pages[i][0] = 0xb8;
		code_pages[i][1] = i + 1;
		code_pages[i][5] = 0xc3;
		after_edge_pages[i] = page();
		after_edge_pages[i][0] = i + 1;
		after_edge_pages[i][4] = 0xc3;
	}
	edge_page = page();
	edge_page[PAGE - 1] = 0xb8;
	/* In the other large page. */
	*(u64 *)(pages[0] + (8ul << 21)) = 2;
	if (((u64)pages[0] ^ (u64)code_pages[0]) & ~HUGE_MASK)
		die("data and code are not in one large page");
	for (u32 i = 0; i < 6; i++)
		code_pages[0][(8ul << 21) + i] = code_pages[1][i];
	vm_init(&vm, guest);
	vm_ask(&vm, 0);

	forgets("nothing", 0, FLUSH_NOTHING, 0, NULL);
	forgets("the host's CR3 load", 0, FLUSH_NOTHING, 0, host_loads_cr3);
	forgets("tlb_ctl 1", ALL_WINDOWS, FLUSH_ALL, 0, NULL);
	if (svm_has(HAS_FLUSH_BY_ASID)) {
		forgets("tlb_ctl 3", ALL_WINDOWS, FLUSH_ASID, 0, NULL);
		forgets("tlb_ctl 7", ALL_WINDOWS & ~GLOBAL_WINDOWS, FLUSH_ASID_NOT_GLOBAL, 0, NULL);
	} else {
		skip("tlb_ctl 3", "no FlushByAsid");
		skip("tlb_ctl 7", "no FlushByAsid");
	}
	forgets("a new ASID", ALL_WINDOWS, FLUSH_NOTHING, 0, new_asid);
	forgets("INVLPGA", ALL_WINDOWS, FLUSH_NOTHING, 0, invlpga);
	forgets("INVLPG", ALL_WINDOWS & ~HUGE_WINDOWS, FLUSH_NOTHING, INVLPG, NULL);
	forgets("INVLPG of a large page", HUGE_WINDOWS, FLUSH_NOTHING, INVLPG_HUGE, NULL);
	forgets("the guest's CR3 load", ALL_WINDOWS & ~GLOBAL_WINDOWS, FLUSH_NOTHING, LOAD_CR3, NULL);
	forgets("a change of CR4.PGE", ALL_WINDOWS, FLUSH_NOTHING, TOGGLE_PGE, NULL);
	many_asids();
	more_rights();
}
