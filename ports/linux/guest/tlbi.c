// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A plugin of QEMU that counts the instructions TLBI of an AArch64 guest. At each mark of init.c it
 * writes a line to the file that its argument `out=FILE` names, with both sums over all CPUs:
 *
 *   BROADCASTS LOCAL
 *
 * All CPUs must take turns on one thread of the host. QEMU's header needs GLib's, so the functions
 * are declared here.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef void (*translated)(uint64_t id, void *block);
typedef void (*executed)(unsigned cpu, void *count);

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, translated callback);
void qemu_plugin_register_vcpu_insn_exec_cb(void *instruction, executed callback, int flags, void *data);
size_t qemu_plugin_tb_n_insns(const void *block);
void *qemu_plugin_tb_get_insn(const void *block, size_t index);
size_t qemu_plugin_insn_data(const void *instruction, void *to, size_t bytes);

/* The interface of QEMU 9.2 and 10.0. */
int qemu_plugin_version = 4;

#define MARK 0xd5032fffu /* hint #127 */

static FILE *out;
static uint64_t broadcasts, local;

static void count_one(unsigned cpu, void *count)
{
	(void)cpu;
	++*(uint64_t *)count;
}

static void print_counts(unsigned cpu, void *unused)
{
	(void)cpu, (void)unused;
	fprintf(out, "%lu %lu\n", broadcasts, local);
	fflush(out);
}

/* TLBI is SYS with CRn 8. CRm 1 to 5 are those of a shareable domain, 6 and 7 those of the CPU. */
static uint64_t *count_of(uint32_t word)
{
	if ((word & 0xfff8f000) != 0xd5088000)
		return NULL;
	return (word >> 8 & 15) < 6 ? &broadcasts : &local;
}

static void look_at(uint64_t id, void *block)
{
	size_t count = qemu_plugin_tb_n_insns(block);

	(void)id;
	for (size_t i = 0; i < count; i++) {
		void *instruction = qemu_plugin_tb_get_insn(block, i);
		uint32_t word;

		if (qemu_plugin_insn_data(instruction, &word, sizeof(word)) != sizeof(word))
			continue;
		if (word == MARK)
			qemu_plugin_register_vcpu_insn_exec_cb(instruction, print_counts, 0, NULL);
		else if (count_of(word))
			qemu_plugin_register_vcpu_insn_exec_cb(instruction, count_one, 0, count_of(word));
	}
}

int qemu_plugin_install(uint64_t id, const void *info, int count, char **arguments)
{
	(void)info;
	if (count != 1 || strncmp(arguments[0], "out=", 4) || !(out = fopen(arguments[0] + 4, "w")))
		return 1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, look_at);
	return 0;
}
