/* SPDX-License-Identifier: GPL-2.0-only */
/* What every program has: two CPUs in long mode, interrupts, words to say. A program is run() and what it calls. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define PAGE 4096
#define PAGE_ALIGNED __attribute__((aligned(PAGE)))
#define NORETURN __attribute__((noreturn))
#define FORMAT(n) __attribute__((format(printf, n, n + 1)))

/* The program; CPU 0 comes here first. */
void run(void);

/* Words. Numbers in formats are %lu, %lx, %u and %x; strings are %s. */
void say(const char *format, ...) FORMAT(1);
void check(const char *name, bool good, const char *why, ...) FORMAT(3);
void skip(const char *name, const char *why);
NORETURN void die(const char *why, ...) FORMAT(1);
NORETURN void end(void);

/* Interrupts: handlers are the same on both CPUs and in guests. One without a handler ends the program. */
struct frame {
	u64 r15, r14, r13, r12, r11, r10, r9, r8, rdi, rsi, rbp, rbx, rdx, rcx, rax;
	u64 vector, error, rip, cs, flags, rsp, ss;
};
typedef void handler(struct frame *);

/* Handlers that count what came, where another CPU sends it. */
extern u64 interrupts, nmis;
handler count_interrupt, count_nmi;
struct table_pointer {
	u16 limit;
	u64 base;
} __attribute__((packed));
void on(u8 vector, handler *does);
struct table_pointer idt_pointer(void);

#define BP 3
#define UD 6
#define GP 13
#define PF 14
#define NMI 2

/* The local APIC: ids are 0 and 1. */
#define IPI_NMI 0x400
u32 cpu(void);
void send_ipi(u32 to, u32 vector_and_mode);
bool ipi_is_pending(u8 vector);
void eoi(void);

/* CPU 1. */
void start_second(void (*does)(void));

/* Time. */
u64 now_us(void);
static inline u64 rdtsc(void)
{
	u32 low, high;
	asm volatile("rdtsc" : "=a"(low), "=d"(high)::"memory");
	return (u64)high << 32 | low;
}

/* Memory: pages of zeros, and page tables of any number of levels' entries, for guests and nested. */
#define P 1ul
#define W 2ul
#define U 4ul
#define LARGE 0x80ul
#define GLOBAL 0x100ul
#define NX (1ul << 63)
void *page(void);
u64 *identity(void);
u64 *entry(u64 *root, u64 address, int level);
void map(u64 *root, u64 address, const void *to, u64 flags);

static inline void out8(u16 port, u8 value)
{
	asm volatile("outb %0, %1" ::"a"(value), "Nd"(port));
}

static inline u8 in8(u16 port)
{
	u8 value;
	asm volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
	return value;
}

static inline u32 in32(u16 port)
{
	u32 value;
	asm volatile("inl %1, %0" : "=a"(value) : "Nd"(port));
	return value;
}

static inline u64 rdmsr(u32 msr)
{
	u32 low, high;
	asm volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(msr));
	return (u64)high << 32 | low;
}

static inline void wrmsr(u32 msr, u64 value)
{
	asm volatile("wrmsr" ::"c"(msr), "a"((u32)value), "d"((u32)(value >> 32)) : "memory");
}

static inline u32 cpuid_edx(u32 leaf)
{
	u32 a = leaf, b, c = 0, d;
	asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
	return d;
}

static inline u64 flags_off(void)
{
	u64 flags;
	asm volatile("pushfq; popq %0; cli" : "=r"(flags)::"memory");
	return flags;
}

static inline void flags_back(u64 flags)
{
	asm volatile("pushq %0; popfq" ::"r"(flags) : "memory", "cc");
}

#define IF 0x200ul

static inline void pause(void)
{
	asm volatile("pause" ::: "memory");
}

#define READ(x) (*(volatile __typeof__(x) *)&(x))
#define WRITE(x, value) (*(volatile __typeof__(x) *)&(x) = (value))
