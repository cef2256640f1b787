// SPDX-License-Identifier: GPL-2.0-only
/*
 * Provokes on purpose what the probe counts, so often and for so long: on the lab's host and in its guests.
 *
 *   everybody MASK                    all threads may run on these CPUs alone
 *   bursts CPU COUNT ON_US OFF_US [TID]
 *                                     after SIGUSR1, takes a CPU from all others, again and again; meanwhile the thread TID is before all others
 *   spins CPU COUNT PAUSES            chains of pause-loop exits: see below
 *   calls ipi|flush STILL_US          interrupts its sibling whenever that stands still; until SIGTERM
 *   shares CPU FILE PAGES             touches pages that it shares with whoever has that file; for ever
 *   passes FILE PAGES SECONDS         does that for so long, and prints how often
 *   rhythm RUN_US PERIOD_US           computes for so long at the beginning of each period, and sleeps for the rest; for ever
 *   drops PID HOW COUNT EVERY_US      is to have KVM drop what it has mapped of a VMM's memory, as cohort run does (scan), or by writing 1 or 4 to
 *                                     its clear_refs; prints how many ns one time took
 *   vms COUNT                         so many VMs, one after the other, each of a vCPU that enters its guest once
 *
 * Bursts and calls print when each began and ended, by the TSC, which a host and its guests have in common but for an offset; and how long it took, in ns.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#define PRIORITY 50
#define REST_US 5000
#define COMPUTE_NS 3000000
#define SPANS_MAX 10000

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void compute(uint64_t ns)
{
	uint64_t until = now_ns() + ns;

	while (now_ns() < until)
		;
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		fail("sched_setaffinity");
}

/* Threads that belong to a CPU stay there. */
static void everybody(unsigned long mask)
{
	struct dirent *process, *thread;
	DIR *processes = opendir("/proc"), *threads;
	char path[300];

	if (!processes)
		fail("/proc");
	while ((process = readdir(processes))) {
		if (!atoi(process->d_name))
			continue;
		snprintf(path, sizeof(path), "/proc/%s/task", process->d_name);
		threads = opendir(path);
		if (!threads)
			continue; /* it has ended */
		while ((thread = readdir(threads)))
			if (atoi(thread->d_name))
				syscall(SYS_sched_setaffinity, atoi(thread->d_name), sizeof(mask), &mask);
		closedir(threads);
	}
	closedir(processes);
}

struct span {
	uint64_t begin, end, ns;
};

static struct span spans[SPANS_MAX];

static void begin(struct span *span)
{
	span->ns = now_ns();
	span->begin = __rdtsc();
}

static void ends(struct span *span)
{
	span->end = __rdtsc();
	span->ns = now_ns() - span->ns;
}

static void print_spans(int count)
{
	struct span *span;

	for (span = spans; span < spans + count; span++)
		printf("%llu %llu %llu\n", (unsigned long long)span->begin, (unsigned long long)span->end,
		       (unsigned long long)span->ns);
}

static void bursts(int cpu, int count, uint64_t on_ns, int off_us, int first)
{
	struct sched_param param = { .sched_priority = PRIORITY }, below = { .sched_priority = PRIORITY - 1 },
			   none = {};
	sigset_t go;
	int i, signal;

	sigemptyset(&go);
	sigaddset(&go, SIGUSR1);
	sigprocmask(SIG_BLOCK, &go, NULL);
	/* First: on that CPU nobody else has a chance. */
	if (sched_setscheduler(0, SCHED_FIFO, &param))
		fail("sched_setscheduler");
	pin(cpu);
	puts("ready");
	fflush(stdout);
	sigwait(&go, &signal);
	if (first && sched_setscheduler(first, SCHED_FIFO, &below))
		fail("sched_setscheduler");
	for (i = 0; i < count; i++) {
		if (i)
			usleep(off_us);
		begin(&spans[i]);
		compute(on_ns);
		ends(&spans[i]);
	}
	if (first && sched_setscheduler(first, SCHED_OTHER, &none))
		fail("sched_setscheduler");
	print_spans(count);
}

static void spin(int pauses)
{
	while (pauses--)
		__builtin_ia32_pause();
}

/*
 * KVM catches a vCPU after so many PAUSEs, and after twice as many each time until its thread has slept. So five times as many are two exits, at 1 and
 * at 3; an interrupt on the way begins the count anew, and cannot put them off beyond 5. Then it computes, which ends the chain, and makes another one of
 * a single exit, at 4.
 */
static void spins(int cpu, int count, int pauses)
{
	pin(cpu);
	while (count--) {
		spin(5 * pauses);
		compute(COMPUTE_NS);
		spin(9 * pauses);
		usleep(REST_US);
	}
}

static volatile uint64_t beats;
static volatile sig_atomic_t ended;

static void *beat(void *unused)
{
	pin(1);
	for (;;)
		beats++;
	return unused;
}

static void end(int signal)
{
	(void)signal;
	ended = 1;
}

/* A call's end is when the caller can go on. */
static void calls(bool flush, uint64_t still_ns)
{
	volatile char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t now, last = 0, moved;
	bool called = true;
	pthread_t sibling;
	int count = 0;

	if (page == MAP_FAILED)
		fail("mmap");
	if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0))
		fail("membarrier");
	signal(SIGTERM, end);
	pin(0);
	if (pthread_create(&sibling, NULL, beat, NULL))
		fail("pthread_create");
	while (!beats)
		usleep(1000);
	puts("ready");
	fflush(stdout);
	moved = now_ns();
	while (!ended && count < SPANS_MAX) {
		now = now_ns();
		if (beats != last) {
			last = beats;
			moved = now;
			called = false;
		} else if (!called && now - moved >= still_ns) {
			called = true;
			begin(&spans[count]);
			if (flush) {
				*page = 1;
				madvise((void *)page, 4096, MADV_DONTNEED);
			} else {
				syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
			}
			ends(&spans[count++]);
		}
	}
	print_spans(count);
}

static volatile char *shared(const char *path, int pages)
{
	int file = open(path, O_RDWR | O_CREAT, 0600);
	volatile char *memory;

	if (file < 0 || ftruncate(file, pages * 4096L))
		fail(path);
	memory = mmap(NULL, pages * 4096L, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (memory == MAP_FAILED)
		fail("mmap");
	return memory;
}

static void touch(volatile char *memory, int pages)
{
	int i;

	for (i = 0; i < pages; i++)
		memory[i * 4096L]++;
}

/* Waits for nobody and calls nobody. */
static void shares(int cpu, const char *path, int pages)
{
	volatile char *memory = shared(path, pages);

	pin(cpu);
	for (;;) {
		touch(memory, pages);
		usleep(REST_US);
	}
}

static void passes(const char *path, int pages, int seconds)
{
	volatile char *memory = shared(path, pages);
	uint64_t until = now_ns() + seconds * 1000000000ULL;
	unsigned long count = 0;

	for (; now_ns() < until; count++)
		touch(memory, pages);
	printf("%lu\n", count);
}

static void rhythm(uint64_t run_ns, uint64_t period_ns)
{
	uint64_t next = now_ns();
	struct timespec until;

	for (;; next += period_ns) {
		until.tv_sec = next / 1000000000ULL;
		until.tv_nsec = next % 1000000000ULL;
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
		compute(run_ns);
	}
}

/* Of linux/fs.h since 6.7. */
struct scan {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, anyof, returned;
};
#define SCAN _IOWR('f', 16, struct scan)
#define ALL 0x7ffffffff000

static void drops(int pid, const char *how, int count, int every_us)
{
	struct scan scan = { .size = sizeof(scan), .flags = 1, .end = ALL }, arg;
	bool scans = !strcmp(how, "scan");
	uint64_t before, took = 0;
	char path[64];
	int file, i;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, scans ? "pagemap" : "clear_refs");
	file = open(path, scans ? O_RDONLY : O_WRONLY);
	if (file < 0)
		fail(path);
	for (i = 0; i < count; i++) {
		arg = scan;
		before = now_ns();
		if (scans ? ioctl(file, SCAN, &arg) < 0 : write(file, how, 1) != 1)
			fail(path);
		took += now_ns() - before;
		usleep(every_us);
	}
	printf("%llu\n", (unsigned long long)took / count);
}

/* There is no memory in it, so that it comes back at once. */
static void vms(int count)
{
	int kvm = open("/dev/kvm", O_RDWR), vm, vcpu, i;
	pid_t child;

	if (kvm < 0)
		fail("/dev/kvm");
	for (i = 0; i < count; i++) {
		child = fork();
		if (child < 0)
			fail("fork");
		if (!child) {
			vm = ioctl(kvm, KVM_CREATE_VM, 0);
			vcpu = vm < 0 ? -1 : ioctl(vm, KVM_CREATE_VCPU, 0);
			if (vcpu < 0)
				fail("KVM");
			ioctl(vcpu, KVM_RUN, 0);
			_exit(0);
		}
		waitpid(child, NULL, 0);
	}
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	int first = argc == 7 ? atoi(argv[6]) : 0;

	if (!strcmp(what, "everybody") && argc == 3)
		everybody(strtoul(argv[2], NULL, 0));
	else if (!strcmp(what, "bursts") && (argc == 6 || argc == 7) && atoi(argv[3]) <= SPANS_MAX)
		bursts(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]) * 1000ULL, atoi(argv[5]), first);
	else if (!strcmp(what, "spins") && argc == 5)
		spins(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
	else if (!strcmp(what, "calls") && argc == 4)
		calls(!strcmp(argv[2], "flush"), atoi(argv[3]) * 1000ULL);
	else if (!strcmp(what, "shares") && argc == 5)
		shares(atoi(argv[2]), argv[3], atoi(argv[4]));
	else if (!strcmp(what, "passes") && argc == 5)
		passes(argv[2], atoi(argv[3]), atoi(argv[4]));
	else if (!strcmp(what, "rhythm") && argc == 4)
		rhythm(atoi(argv[2]) * 1000ULL, atoi(argv[3]) * 1000ULL);
	else if (!strcmp(what, "drops") && argc == 6)
		drops(atoi(argv[2]), argv[3], atoi(argv[4]), atoi(argv[5]));
	else if (!strcmp(what, "vms") && argc == 3)
		vms(atoi(argv[2]));
	else
		return 2;
	return 0;
}
