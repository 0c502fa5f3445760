/*
 * Programs around a thread that polls in user mode on the last CPU, which the kernel's command line
 * isolates, while the others make the kernel change its own pages. A part of init.c.
 *
 * For each program and count there is one more line. INTERRUPTS are all that the last CPU takes,
 * CALLS and FLUSHES its rows CAL and TLB of /proc/interrupts. A gap is the time between two turns
 * of the poll; GAPS count those of at least 1 µs, 10 µs, 100 µs and 1 ms.
 *
 *   row PROGRAM COUNT INTERRUPTS CALLS FLUSHES TURNS GAPS GAPS GAPS GAPS LONGEST_NS
 */
#include <errno.h>
#include <linux/filter.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define GAPS 4

/* What the poll and the storm share. */
static volatile struct {
	bool is_ready, is_counted, is_done;
	uint64_t turns, gaps[GAPS], longest;
} *polled;

/* A process, whose space nobody else flushes. */
static void poll_until_done(void)
{
	const struct sched_param priority = { .sched_priority = 1 };
	uint64_t last;

	pin(cpus - 1);
	/* Without the timer of Linux's server for fair threads, which comes each second. */
	if (sched_setscheduler(0, SCHED_FIFO, &priority))
		fail("SCHED_FIFO");
	polled->is_ready = true;
	while (!polled->is_counted)
		;
	last = now_ticks();
	while (!polled->is_done) {
		uint64_t now, gap;

		/* Ends the turn of this CPU, if all share one thread of the host. It takes long. */
		if (polled->turns % 256 == 0)
			end_turn();
		now = now_ticks();
		gap = now - last;
		last = now;
		polled->turns++;
		if (gap > polled->longest)
			polled->longest = gap;
		/* The emulated counter counts nanoseconds. */
		for (uint64_t i = 0, least = 1000; i < GAPS && gap >= least; i++, least *= 10)
			polled->gaps[i]++;
	}
}

struct taken {
	unsigned long all, calls, flushes;
};

/* Reads what a CPU has taken of each row of /proc/interrupts. */
static struct taken taken_by(int cpu)
{
	FILE *file = fopen("/proc/interrupts", "r");
	struct taken taken = {};
	char line[4096];

	while (file && fgets(line, sizeof(line), file)) {
		char *name = line + strspn(line, " "), *at = strchr(name, ':'), *end;
		unsigned long count = 0;

		if (!at++)
			continue;
		for (int i = 0; i <= cpu; i++, at = end) {
			count = strtoul(at, &end, 10);
			if (end == at)
				count = 0; /* a row of the machine, not of CPUs */
		}
		taken.all += count;
		taken.calls += strncmp(name, "CAL", 3) ? 0 : count;
		taken.flushes += strncmp(name, "TLB", 3) ? 0 : count;
	}
	if (file)
		fclose(file);
	return taken;
}

static void while_polled(const char *name, void (*storm)(void))
{
	struct taken before, after;
	pid_t poll;

	polled = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (polled == MAP_FAILED)
		fail("mmap");
	pin(0);
	poll = fork();
	if (!poll) {
		poll_until_done();
		_exit(0);
	}
	while (!polled->is_ready)
		usleep(1000);
	/* The timer of the last CPU stops. */
	sleep(1);
	before = taken_by(cpus - 1);
	polled->is_counted = true;
	storm();
	after = taken_by(cpus - 1);
	polled->is_done = true;
	waitpid(poll, NULL, 0);
	printf("row %s %ld %lu %lu %lu %lu", name, rounds, after.all - before.all,
	       after.calls - before.calls, after.flushes - before.flushes, polled->turns);
	for (int i = 0; i < GAPS; i++)
		printf(" %lu", polled->gaps[i]);
	printf(" %lu\n", polled->longest);
}

/* A program for packets that keeps their first `length` bytes. The kernel compiles it. */
static void attach_filter(int socket, unsigned length)
{
	struct sock_filter code[] = { BPF_STMT(BPF_RET | BPF_K, length) };
	struct sock_fprog program = { .len = 1, .filter = code };

	if (setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)))
		fail("SO_ATTACH_FILTER");
}

static void detach_filter(int socket)
{
	if (setsockopt(socket, SOL_SOCKET, SO_DETACH_FILTER, &(int){ 0 }, sizeof(int)))
		fail("SO_DETACH_FILTER");
}

static void new_sockets(int ends[2])
{
	if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends))
		fail("socketpair");
}

static void change_filters(long count)
{
	int ends[2];

	new_sockets(ends);
	for (long i = 0; i < count; i++) {
		attach_filter(ends[1], 1);
		detach_filter(ends[1]);
	}
	close(ends[0]), close(ends[1]);
}

/* Linux's own test of vmalloc, which runs while it is loaded, and then refuses. */
static void load_modules(long count)
{
	const char *options = "nr_threads=1 run_test_mask=1 test_loop_count=500 nr_pages=64";

	for (long i = 0; i < count; i++) {
		int file = open("/test_vmalloc.ko", O_RDONLY);

		if (!syscall(SYS_finit_module, file, options, 0) || errno != EAGAIN)
			fail("test_vmalloc.ko");
		close(file);
	}
}

static void interrupt_unmaskably(long count)
{
	for (long i = 0; i < count; i++) {
		int file = open("/proc/sysrq-trigger", O_WRONLY);

		/* Each CPU stores where it is. */
		if (write(file, "l", 1) != 1)
			fail("sysrq-trigger");
		close(file);
	}
}

static void change_filters_often(void) { change_filters(rounds); }
static void load_modules_often(void) { load_modules(rounds); }

/* `rounds` are seconds. */
static void change_everything(void)
{
	uint64_t end = now_ns() + rounds * 1000000000ull;

	while (now_ns() < end) {
		change_filters(50);
		load_modules(1);
	}
}

static void change_and_interrupt(void)
{
	for (long i = 0; i < rounds; i++) {
		change_filters(10);
		interrupt_unmaskably(1);
	}
}

static void run_polled_filters(void) { while_polled("polled-filters", change_filters_often); }
static void run_polled_modules(void) { while_polled("polled-modules", load_modules_often); }
static void run_polled_seconds(void) { while_polled("polled-seconds", change_everything); }
static void run_polled_nmis(void) { while_polled("polled-nmis", change_and_interrupt); }

/* System calls on the last CPU. */
static void run_entries(void)
{
	pin(cpus - 1);
	for (long i = 0; i < rounds; i++)
		syscall(SYS_getppid);
}

/*
 * The fourth check: the kernel compiles filters anew, at the addresses of those before. A thread on
 * each other CPU polls in user mode until it is done, then sends a packet through its filter, and
 * checks how much this one keeps.
 */

static int filtered[CPUS_MAX][2];
static atomic_int filters;
static atomic_int sent;

static unsigned kept_by(int filter) { return 1 + filter % 1000; }

static void *send_through_filters(void *me)
{
	int *ends = filtered[(long)me];
	char packet[2000] = {};

	pin((long)me);
	for (int i = 1; i <= rounds; i++) {
		while (filters < i)
			end_turn();
		if (send(ends[0], packet, sizeof(packet), 0) != sizeof(packet) ||
		    recv(ends[1], packet, sizeof(packet), MSG_DONTWAIT) != kept_by(i))
			++*wrong;
		sent++;
	}
	return NULL;
}

static void *compile_filters(void)
{
	pin(0);
	for (int i = 1; i <= rounds; i++) {
		for (int cpu = 1; cpu < cpus; cpu++)
			attach_filter(filtered[cpu][1], kept_by(i));
		filters = i;
		while (sent < i * (cpus - 1))
			sched_yield();
		for (int cpu = 1; cpu < cpus; cpu++)
			detach_filter(filtered[cpu][1]);
		/*
		 * By then, RCU has freed their code. Its pages get other contents. These are kept: a
		 * flush of this process would reach all CPUs.
		 */
		usleep(50000);
		memset(map_at(NULL, TABLE), 0xcc, TABLE);
	}
	return NULL;
}

static void *compile_or_send(void *me)
{
	return me ? send_through_filters(me) : compile_filters();
}

static void run_filters(void)
{
	for (int cpu = 1; cpu < cpus; cpu++)
		new_sockets(filtered[cpu]);
	run_threads(cpus, compile_or_send);
}
