/*
 * A program that exposes missing TLB flushes. One thread replaces pages, and takes the permission to
 * write away, while threads on all other CPUs use the pages. The frame of a replaced page is
 * used again at once, at another address, with another content.
 *
 *   cc -O1 -pthread expose.c -o expose
 *   ./expose [SECONDS [THREADS]]
 *
 * Prints how often a thread found an old page, and exits with 1 if one did. It needs POSIX threads,
 * mmap, munmap and mprotect; madvise and mremap are used where they exist. A kernel that repairs a
 * wrong access by a fault, or flushes more than it must, hides what it forgets: run the program
 * under `shootdown sanitize`.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPOSE_PAGE 4096ul
#define EXPOSE_TABLE (2ul << 20) /* the bytes that a page table maps */
#define EXPOSE_PAGES 16
#define EXPOSE_THREADS_MAX 512

static volatile uint64_t *exposed[EXPOSE_PAGES];
/* Page `i` has the version `settled[i]` if that is also `begun[i]`. */
static _Atomic uint64_t expose_begun[EXPOSE_PAGES], expose_settled[EXPOSE_PAGES];
static atomic_long expose_wrong;
static atomic_bool expose_done;
static long expose_rounds;
static void (*expose_write)(void);
static void (*expose_read)(void);

static void expose_pin(long cpu)
{
#ifdef CPU_SET
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set); /* fails if there is no such CPU */
#endif
	(void)cpu;
}

static void *expose_map(void *place)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | (place ? MAP_FIXED : 0);
	void *found = mmap(place, EXPOSE_PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);

	if (found == MAP_FAILED) {
		perror("mmap");
		_exit(2);
	}
	return found;
}

/* The other CPUs run on. */
static void expose_pause(void)
{
	const struct timespec pause = { .tv_nsec = 20000 };

	nanosleep(&pause, NULL);
}

/* Writers and readers of the first check: no reader finds a page that was replaced. */

static void expose_read_replaced(void)
{
	for (int i = 0; i < EXPOSE_PAGES; i++) {
		uint64_t version = expose_settled[i], found = *exposed[i];

		atomic_thread_fence(memory_order_acquire); /* the page is read before the version */
		if (expose_begun[i] == version && found != version)
			expose_wrong++;
	}
}

static void expose_replace(int i, unsigned how, volatile uint64_t *spare)
{
	void *page = (void *)exposed[i], *table = (void *)((uintptr_t)page & ~(EXPOSE_TABLE - 1));
	uint64_t version = ++expose_begun[i];

	switch (how % 4) {
#ifdef MADV_DONTNEED
	case 1:
		madvise(page, EXPOSE_PAGE, MADV_DONTNEED);
		break;
#endif
#ifdef MREMAP_FIXED
	case 2:
		*spare = 1;
		mremap((void *)spare, EXPOSE_PAGE, EXPOSE_PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, page);
		expose_map((void *)spare);
		break;
#endif
	case 3: /* its page table goes with it */
		munmap(table, EXPOSE_TABLE);
		*spare = ~version;
		mmap(table, EXPOSE_TABLE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		expose_map(page);
		break;
	default:
		expose_map(page);
	}
	/* The frame that is free now. */
	*spare = ~version;
	*exposed[i] = version;
	expose_settled[i] = version;
	munmap((void *)spare, EXPOSE_PAGE);
	expose_map((void *)spare);
}

static void expose_write_replaced(void)
{
	volatile uint64_t *spare = expose_map(NULL);
	unsigned seed = 1;

	for (long n = 0; n < expose_rounds; n++) {
		int i = rand_r(&seed) % EXPOSE_PAGES;

		expose_replace(i, rand_r(&seed) / 8, spare);
	}
	munmap((void *)spare, EXPOSE_PAGE);
}

/* Writers and readers of the second check: after mprotect, no thread writes any more. */

static void expose_count(void)
{
	atomic_fetch_add_explicit((_Atomic uint64_t *)exposed[0], 1, memory_order_relaxed);
}

static void expose_protect(void)
{
	void *page = (void *)exposed[0];

	for (long n = 0; n < expose_rounds; n++) {
		uint64_t before;

		mprotect(page, EXPOSE_PAGE, PROT_READ);
		before = *exposed[0];
		expose_pause();
		expose_wrong += *exposed[0] - before;
		mprotect(page, EXPOSE_PAGE, PROT_READ | PROT_WRITE);
		expose_pause();
	}
}

/* A page is away for a moment: the access is repeated until it is back. */
static void expose_again(int signal) { (void)signal; }

static void *expose_thread(void *me)
{
	expose_pin((long)me);
	if (me) {
		while (!expose_done)
			expose_read();
	} else {
		expose_write();
		expose_done = 1;
	}
	return NULL;
}

/* Runs a check of so many rounds. Returns how often a thread found an old page. */
static long expose_check(void (*write)(void), void (*read)(void), int threads, long rounds)
{
	pthread_t started[EXPOSE_THREADS_MAX];
	char *space = mmap(NULL, (EXPOSE_PAGES + 2) * EXPOSE_TABLE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *first = (char *)(((uintptr_t)space + EXPOSE_TABLE) & ~(EXPOSE_TABLE - 1));

	if (space == MAP_FAILED) {
		perror("mmap");
		_exit(2);
	}
	signal(SIGSEGV, expose_again);
	signal(SIGBUS, expose_again);
	for (int i = 0; i < EXPOSE_PAGES; i++) {
		exposed[i] = expose_map(first + i * (EXPOSE_TABLE + EXPOSE_PAGE));
		expose_begun[i] = expose_settled[i] = 0;
	}
	expose_wrong = expose_done = 0;
	expose_write = write, expose_read = read, expose_rounds = rounds;
	for (long i = 0; i < threads; i++)
		if (pthread_create(&started[i], NULL, expose_thread, (void *)i)) {
			perror("pthread_create");
			_exit(2);
		}
	for (int i = 0; i < threads; i++)
		pthread_join(started[i], NULL);
	munmap(space, (EXPOSE_PAGES + 2) * EXPOSE_TABLE);
	return expose_wrong;
}

static long expose_replaced(int threads, long rounds)
{
	return expose_check(expose_write_replaced, expose_read_replaced, threads, rounds);
}

static long expose_protected(int threads, long rounds)
{
	return expose_check(expose_protect, expose_count, threads, rounds);
}

#ifndef EXPOSE_WITHOUT_MAIN
int main(int count, char **arguments)
{
	long seconds = count > 1 ? atol(arguments[1]) : 10, wrong = 0, rounds = 0;
	long threads = count > 2 ? atol(arguments[2]) : sysconf(_SC_NPROCESSORS_ONLN);
	time_t end = time(NULL) + seconds;

	if (seconds < 1 || threads < 2 || threads > EXPOSE_THREADS_MAX) {
		fprintf(stderr, "expose: it needs 2 to %d threads, on as many CPUs, and a second\n"
				"try: expose 10 4\n", EXPOSE_THREADS_MAX);
		return 2;
	}
	do {
		wrong += expose_replaced(threads, 200) + expose_protected(threads, 50);
		rounds += 250;
	} while (time(NULL) < end);
	printf("%ld changes of pages, %ld uses of an old page\n", rounds, wrong);
	return wrong != 0;
}
#endif
