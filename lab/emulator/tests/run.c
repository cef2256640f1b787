// SPDX-License-Identifier: GPL-2.0-only
/* The runtime of all programs: see run.h. */
#include "run.h"

#include <stdarg.h>

#define SERIAL 0x3f8
#define PM_TIMER 0x608 /* where the firmware puts it */
#define PM_TIMER_KHZ 3580
#define RESET 0xcf9
#define LAPIC 0xfee00000ul
#define LOW_PAGE 0x8000ul
#define POOL_PAGES 1024

struct gate {
	u16 offset0, selector, type, offset1;
	u32 offset2, zero;
};

extern const char vectors[], trampoline[], trampoline_end[];
static struct gate idt[256];
static handler *handlers[256];
static void (*second_does)(void);
static bool second_runs;
static u64 tsc_per_us;
static u8 pool[POOL_PAGES][PAGE] PAGE_ALIGNED;
static u32 pool_used;

static void put(char c)
{
	while (!(in8(SERIAL + 5) & 0x20))
		;
	out8(SERIAL, c);
}

static void put_number(u64 value, u32 base)
{
	char digits[24];
	int n = 0;

	do {
		digits[n++] = "0123456789abcdef"[value % base];
		value /= base;
	} while (value);
	while (n)
		put(digits[--n]);
}

static void put_formatted(const char *format, va_list *values)
{
	for (; *format; format++) {
		bool is_long = false;

		if (*format != '%') {
			put(*format);
			continue;
		}
		if (*++format == 'l') {
			is_long = true;
			format++;
		}
		if (*format == 's') {
			for (const char *s = va_arg(*values, const char *); *s; s++)
				put(*s);
			continue;
		}
		put_number(is_long ? va_arg(*values, u64) : va_arg(*values, u32), *format == 'x' ? 16 : 10);
	}
}

static void put_line(const char *before, const char *name, const char *format, va_list *values)
{
	u64 flags = flags_off();
	bool named = *name;

	for (; *before; before++)
		put(*before);
	for (; *name; name++)
		put(*name);
	for (const char *between = format && named ? ": " : ""; *between; between++)
		put(*between);
	if (format)
		put_formatted(format, values);
	put('\n');
	flags_back(flags);
}

void say(const char *format, ...)
{
	va_list values;

	va_start(values, format);
	put_line("", "", format, &values);
	va_end(values);
}

void check(const char *name, bool good, const char *why, ...)
{
	va_list values;

	if (good) {
		put_line("ok ", name, NULL, NULL);
		return;
	}
	va_start(values, why);
	put_line("FAIL ", name, why, &values);
	va_end(values);
}

void skip(const char *name, const char *why)
{
	say("skip %s: %s", name, why);
}

void die(const char *why, ...)
{
	va_list values;

	va_start(values, why);
	put_line("FAIL ", "the program", why, &values);
	va_end(values);
	end();
}

void end(void)
{
	say("END");
	while (!(in8(SERIAL + 5) & 0x40))
		;
	out8(RESET, 0x02);
	out8(RESET, 0x06);
	for (;;)
		asm volatile("cli; hlt");
}

void on(u8 vector, handler *does)
{
	WRITE(handlers[vector], does);
}

void interrupt(struct frame *frame)
{
	u64 cr2;

	if (handlers[frame->vector]) {
		handlers[frame->vector](frame);
		return;
	}
	asm volatile("movq %%cr2, %0" : "=r"(cr2));
	die("vector %lu, error %lx, at %lx, flags %lx, stack %lx, CR2 %lx, CPU %u", frame->vector, frame->error,
	    frame->rip, frame->flags, frame->rsp, cr2, cpu());
}

struct table_pointer idt_pointer(void)
{
	return (struct table_pointer){ sizeof(idt) - 1, (u64)idt };
}

static void load_idt(void)
{
	struct table_pointer pointer = idt_pointer();

	for (u32 i = 0; i < 256; i++) {
		u64 at = (u64)vectors + 16 * i;

		idt[i] = (struct gate){ at, 0x18, 0x8e00, at >> 16, at >> 32, 0 };
	}
	asm volatile("lidt %0" ::"m"(pointer));
}

static u32 lapic_read(u32 offset)
{
	return *(volatile u32 *)(LAPIC + offset);
}

static void lapic_write(u32 offset, u32 value)
{
	*(volatile u32 *)(LAPIC + offset) = value;
}

u32 cpu(void)
{
	return lapic_read(0x20) >> 24;
}

void send_ipi(u32 to, u32 vector_and_mode)
{
	u64 flags = flags_off();

	lapic_write(0x310, to << 24);
	lapic_write(0x300, 0x4000 | vector_and_mode);
	flags_back(flags);
}

bool ipi_is_pending(u8 vector)
{
	return lapic_read(0x200 + vector / 32 * 0x10) >> vector % 32 & 1;
}

void eoi(void)
{
	lapic_write(0xb0, 0);
}

u64 now_us(void)
{
	return rdtsc() / tsc_per_us;
}

/* By the timer of ACPI, which counts the same everywhere. */
static void calibrate(void)
{
	u32 ticks, from = in32(PM_TIMER);
	u64 tsc = rdtsc();

	do {
		ticks = (in32(PM_TIMER) - from) & 0xffffff;
	} while (ticks < 5 * PM_TIMER_KHZ);
	tsc_per_us = (rdtsc() - tsc) * PM_TIMER_KHZ / ticks / 1000;
	if (!tsc_per_us)
		tsc_per_us = 1;
}

void *page(void)
{
	if (pool_used == POOL_PAGES)
		die("no pages left");
	return pool[pool_used++];
}

/* A page table that leaves the first 4 GiB as they are, as nested ones must: with the user's rights. */
u64 *identity(void)
{
	u64 *root = page(), *gigabytes = page();

	root[0] = (u64)gigabytes | P | W | U;
	for (u64 i = 0; i < 4; i++)
		gigabytes[i] = i << 30 | P | W | U | LARGE;
	return root;
}

/* Return the entry of an address, at level 1 (4 KiB), 2 (2 MiB), …; make the tables above it. */
u64 *entry(u64 *root, u64 address, int level)
{
	u64 *table = root;

	for (int l = 4;; l--) {
		u64 *at = &table[address >> (3 + 9 * l) & 511];

		if (l == level)
			return at;
		if (!(*at & P))
			*at = (u64)page() | P | W | U;
		table = (u64 *)(*at & 0xffffffffff000);
	}
}

void map(u64 *root, u64 address, const void *to, u64 flags)
{
	*entry(root, address, 1) = (u64)to | flags;
}

void start_second(void (*does)(void))
{
	u64 start;

	for (const char *from = trampoline; from < trampoline_end; from++)
		*(volatile char *)(LOW_PAGE + (from - trampoline)) = *from;
	second_does = does;
	send_ipi(1, 0x500); /* INIT */
	for (start = now_us(); now_us() < start + 10000;)
		pause();
	send_ipi(1, 0x600 | LOW_PAGE / PAGE); /* start-up */
	for (start = now_us(); !READ(second_runs);)
		if (now_us() > start + 5000000)
			die("CPU 1 does not start");
}

/* From start.S, on each CPU. */
void enter(u32 number)
{
	if (number == 0) {
		out8(0x21, 0xff); /* the old interrupt controllers */
		out8(0xa1, 0xff);
		calibrate();
	}
	load_idt();
	lapic_write(0xf0, 0x1ff);
	if (number == 0) {
		run();
		end();
	}
	WRITE(second_runs, true);
	second_does();
	for (;;)
		asm volatile("hlt");
}

u64 interrupts, nmis;

void count_interrupt(struct frame *frame)
{
	(void)frame;
	interrupts++;
	eoi();
}

void count_nmi(struct frame *frame)
{
	(void)frame;
	nmis++;
}
