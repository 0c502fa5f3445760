// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The three benchmarks of study 003, whose shell starts programs and waits for all of them. Each
 * program is /init under another name.
 */

static void execute(const char *name)
{
	char count[24];

	sprintf(count, "%ld", rounds);
	execl("/init", name, count, NULL);
	_exit(1);
}

static void wait_for_all(void)
{
	int status;

	while (wait(&status) > 0)
		if (status)
			fail("a program of the study");
}

static void for_each_cpu(const char *name)
{
	for (int i = 0; i < cpus; i++)
		if (!fork())
			execute(name);
	wait_for_all();
}

/* On each CPU, a second thread sleeps, while a page is protected and allowed. */
static void run_mprotect_threaded(void)
{
	for (long cpu = 0; cpu < cpus; cpu++)
		if (!fork()) {
			pthread_t thread;

			if (pthread_create(&thread, NULL, use_and_sleep, (void *)cpu))
				fail("pthread_create");
			while (!ready)
				sched_yield();
			protect_and_allow((void *)cpu);
			_exit(0);
		}
	wait_for_all();
}

/*
 * The allocator's test: three times, allocate and free sizes from 100 to 500 MiB. This is the C
 * library's allocator, which maps each, writes its first page, and unmaps it.
 */
static int allocate(long sizes)
{
	for (long i = 0; i < 3 * sizes; i++) {
		void *volatile found = malloc((100ul << 20) + i % sizes * ((400ul << 20) / sizes));

		if (!found)
			return 1;
		free(found);
	}
	return 0;
}

static void run_allocator(void) { for_each_cpu("allocate"); }

/* A shell sorts a program of 100 KiB, `rounds` times. The study has 8 shells for each CPU. */

static int by_text(const void *one, const void *other)
{
	return strcmp(*(char *const *)one, *(char *const *)other);
}

static int sort(void)
{
	static char text[100 << 10], *lines[sizeof(text)];
	FILE *out = fopen("/dev/null", "w");
	long bytes = read(open("/init", O_RDONLY), text, sizeof(text) - 1), count = 0;

	if (bytes <= 0 || !out)
		return 1;
	for (long i = 0; i < bytes; i++)
		if (!text[i])
			text[i] = ' ';
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
		lines[count++] = line;
	qsort(lines, count, sizeof(*lines), by_text);
	for (long i = 0; i < count; i++)
		fprintf(out, "%s\n", lines[i]);
	return fclose(out);
}

static void run_sort_compute(void)
{
	for (int i = 0; i < 8 * cpus; i++)
		if (!fork()) {
			for (long n = 0; n < rounds; n++) {
				if (!fork())
					execute("sort");
				wait_for_all();
			}
			_exit(0);
		}
	wait_for_all();
}
