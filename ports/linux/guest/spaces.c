/*
 * Checks of several spaces, and of what a CPU loads with a space. A part of init.c.
 */
#ifdef __x86_64__
#include <asm/ldt.h>
#endif
#include <sys/syscall.h>

#define MOVED 256
#define FORGOTTEN 40
#define CROWD 400

/*
 * Pages of several short-lived processes move while they write to them. The kernel
 * gathers their flushes in one batch.
 */

/*
 * Drops this CPU's TLB, by a flush of more pages than are worth flushing one by one. What a CPU reads
 * through an old entry agrees with what it wrote through it; so this check looks again afterwards.
 */
static void forget(void *forgotten)
{
	touch(forgotten, FORGOTTEN);
	mprotect(forgotten, FORGOTTEN * PAGE, PROT_READ);
	mprotect(forgotten, FORGOTTEN * PAGE, PROT_READ | PROT_WRITE);
}

static void write_and_exit(long me)
{
	volatile uint64_t *moved = map_at(NULL, MOVED * PAGE);
	void *forgotten = map_at(NULL, FORGOTTEN * PAGE);
	bool is_lost = false;

	pin(me);
	for (uint64_t n = 1; n < 20; n++) {
		for (int i = 0; i < MOVED; i++) {
			is_lost |= moved[i * 512] != n - 1;
			moved[i * 512] = n;
		}
		forget(forgotten);
	}
	*wrong += is_lost;
	_exit(0);
}

static void run_compact(void)
{
	volatile bool *is_done = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int file = open("/proc/sys/vm/compact_memory", O_WRONLY);

	for (long cpu = 1; cpu < cpus; cpu++)
		if (!fork())
			for (;;) {
				if (!fork())
					write_and_exit(cpu);
				wait(NULL);
				if (*is_done)
					_exit(0);
			}
	for (long i = 0; i < rounds; i++)
		if (write(file, "1", 1) != 1)
			fail("compact_memory");
	*is_done = true;
	while (wait(NULL) > 0)
		;
	close(file);
}

/*
 * More processes than ASIDs of 8 bits take turns, each with a page of its own at the same address.
 * Most are on one CPU, which meets equal ASIDs if the kernel takes more than there are.
 */
static void run_crowd(void)
{
	volatile long *page = map_at(NULL, PAGE);

	for (long me = 1; me <= CROWD; me++) {
		if (fork())
			continue;
		pin(me % 8 ? 0 : me / 8);
		for (long n = 0; n < rounds; n++) {
			*page = me * rounds + n;
			sched_yield();
			*wrong += *page != me * rounds + n;
			if (n % 4 == me % 4)
				madvise((void *)page, PAGE, MADV_DONTNEED);
		}
		_exit(0);
	}
	while (wait(NULL) > 0)
		;
}

#ifdef __x86_64__
/* The first thread changes an entry of the space's LDT; threads on all other CPUs read it. */

static atomic_long entry_limit, entries_read;

static long limit_of_entry(void)
{
	unsigned limit = 0;

	/* Entry 0 of the LDT, for user mode. Without such an entry, `limit` stays. */
	asm volatile("lsl %1, %0" : "+r"(limit) : "r"(7) : "cc");
	return limit;
}

static void *change_or_read_entry(void *me)
{
	pin((long)me);
	for (long n = 1; n <= rounds; n++) {
		struct user_desc entry = { .limit = n, .seg_32bit = 1, .useable = 1 };

		if (me) {
			while (entry_limit < n)
				;
			*wrong += limit_of_entry() != n;
			entries_read++;
			continue;
		}
		if (syscall(SYS_modify_ldt, 0x11, &entry, sizeof(entry)))
			fail("modify_ldt");
		entry_limit = n;
		while (entries_read < n * (cpus - 1))
			sched_yield();
	}
	return NULL;
}

static void run_ldt(void) { run_threads(cpus, change_or_read_entry); }
#endif
