// SPDX-License-Identifier: GPL-2.0-only
/*
 * Changes of both page tables, flushes of all kinds and looks, at random, in more address spaces than an emulator
 * may keep: what was forgotten after its change is never seen again. The program keeps the books.
 */
#include "svm.h"

#define ASIDS 12
#define PAGES 700 /* more than a small TLB holds */
#define FRAMES 64
#define STEPS 20000
#define WINDOW (1ul << 39)
#define GPA (1ul << 39)
#define CODE 64 /* in a page: what returns the page's number */

enum { READ_PAGE = 1, INVLPG, LOAD_CR3, TOGGLE_PGE, READ_MANY };

struct space {
	struct vm vm;
	/* Two processes: every third page is global and the same in both. The guest has the tables of one. */
	u64 *tables[2];
	u32 process;
	/* Frames that the guest must see, but where an older one may be seen because nothing has made it forget. */
	u8 guest_frame[2][PAGES], nested_frame[FRAMES];
	bool guest_stale[PAGES], nested_stale;
};

static struct space spaces[ASIDS];
static u64 *frames[2 * FRAMES]; /* each holds its number, as data and as code */
static u64 random_state = 42, wrong, looks, stale_looks;

static u32 below(u32 n)
{
	random_state = random_state * 6364136223846793005 + 1442695040888963407;
	return (random_state >> 33) % n;
}

/* Asked with an operation, and a page or a table above it. Answers a page's contents; of many, their sum. */
static void guest(void)
{
	u64 answer = 0, question, at, cr4, other;

	for (;;) {
		question = vmmcall(answer);
		at = WINDOW + (question >> 8) * PAGE;
		switch (question & 0xff) {
		case READ_PAGE:
			answer = *(volatile u64 *)at;
			if (((u64(*)(void))(at + CODE))() != answer)
				answer = ~0ul;
			break;
		case INVLPG:
			asm volatile("invlpg (%0)" ::"r"(at) : "memory");
			break;
		case LOAD_CR3:
			asm volatile("movq %0, %%cr3" ::"r"(question >> 8) : "memory");
			break;
		case TOGGLE_PGE:
			asm volatile("movq %%cr4, %0; movq %0, %1; xorq $0x80, %1; movq %1, %%cr4; movq %0, %%cr4"
				     : "=&r"(cr4), "=&r"(other)::"memory");
			break;
		case READ_MANY:
			answer = 0;
			for (at = WINDOW; at < WINDOW + PAGES * PAGE; at += PAGE)
				answer += *(volatile u64 *)at;
			break;
		}
	}
}

static u64 ask(struct space *s, u64 what, u64 with)
{
	u64 answer = vm_ask(&s->vm, what | with << 8);

	s->vm.vmcb->tlb_ctl = FLUSH_NOTHING;
	return answer;
}

static bool is_global(u32 n)
{
	return n % 3 == 0;
}

/* A process's page n is guest-physical frame f; that is frame f or FRAMES + f of ours. */
static void set_guest(struct space *s, u32 process, u32 n, u32 f)
{
	for (u32 i = 0; i < 2; i++) {
		if (i != process && !is_global(n))
			continue;
		s->guest_frame[i][n] = f;
		*entry(s->tables[i], WINDOW + n * PAGE, 1) = (GPA + f * PAGE) | P | W | (is_global(n) ? GLOBAL : 0);
		if (i == s->process)
			s->guest_stale[n] = true;
	}
}

static void set_nested(struct space *s, u32 f, bool other)
{
	s->nested_frame[f] = f + other * FRAMES;
	map(s->vm.nested, GPA + f * PAGE, frames[s->nested_frame[f]], P | W | U);
}

static void forget(struct space *s, bool also_global)
{
	for (u32 i = 0; i < PAGES; i++)
		s->guest_stale[i] = s->guest_stale[i] && is_global(i) && !also_global;
}

static void forget_all(struct space *s)
{
	forget(s, true);
	s->nested_stale = false;
}

static void look(struct space *s, u32 n)
{
	u64 seen = ask(s, READ_PAGE, n);

	looks++;
	if (s->guest_stale[n] || s->nested_stale) {
		stale_looks++;
		return;
	}
	wrong += seen != s->nested_frame[s->guest_frame[s->process][n]];
}

static void look_at_many(struct space *s)
{
	u64 sum = 0;
	bool stale = s->nested_stale;

	for (u32 i = 0; i < PAGES; i++) {
		sum += s->nested_frame[s->guest_frame[s->process][i]];
		stale = stale || s->guest_stale[i];
	}
	wrong += ask(s, READ_MANY, 0) != sum && !stale;
}

static void step(void)
{
	struct space *s = &spaces[below(4) ? below(3) : below(ASIDS)];
	u32 n = below(4) ? below(24) : below(PAGES), f = below(FRAMES); /* some are in use often */

	switch (below(24)) {
	case 0 ... 3:
		look(s, n);
		set_guest(s, below(2), n, f);
		if (below(2)) {
			ask(s, INVLPG, n);
			s->guest_stale[n] = false;
		}
		break;
	case 4:
		if (below(2))
			break;
		set_nested(s, f, below(2));
		s->nested_stale = true;
		break;
	case 5:
		if (svm_has(HAS_FLUSH_BY_ASID)) {
			s->vm.vmcb->tlb_ctl = FLUSH_ASID;
			forget_all(s);
		}
		break;
	case 6:
		/* The nested entries below global pages may stay. */
		if (svm_has(HAS_FLUSH_BY_ASID)) {
			s->vm.vmcb->tlb_ctl = FLUSH_ASID_NOT_GLOBAL;
			forget(s, false);
		}
		look(s, n);
		break;
	case 7:
		s->vm.vmcb->tlb_ctl = FLUSH_ALL;
		/* It is forgotten at the next entry, which must be this one's. */
		look(s, n);
		for (u32 i = 0; i < ASIDS; i++)
			forget_all(&spaces[i]);
		break;
	case 8:
		look(s, n);
		set_guest(s, s->process, n, f);
		asm volatile("invlpga %0, %1" ::"a"(WINDOW + n * PAGE), "c"(s->vm.vmcb->asid));
		s->guest_stale[n] = false;
		look(s, n);
		break;
	case 9:
	case 10:
		s->process = below(2);
		ask(s, LOAD_CR3, (u64)s->tables[s->process]);
		forget(s, false);
		break;
	case 11:
		ask(s, TOGGLE_PGE, 0);
		forget(s, true);
		break;
	case 12:
		look_at_many(s);
		break;
	default:
		look(s, n);
	}
}

void run(void)
{
	for (u32 i = 0; i < 2 * FRAMES; i++) {
		frames[i] = page();
		*frames[i] = i;
		frames[i][CODE / 8] = 0xc300000000b8 | (u64)i << 8; /* mov $i, %eax; ret */
	}
	for (u32 i = 0; i < ASIDS; i++) {
		vm_init(&spaces[i].vm, guest);
		spaces[i].tables[0] = spaces[i].vm.table;
		spaces[i].tables[1] = identity();
		for (u32 f = 0; f < FRAMES; f++)
			set_nested(&spaces[i], f, i & 1);
		for (u32 n = 0; n < PAGES; n++)
			for (u32 process = 0; process < 2; process++)
				set_guest(&spaces[i], process, n, below(FRAMES));
		forget(&spaces[i], true);
		vm_ask(&spaces[i].vm, 0);
	}
	for (u32 i = 0; i < STEPS; i++)
		step();
	check("nothing forgotten is seen again", !wrong, "%lu wrong looks", wrong);
	say("info %lu looks, %lu more where both are right", looks - stale_looks, stale_looks);
}
