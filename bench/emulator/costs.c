// SPDX-License-Identifier: GPL-2.0-only
// Runs in a guest: what a VM exit costs, what it costs to touch pages again after one, and work to be interrupted.
#define _GNU_SOURCE
#include <cpuid.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGES = 1024, PAGE = 4096 };

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void exit_once(void)
{
	unsigned a, b, c, d;

	__cpuid(0, a, b, c, d);
}

static void touch(volatile char *pages)
{
	for (int i = 0; i < PAGES; i++)
		pages[(long)i * PAGE]++;
}

int main(int argc, char **argv)
{
	volatile char *pages =
		mmap(NULL, (long)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	long rounds = argc > 2 ? atol(argv[2]) : 0;
	double begin, exits, touches, both;

	if (pages == MAP_FAILED || argc < 3)
		return 2;
	// Small pages: large ones would be few.
	madvise((void *)pages, (long)PAGES * PAGE, MADV_NOHUGEPAGE);
	touch(pages);
	if (!strcmp(argv[1], "work")) {
		for (long i = 0; i < rounds; i++)
			touch(pages);
		return 0;
	}
	begin = now_us();
	for (long i = 0; i < rounds; i++)
		exit_once();
	exits = (now_us() - begin) / rounds;
	begin = now_us();
	for (long i = 0; i < rounds; i++)
		touch(pages);
	touches = (now_us() - begin) / rounds;
	begin = now_us();
	for (long i = 0; i < rounds; i++) {
		exit_once();
		touch(pages);
	}
	both = (now_us() - begin) / rounds;
	printf("%.3f %.4f\n", exits, (both - exits - touches) / PAGES);
	return 0;
}
