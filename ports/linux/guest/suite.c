/*
 * Runs the programs of /list, one after the other, on an archive of Linux's selftests or of
 * stress-ng. The kernel starts it as /init. A line of /list is one of:
 *
 *   store FILE VALUE         writes to a file of the kernel
 *   SECONDS WORD WORD ...    runs a program, for at most so long
 *
 * Before a program, and after it:
 *
 *   enter WORD WORD ...
 *   took CALLS FLUSHES NANOSECONDS
 *   leave exit STATUS | leave signal NUMBER | leave timeout
 *
 * with the counts of init.c.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define CALLS "CAL:"
#define WORDS 32

#include "counts.c"

static void store(const char *name, const char *value)
{
	int file = open(name, O_WRONLY);

	if (file < 0 || write(file, value, strlen(value)) < 0)
		fail(name);
	close(file);
}

static void mount_at(const char *type, const char *place)
{
	mkdir(place, 01777);
	if (mount("none", place, type, 0, NULL))
		fail(place);
}

static void set_up(void)
{
	int file;

	mount_at("devtmpfs", "/dev");
	mount_at("tmpfs", "/dev/shm");
	mount_at("proc", "/proc");
	mount_at("sysfs", "/sys");
	mount_at("debugfs", "/sys/kernel/debug");
	mount_at("tmpfs", "/tmp");
	file = open("/dev/console", O_RDWR);
	dup2(file, 0), dup2(file, 1), dup2(file, 2);
	setvbuf(stdout, NULL, _IOLBF, 0);
	setenv("PATH", "/bin:/usr/bin", 1);
	setenv("HOME", "/tmp", 1);
	swap_to_ram();
}

static void run(long seconds, char **words)
{
	struct pollfd ends = { .events = POLLIN };
	unsigned long calls, flushes;
	uint64_t start_ns;
	pid_t child;
	int status;

	fflush(stdout);
	calls = interrupts(CALLS), flushes = flushes_so_far(), start_ns = now_ns();
	mark();
	child = fork();
	if (!child) {
		setsid();
		dup2(open("/dev/null", O_RDONLY), 0);
		if (chdir("/tmp"))
			_exit(126);
		execv(words[0], words);
		perror(words[0]);
		_exit(127);
	}
	ends.fd = syscall(SYS_pidfd_open, child, 0);
	if (poll(&ends, 1, seconds * 1000) == 1) {
		waitpid(child, &status, 0);
	} else {
		kill(-child, SIGKILL);
		waitpid(child, NULL, 0);
		status = -1;
	}
	/* Those that it has left behind. */
	kill(-child, SIGKILL);
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
	close(ends.fd);
	mark();
	start_ns = now_ns() - start_ns;
	printf("\ntook %lu %lu %lu\n", interrupts(CALLS) - calls, flushes_so_far() - flushes, start_ns);
	if (status == -1)
		printf("leave timeout\n");
	else if (WIFSIGNALED(status))
		printf("leave signal %d\n", WTERMSIG(status));
	else
		printf("leave exit %d\n", WEXITSTATUS(status));
}

static void run_line(char *line)
{
	char *words[WORDS], **next = words;

	printf("enter %s\n", line);
	for (char *word = strtok(line, " "); word && next < words + WORDS - 1; word = strtok(NULL, " "))
		*next++ = word;
	*next = NULL;
	if (next - words < 2)
		return;
	if (strcmp(words[0], "store"))
		run(atol(words[0]), words + 1);
	else if (next - words == 3)
		store(words[1], words[2]);
}

int main(void)
{
	char line[512];
	FILE *list = fopen("/list", "re");

	set_up();
	printf("booted %ld CPUs\n", sysconf(_SC_NPROCESSORS_ONLN));
	while (list && fgets(line, sizeof(line), list)) {
		line[strcspn(line, "\n")] = 0;
		run_line(line);
	}
	print_counts();
	printf("end\n");
	return reboot(RB_POWER_OFF);
}
