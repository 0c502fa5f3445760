/*
 * The only program of the guest. The kernel starts it as /init, and it runs what the word `run=` of
 * the kernel's command line names: PROGRAM,COUNT[-COUNT] joined by colons. For each program and
 * count it prints a line:
 *
 *   row PROGRAM COUNT CALLS FLUSHES NANOSECONDS WRONG
 *
 * CALLS and FLUSHES are the rows CAL and TLB of /proc/interrupts. If QEMU counts instructions, a
 * nanosecond is an instruction. WRONG counts stale reads and lost or late writes. On AArch64, CALLS
 * is the row IPI1, and FLUSHES are those of the interrupts that the engine has sent.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#ifdef __x86_64__
#include <x86intrin.h>
#define CALLS "CAL:"
#define now_ticks __rdtsc
#define end_turn _mm_pause
#else
#define CALLS "IPI1:"
#define now_ticks now_ns
#define end_turn() asm volatile("yield")
#endif

#define EXPOSE_WITHOUT_MAIN
#include "../../../crates/sanitizer/expose.c"

#define PAGE 4096ul
#define TABLE (2ul << 20) /* the bytes that a page table maps */
#define ARENA 8           /* the pages that a purge drops */
#define RECLAIMED 256
#define PAGED 1024
#define CPUS_MAX 255

#include "counts.c"

static int cpus;
static volatile long *shared_pages;
static long rounds;
static atomic_long *wrong; /* shared by all processes */
static atomic_int ready;
static atomic_bool done;

static void pin(long cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu % cpus, &set);
	sched_setaffinity(0, sizeof(set), &set); /* fails if the CPU is unplugged */
}

static void *map_at(void *place, unsigned long bytes)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | (place ? MAP_FIXED : 0);
	void *found = mmap(place, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);

	if (found == MAP_FAILED)
		fail("mmap");
	return found;
}

static void touch(void *place, int pages)
{
	for (int i = 0; i < pages; i++)
		((volatile char *)place)[i * PAGE] = 1;
}

static void purge(void *arena)
{
	touch(arena, ARENA);
	madvise(arena, ARENA * PAGE, MADV_DONTNEED);
}

static void run_threads(int count, void *(*work)(void *))
{
	pthread_t threads[CPUS_MAX];

	for (long i = 0; i < count; i++)
		if (pthread_create(&threads[i], NULL, work, (void *)i))
			fail("pthread_create");
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
}

/* One byte from hand to hand. */
static void give(int pipe)
{
	if (write(pipe, "", 1) != 1)
		fail("write");
}

static void take(int pipe)
{
	char byte;

	if (read(pipe, &byte, 1) != 1)
		fail("read");
}

static void new_pipe(int ends[2])
{
	if (pipe(ends))
		fail("pipe");
}

/* Threads on all CPUs purge pages of their own. */

static void *purge_here(void *me)
{
	void *arena = map_at(NULL, ARENA * PAGE);

	pin((long)me);
	for (long i = 0; i < rounds; i++)
		purge(arena);
	return NULL;
}

static void *purge_everywhere(void *me)
{
	void *arena = map_at(NULL, ARENA * PAGE);

	for (long i = 0; i < rounds; i++) {
		pin((long)me + i);
		purge(arena);
	}
	return NULL;
}

static void run_purge(void) { run_threads(cpus, purge_here); }
static void run_purge_moving(void) { run_threads(cpus, purge_everywhere); }
static void run_alone_moving(void) { purge_everywhere(NULL); }

/* Thread 0 works; the threads on all other CPUs have used the space, and sleep. */

static int asleep[2];
static void (*work_of_first)(void);

static void *work_or_sleep(void *me)
{
	pin((long)me);
	ready++;
	if (me) {
		take(asleep[0]);
		return NULL;
	}
	while (ready < cpus)
		sched_yield();
	work_of_first();
	for (int i = 1; i < cpus; i++)
		give(asleep[1]);
	return NULL;
}

static void while_others_sleep(void (*work)(void))
{
	new_pipe(asleep);
	work_of_first = work;
	run_threads(cpus, work_or_sleep);
}

static void purge_often(void) { purge_here(NULL); }

/* Each page is alone below its page table, which is freed with it. */
static void free_tables(void)
{
	for (long i = 0; i < rounds; i++) {
		char *space = mmap(NULL, 3 * TABLE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		char *page = (char *)(((uintptr_t)space + TABLE) & ~(TABLE - 1)) + PAGE;

		touch(map_at(page, PAGE), 1);
		munmap(space, 3 * TABLE);
	}
}

static void run_purge_idle(void) { while_others_sleep(purge_often); }
static void run_tables_idle(void) { while_others_sleep(free_tables); }

/* Processes. */

static void *fork_and_exec(void *unused)
{
	for (long i = 0; i < rounds; i++) {
		pid_t child = fork();

		if (!child) {
			execl("/init", "nothing", NULL);
			_exit(1);
		}
		waitpid(child, NULL, 0);
	}
	return unused;
}

static void run_exec_threads(void) { run_threads(2, fork_and_exec); }

static void run_exec(void)
{
	for (int i = 0; i < cpus; i++)
		if (!fork()) {
			fork_and_exec(NULL);
			_exit(0);
		}
	while (wait(NULL) > 0)
		;
}

static void *use_and_sleep(void *me)
{
	pin((long)me);
	touch(map_at(NULL, PAGE), 1);
	ready++;
	pause();
	return NULL;
}

/* A process ends whose threads sleep on all CPUs. */
static void run_exit(void)
{
	for (long i = 0; i < rounds; i++) {
		pid_t child = fork();

		if (!child) {
			pthread_t thread;

			for (long cpu = 1; cpu < cpus; cpu++)
				pthread_create(&thread, NULL, use_and_sleep, (void *)cpu);
			pin(0);
			while (ready < cpus - 1)
				sched_yield();
			_exit(0);
		}
		waitpid(child, NULL, 0);
	}
}

/* Turns: from user code to idle and back, or from one process to another. */

static int turns[CPUS_MAX / 2][2][2];

static void take_turns(int pair, int side)
{
	for (long i = 0; i < rounds; i++) {
		if (side)
			take(turns[pair][0][0]);
		else
			give(turns[pair][0][1]);
		if (side)
			give(turns[pair][1][1]);
		else
			take(turns[pair][1][0]);
	}
}

static void *turn_on_own_cpu(void *me)
{
	pin((long)me);
	take_turns((long)me / 2, (long)me % 2);
	return NULL;
}

static void run_turns_idle(void)
{
	for (int i = 0; i < cpus / 2; i++)
		new_pipe(turns[i][0]), new_pipe(turns[i][1]);
	run_threads(cpus / 2 * 2, turn_on_own_cpu);
}

static void *purge_until_done(void *unused)
{
	void *arena = map_at(NULL, ARENA * PAGE);

	pin(0);
	while (!done)
		purge(arena);
	return unused;
}

static void run_turns_purge(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, purge_until_done, NULL);
	run_turns_idle();
	done = true;
	pthread_join(thread, NULL);
}

static void run_turns_processes(void)
{
	new_pipe(turns[0][0]), new_pipe(turns[0][1]);
	pin(0);
	if (!fork()) {
		take_turns(0, 1);
		_exit(0);
	}
	take_turns(0, 0);
	wait(NULL);
}

static void run_naps(void)
{
	const struct timespec nap = { .tv_nsec = 1000 };

	pin(0);
	for (long i = 0; i < rounds; i++)
		nanosleep(&nap, NULL);
}

/* Threads that hold a lock of the space while they flush. */

static void *map_and_unmap(void *unused)
{
	for (long i = 0; i < rounds; i++) {
		void *place = map_at(NULL, 16 * PAGE);

		touch(place, 16);
		munmap(place, 16 * PAGE);
	}
	return unused;
}

static void *protect_and_allow(void *me)
{
	void *page = map_at(NULL, PAGE);

	pin((long)me);
	for (long i = 0; i < rounds; i++) {
		touch(page, 1);
		mprotect(page, PAGE, PROT_READ);
		mprotect(page, PAGE, PROT_READ | PROT_WRITE);
	}
	return NULL;
}

static void protect_often(void) { protect_and_allow(NULL); }

static void run_mmap(void) { run_threads(8, map_and_unmap); }
static void run_mprotect(void) { run_threads(cpus, protect_and_allow); }
static void run_protect_idle(void) { while_others_sleep(protect_often); }

/* Pages that all CPUs read go to the swap space. */

static atomic_int arrived;

/* Returns when all threads have called it for the `turn`th time. */
static void meet(int turn)
{
	arrived++;
	while (arrived < turn * cpus)
		sched_yield();
}

static void *read_or_page_out(void *me)
{
	char *paged = (void *)shared_pages;

	pin((long)me);
	for (long i = 0; i < rounds; i++) {
		meet(2 * i + 1);
		for (int page = 0; page < RECLAIMED; page++)
			(void)*(volatile char *)(paged + page * PAGE);
		meet(2 * i + 2);
		if (!me)
			madvise(paged, RECLAIMED * PAGE, MADV_PAGEOUT);
	}
	return NULL;
}

static void run_reclaim(void)
{
	shared_pages = map_at(NULL, RECLAIMED * PAGE);
	touch((void *)shared_pages, RECLAIMED);
	run_threads(cpus, read_or_page_out);
}

/* The first two checks: pages are replaced or protected, and no other CPU uses an old one. */

static void run_replace(void) { *wrong += expose_replaced(cpus, rounds); }
static void run_protect(void) { *wrong += expose_protected(cpus, rounds); }

/* The third check: pages go to the swap space while threads write. Each has a word in each page. */

static void *write_or_page_out(void *me)
{
	uint64_t *paged = (uint64_t *)shared_pages, *expected = calloc(PAGED, sizeof(*expected));
	unsigned seed = (long)me + 1;

	pin((long)me);
	ready++;
	for (long n = 0; me ? !done : n < rounds; n++) {
		int i = rand_r(&seed) % (PAGED - 32);

		if (!me) {
			while (ready < cpus)
				sched_yield();
			madvise(paged + i * 512, 32 * PAGE, MADV_PAGEOUT);
			/* The frames that are free now. The next call flushes what this one has left. */
			memset(map_at(NULL, 32 * PAGE), 0xff, 32 * PAGE);
			continue;
		}
		if (((volatile uint64_t *)paged)[i * 512 + (long)me] != expected[i])
			++*wrong;
		((volatile uint64_t *)paged)[i * 512 + (long)me] = ++expected[i];
	}
	done = true;
	for (int i = 0; me && i < PAGED; i++)
		*wrong += paged[i * 512 + (long)me] != expected[i];
	free(expected);
	return NULL;
}

static void run_paging(void)
{
	shared_pages = map_at(NULL, PAGED * PAGE);
	/* Pages of zeros do not go to the swap space. */
	touch((void *)((char *)shared_pages + (cpus + 1) * 8), PAGED - 1);
	run_threads(cpus, write_or_page_out);
}

#include "spaces.c"
#include "study.c"
#include "polled.c"

/* CPUs 1 to 3 are unplugged and plugged in again. */
static void run_hotplug(void)
{
	for (long i = 0; i < rounds * 6; i++) {
		char name[64];
		int file;

		sprintf(name, "/sys/devices/system/cpu/cpu%ld/online", 1 + i / 2 % 3);
		file = open(name, O_WRONLY);
		if (file < 0)
			continue;
		if (write(file, i % 2 ? "1" : "0", 1) != 1)
			++*wrong;
		close(file);
	}
}

static void run_storm(void);

static const struct program {
	const char *name;
	void (*run)(void);
	long in_storm; /* the count in the storm; 0 if it is not a part of it */
} programs[] = {
	{ "purge", run_purge, 200 },
	{ "purge-moving", run_purge_moving, 100 },
	{ "purge-idle", run_purge_idle, 100 },
	{ "tables-idle", run_tables_idle, 50 },
	{ "protect-idle", run_protect_idle, 0 },
	{ "alone-moving", run_alone_moving, 0 },
	{ "exec", run_exec, 20 },
	{ "exec-threads", run_exec_threads, 20 },
	{ "exit", run_exit, 20 },
	{ "turns-idle", run_turns_idle, 300 },
	{ "turns-purge", run_turns_purge, 300 },
	{ "turns-processes", run_turns_processes, 0 },
	{ "naps", run_naps, 0 },
	{ "mmap", run_mmap, 300 },
	{ "mprotect", run_mprotect, 200 },
	{ "mprotect-threaded", run_mprotect_threaded, 0 },
	{ "allocator", run_allocator, 0 },
	{ "sort-compute", run_sort_compute, 0 },
	{ "reclaim", run_reclaim, 50 },
	{ "replace", run_replace, 100 },
	{ "protect", run_protect, 30 },
	{ "paging", run_paging, 20 },
	{ "filters", run_filters, 50 },
	{ "compact", run_compact, 20 },
	{ "crowd", run_crowd, 0 },
#ifdef __x86_64__
	{ "ldt", run_ldt, 20 },
#endif
	{ "entries", run_entries, 0 },
	{ "polled-filters", run_polled_filters, 0 },
	{ "polled-modules", run_polled_modules, 0 },
	{ "polled-nmis", run_polled_nmis, 0 },
	{ "polled-seconds", run_polled_seconds, 0 },
	{ "hotplug", run_hotplug, 1 },
	{ "storm", run_storm, 0 },
};
#define PROGRAMS (sizeof(programs) / sizeof(*programs))

static void start(const struct program *program, long count)
{
	if (fork())
		return;
	rounds = count;
	program->run();
	_exit(0);
}

/* All programs at the same time, again and again, for `rounds` seconds. */
static void run_storm(void)
{
	uint64_t end = now_ns() + rounds * 1000000000ull;

	for (unsigned i = 0; i < PROGRAMS; i++)
		if (programs[i].in_storm && !fork()) {
			do {
				start(&programs[i], programs[i].in_storm);
				wait(NULL);
			} while (now_ns() < end);
			_exit(0);
		}
	while (wait(NULL) > 0)
		;
}

static void run(const struct program *program, long count)
{
	unsigned long calls = interrupts(CALLS), flushes = flushes_so_far();
	uint64_t start_ns = now_ns();
	int status;

	*wrong = 0;
	mark();
	start(program, count);
	wait(&status);
	mark();
	start_ns = now_ns() - start_ns;
	if (status)
		fail(program->name);
	printf("row %s %ld %lu %lu %lu %ld\n", program->name, count, interrupts(CALLS) - calls,
	       flushes_so_far() - flushes, start_ns, *wrong);
}

/* User mode has page tables of its own. */
static bool is_isolated(void)
{
	FILE *file = fopen("/proc/cpuinfo", "r");
	char line[4096];
	bool is = false;

	while (file && fgets(line, sizeof(line), file))
		is |= !strncmp(line, "flags", 5) && strstr(line, " pti ");
	return is;
}

static void switch_on(const char *fault)
{
	char name[64];
	int file;

	snprintf(name, sizeof(name), "/sys/kernel/debug/shootdown/%s", fault);
	file = open(name, O_WRONLY);
	if (file < 0 || write(file, "1", 1) != 1)
		fail(fault);
	close(file);
}

static void run_all(char *words)
{
	for (char *word = strtok(words, ":"); word; word = strtok(NULL, ":")) {
		char *count = strchr(word, ','), *last = count ? strchr(count, '-') : NULL;
		unsigned i = 0;

		if (!count) {
			switch_on(word);
			continue;
		}
		*count++ = 0;
		while (i < PROGRAMS && strcmp(word, programs[i].name))
			i++;
		if (i == PROGRAMS) {
			printf("no program `%s`\n", word);
			return;
		}
		for (long n = atol(count); n <= (last ? atol(last + 1) : atol(count)); n++)
			run(&programs[i], n);
	}
	print_counts();
	printf("end\n");
}

int main(int words, char **arguments)
{
	static char line[4096];
	char *run;
	int file;

	/* The programs that fork and exec start. */
	if (!strcmp(arguments[0], "nothing"))
		return 0;
	if (!strcmp(arguments[0], "allocate"))
		return allocate(atol(arguments[1]));
	if (!strcmp(arguments[0], "sort"))
		return sort();
	mkdir("/dev", 0755), mkdir("/proc", 0755), mkdir("/sys", 0755);
	mount("none", "/dev", "devtmpfs", 0, NULL);
	mount("none", "/proc", "proc", 0, NULL);
	mount("none", "/sys", "sysfs", 0, NULL);
	mount("none", "/sys/kernel/debug", "debugfs", 0, NULL);
	file = open("/dev/console", O_RDWR);
	dup2(file, 0), dup2(file, 1), dup2(file, 2);
	setvbuf(stdout, NULL, _IOLBF, 0);
	cpus = sysconf(_SC_NPROCESSORS_ONLN);
	wrong = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	swap_to_ram();
	printf("booted %d CPUs%s\n", cpus, is_isolated() ? ", isolated" : "");
	file = open("/proc/cmdline", O_RDONLY);
	if (read(file, line, sizeof(line) - 1) > 0 && (run = strstr(line, "run="))) {
		run += 4;
		run[strcspn(run, " \n")] = 0;
		run_all(run);
	}
	sync();
	/* Bochs sends at the speed of the line. */
	tcdrain(1);
	return reboot(RB_POWER_OFF) + words;
}
