/*
 * The first program of the distribution's kernel that runs ours as a guest of KVM. It loads KVM, and
 * becomes QEMU. The words after `--` on the kernel's command line are the number of virtual CPUs,
 * and the command line of the guest.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Of linux/module.h. */
#define MODULE_INIT_COMPRESSED_FILE 4

static void load(const char *module)
{
	int file = open(module, O_RDONLY);

	if (syscall(SYS_finit_module, file, "", MODULE_INIT_COMPRESSED_FILE))
		perror(module);
	close(file);
}

int main(int count, char **words)
{
	static char guest[4096];
	int file;

	mkdir("/dev", 0755), mkdir("/proc", 0755), mkdir("/sys", 0755), mkdir("/tmp", 0755);
	mount("none", "/dev", "devtmpfs", 0, NULL);
	mount("none", "/proc", "proc", 0, NULL);
	mount("none", "/sys", "sysfs", 0, NULL);
	file = open("/dev/console", O_RDWR);
	dup2(file, 0), dup2(file, 1), dup2(file, 2);
	load("/modules/irqbypass.ko.xz");
	load("/modules/kvm.ko.xz");
	load("/modules/kvm-amd.ko.xz");
	for (int i = 2; i < count; i++) {
		strncat(guest, words[i], sizeof(guest) - strlen(guest) - 2);
		strcat(guest, " ");
	}
	execl("/qemu", "qemu", "-L", "/firmware", "-machine", "q35,hpet=off", "-accel", "kvm",
	      "-cpu", "host", "-m", "768M", "-smp", words[1], "-nodefaults", "-display", "none",
	      "-serial", "stdio", "-no-reboot", "-kernel", "/guest/kernel",
	      "-initrd", "/guest/archive", "-append", guest, NULL);
	perror("/qemu");
	return 1;
}
