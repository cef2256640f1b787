// SPDX-License-Identifier: GPL-2.0-only
/*
 * What an ordinate costs (bpf/order_sbco.h): how many stand ahead of one in a run queue that is ordered by virtual time. For each length of the queue, ns per
 * decision: the first leaves the queue, comes back behind, and the ordinates of `ASKED` others are wanted. Three ways:
 *
 *   walk   the queue is the kernel's, as it is; its tasks are visited one after the other, with the queue's lock taken for each, up to 2/3 of the length
 *   tree   beside the kernel's queue a tree that knows its subtrees' sizes (a treap here), with a lock of its own, is kept up to date
 *   array  beside it an array of keys is kept up to date, and the smaller ones are counted
 *
 * cc -O2 -o build/ordinate bench/ordinate/ordinate.c && build/ordinate
 */
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Siblings that are looked for in one decision: most are asleep, run, or wait in a queue that is too short. */
enum { LONGEST = 64, ASKED = 2, ROUNDS = 200000, APART = 4096 + 64 };

static atomic_flag lock = ATOMIC_FLAG_INIT;

static void take(void)
{
	while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire))
		;
}

static void give(void)
{
	atomic_flag_clear_explicit(&lock, memory_order_release);
}

/* A task: far from the next, as structs of tasks are. */
struct task {
	uint64_t key;
	int pid;
	struct task *next;
	struct task *left, *right;
	unsigned size, priority;
};

static char memory[LONGEST * APART];
static struct task *first, *root;
static uint64_t keys[LONGEST];
static volatile unsigned sink;

static struct task *task(int i)
{
	return (struct task *)(memory + (size_t)i * APART);
}

/* The kernel's own queue, which all three have: not measured. */
static void list_insert(struct task *t)
{
	struct task **at = &first;

	while (*at && (*at)->key <= t->key)
		at = &(*at)->next;
	t->next = *at;
	*at = t;
}

static unsigned walk(const struct task *wanted, unsigned most)
{
	struct task *t = first;
	unsigned ahead = 0;

	while (t && ahead < most) {
		take();
		if (t->pid == wanted->pid) {
			give();
			break;
		}
		t = t->next;
		give();
		ahead++;
	}
	return ahead;
}

static unsigned size_of(const struct task *t)
{
	return t ? t->size : 0;
}

static void resize(struct task *t)
{
	t->size = 1 + size_of(t->left) + size_of(t->right);
}

static struct task *merge(struct task *a, struct task *b)
{
	if (!a || !b)
		return a ? a : b;
	if (a->priority > b->priority) {
		a->right = merge(a->right, b);
		resize(a);
		return a;
	}
	b->left = merge(a, b->left);
	resize(b);
	return b;
}

static void split(struct task *t, uint64_t key, struct task **low, struct task **high)
{
	if (!t) {
		*low = *high = NULL;
	} else if (t->key <= key) {
		split(t->right, key, &t->right, high);
		*low = t;
		resize(t);
	} else {
		split(t->left, key, low, &t->left);
		*high = t;
		resize(t);
	}
}

static void tree_remove_first(void)
{
	struct task **at = &root;

	take();
	while ((*at)->left) {
		(*at)->size--;
		at = &(*at)->left;
	}
	*at = (*at)->right;
	give();
}

static void tree_insert(struct task *t)
{
	struct task *low, *high;

	take();
	t->left = t->right = NULL;
	t->size = 1;
	split(root, t->key, &low, &high);
	root = merge(merge(low, t), high);
	give();
}

static unsigned tree_ordinate(uint64_t key)
{
	unsigned ahead = 0;
	struct task *t;

	take();
	for (t = root; t;) {
		if (t->key < key) {
			ahead += size_of(t->left) + 1;
			t = t->right;
		} else {
			t = t->left;
		}
	}
	give();
	return ahead;
}

static unsigned array_ordinate(uint64_t key, unsigned length)
{
	unsigned ahead = 0;

	for (unsigned i = 0; i < length; i++)
		ahead += keys[i] < key;
	return ahead;
}

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

enum way { NOTHING, WALK, TREE, ARRAY, WAYS };

/* ns per decision, what changes the kernel's own queue included. */
static double measure(enum way way, unsigned length)
{
	double begin;

	srand(1);
	first = root = NULL;
	for (unsigned i = 0; i < length; i++) {
		struct task *t = task(i);

		t->pid = i;
		t->key = rand() % 16000;
		t->priority = rand();
		list_insert(t);
		tree_insert(t);
		keys[i] = t->key;
	}
	begin = now_ns();
	for (unsigned round = 0; round < ROUNDS; round++) {
		struct task *t = first;

		first = t->next;
		if (way == TREE)
			tree_remove_first();
		t->key += 12000 + rand() % 8000;
		list_insert(t);
		if (way == TREE)
			tree_insert(t);
		if (way == ARRAY)
			keys[t->pid] = t->key;
		for (int i = 0; i < ASKED; i++) {
			struct task *wanted = task(rand() % length);

			if (way == WALK)
				sink += walk(wanted, (2 * length + 2) / 3);
			else if (way == TREE)
				sink += tree_ordinate(wanted->key);
			else if (way == ARRAY)
				sink += array_ordinate(wanted->key, length);
		}
	}
	return (now_ns() - begin) / ROUNDS;
}

int main(void)
{
	printf("%6s %8s %8s %8s   ns per decision, %d ordinates each\n", "length", "walk", "tree", "array", ASKED);
	for (unsigned length = 2; length <= LONGEST; length *= 2) {
		double least[WAYS];

		/* The best of a few: what else the machine does only adds. */
		for (int way = 0; way < WAYS; way++) {
			least[way] = measure(way, length);
			for (int again = 0; again < 4; again++) {
				double ns = measure(way, length);

				if (ns < least[way])
					least[way] = ns;
			}
		}
		printf("%6u %8.0f %8.0f %8.0f\n", length, least[WALK] - least[NOTHING], least[TREE] - least[NOTHING],
		       least[ARRAY] - least[NOTHING]);
	}
	return 0;
}
