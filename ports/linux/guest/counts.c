/* What both first programs of the guest read from the kernel, and its swap space. */

/* An instruction without an effect, at which a plugin of QEMU, paths.c or tlbi.c, writes its counts. */
#ifdef __x86_64__
#define mark() asm volatile("nopl 0x4d424c54(%%rax)" : : : "memory")
#else
#define mark() asm volatile("hint #127" : : : "memory")
#endif

static void fail(const char *what)
{
	perror(what);
	printf("the guest fails\n");
	reboot(RB_POWER_OFF);
	_exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

/* Returns the sum over all CPUs of a row of /proc/interrupts. */
static unsigned long interrupts(const char *row)
{
	FILE *file = fopen("/proc/interrupts", "r");
	unsigned long sum = 0;
	char line[4096];

	while (file && fgets(line, sizeof(line), file)) {
		char *at = line + strspn(line, " "), *end;

		if (strncmp(at, row, strlen(row)))
			continue;
		for (at += strlen(row);; at = end) {
			unsigned long count = strtoul(at, &end, 10);

			if (end == at)
				break;
			sum += count;
		}
	}
	if (file)
		fclose(file);
	return sum;
}

/* Returns the interrupts of the engine's flushes. */
static unsigned long flushes_so_far(void)
{
#ifdef __x86_64__
	return interrupts("TLB:");
#else
	FILE *file = fopen("/sys/kernel/debug/shootdown/counts", "r");
	unsigned long count = 0;
	char line[128];

	while (file && fgets(line, sizeof(line), file) && !sscanf(line, "interrupts_sent %lu", &count))
		;
	if (file)
		fclose(file);
	return count;
#endif
}

static void print_counts(void)
{
	FILE *file = fopen("/sys/kernel/debug/shootdown/counts", "r");
	char line[128];

	while (file && fgets(line, sizeof(line), file))
		printf("count %s", line);
}

/* Makes the RAM disk a swap space: the header that mkswap writes. */
static void swap_to_ram(void)
{
	static uint32_t header[PAGE / 4] = { [256] = 1 };
	int disk = open("/dev/ram0", O_RDWR);

	header[257] = lseek(disk, 0, SEEK_END) / PAGE - 1;
	memcpy((char *)header + PAGE - 10, "SWAPSPACE2", 10);
	if (pwrite(disk, header, PAGE, 0) != PAGE || close(disk) || swapon("/dev/ram0", 0))
		fail("swapon");
}
