// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A plugin of QEMU that counts the instructions of a guest's calls: from the first one of a function
 * to the one after the `call`, with everything that the CPU executes in between. The arguments:
 *
 *   out=FILE,path=ADDRESS,…,flush=ADDRESS,…
 *
 * At each mark of init.c it writes a line to the file with four numbers for each path, of the time
 * since the last mark: the calls, their most frequent number of instructions (those of LONG and more
 * are as good as LONG), and the same of the calls in which a function that flushes began.
 *
 * All CPUs must take turns on one thread of the host. QEMU's header needs GLib's, so the functions
 * are declared here. Of x86-64: its `call` of five bytes; calls through a pointer are not seen.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*translated)(uint64_t id, void *block);
typedef void (*executed)(unsigned translated_by, void *data);

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, translated callback);
void qemu_plugin_register_vcpu_tb_exec_cb(void *block, executed callback, int flags, void *data);
void qemu_plugin_register_vcpu_insn_exec_cb(void *instruction, executed callback, int flags, void *data);
size_t qemu_plugin_tb_n_insns(const void *block);
void *qemu_plugin_tb_get_insn(const void *block, size_t index);
uint64_t qemu_plugin_insn_vaddr(const void *instruction);
size_t qemu_plugin_insn_data(const void *instruction, void *to, size_t bytes);

/* The interface of QEMU 9.2 and 10.0. */
int qemu_plugin_version = 4;

/* QEMU's own. If CPUs take turns, it tells its plugins the CPU that translated, not the one that runs. */
extern __thread void *current_cpu;

#define PATHS 16
#define CPUS 64
#define LONG 8192
#define RETURNS 4096

struct path {
	uint64_t address;
	uint32_t of_length[2][LONG + 1];
	/* Of each CPU: its count of instructions before the call, or 0, and whether it flushed. */
	uint64_t begun[CPUS];
	bool flushed[CPUS];
};

/* An instruction after a call, and those of its block, which are counted when the block begins. */
struct end { struct path *path; size_t block; };

static FILE *out;
static struct path paths[PATHS];
static uint64_t flushes[PATHS];
static size_t path_count, flush_count;
static void *cpus[CPUS];
static uint64_t instructions[CPUS];
/* The instructions after the calls that were translated. */
static struct { uint64_t address; struct path *path; } returns[RETURNS];

static size_t this_cpu(void)
{
	static size_t last;

	if (cpus[last] != current_cpu)
		for (last = 0; cpus[last] && cpus[last] != current_cpu; last++)
			;
	cpus[last] = current_cpu;
	return last;
}

static void count_block(unsigned unused, void *length)
{
	(void)unused;
	instructions[this_cpu()] += (size_t)length;
}

static void begin(unsigned unused, void *data)
{
	struct path *path = data;
	size_t cpu = this_cpu();

	(void)unused;
	/* The block of the call, which is its last instruction, is counted already. */
	path->begun[cpu] = instructions[cpu];
	path->flushed[cpu] = false;
}

static void end(unsigned unused, void *data)
{
	struct path *path = ((struct end *)data)->path;
	size_t cpu = this_cpu();
	uint64_t length = instructions[cpu] - ((struct end *)data)->block - path->begun[cpu];

	(void)unused;
	if (path->begun[cpu])
		path->of_length[path->flushed[cpu]][length < LONG ? length : LONG]++;
	path->begun[cpu] = 0;
}

static void flush(unsigned unused, void *data)
{
	(void)unused, (void)data;
	for (size_t i = 0; i < path_count; i++)
		paths[i].flushed[this_cpu()] = true;
}

static void print(const struct path *path, bool only_flushed)
{
	size_t calls = 0, most = 0, mode = 0;

	for (size_t length = 0; length <= LONG; length++) {
		size_t of_this = path->of_length[true][length];

		if (!only_flushed)
			of_this += path->of_length[false][length];
		calls += of_this;
		if (of_this > most) {
			most = of_this;
			mode = length;
		}
	}
	fprintf(out, "%zu %zu ", calls, mode);
}

static void print_counts(unsigned unused, void *data)
{
	(void)unused, (void)data;
	for (size_t i = 0; i < path_count; i++) {
		print(&paths[i], false);
		print(&paths[i], true);
		memset(paths[i].of_length, 0, sizeof(paths[i].of_length));
	}
	fprintf(out, "\n");
	fflush(out);
}

static struct path *path_at(uint64_t address)
{
	for (size_t i = 0; i < path_count; i++)
		if (paths[i].address == address)
			return &paths[i];
	return NULL;
}

/* The place of a return in the table: where it is, or the free one where it belongs. */
static size_t place_of(uint64_t address)
{
	size_t at = address % RETURNS;

	while (returns[at].address && returns[at].address != address)
		at = (at + 1) % RETURNS;
	return at;
}

static void watch_call(void *instruction, const uint8_t bytes[5])
{
	uint64_t after = qemu_plugin_insn_vaddr(instruction) + 5;
	struct path *path;
	int32_t distance;
	size_t at = place_of(after);

	memcpy(&distance, bytes + 1, sizeof(distance));
	path = path_at(after + distance);
	if (!path)
		return;
	returns[at].address = after;
	returns[at].path = path;
	qemu_plugin_register_vcpu_insn_exec_cb(instruction, begin, 0, path);
}

static void watch_return(void *instruction, size_t block)
{
	size_t at = place_of(qemu_plugin_insn_vaddr(instruction));
	struct end *data;

	if (!returns[at].address)
		return;
	data = malloc(sizeof(*data));
	data->path = returns[at].path;
	data->block = block;
	qemu_plugin_register_vcpu_insn_exec_cb(instruction, end, 0, data);
}

static void look_at(uint64_t id, void *block)
{
	/* nopl "TLBM"(%rax) */
	static const uint8_t mark[] = { 0x0f, 0x1f, 0x80, 'T', 'L', 'B', 'M' };
	size_t count = qemu_plugin_tb_n_insns(block);

	(void)id;
	qemu_plugin_register_vcpu_tb_exec_cb(block, count_block, 0, (void *)count);
	watch_return(qemu_plugin_tb_get_insn(block, 0), count);
	for (size_t i = 0; i < count; i++) {
		void *instruction = qemu_plugin_tb_get_insn(block, i);
		uint8_t bytes[8];
		size_t length = qemu_plugin_insn_data(instruction, bytes, sizeof(bytes));

		if (length == 5 && bytes[0] == 0xe8)
			watch_call(instruction, bytes);
		else if (length == sizeof(mark) && !memcmp(bytes, mark, sizeof(mark)))
			qemu_plugin_register_vcpu_insn_exec_cb(instruction, print_counts, 0, NULL);
		for (size_t at = 0; at < flush_count; at++)
			if (qemu_plugin_insn_vaddr(instruction) == flushes[at])
				qemu_plugin_register_vcpu_insn_exec_cb(instruction, flush, 0, NULL);
	}
}

int qemu_plugin_install(uint64_t id, const void *info, int count, char **arguments)
{
	(void)info;
	for (int i = 0; i < count; i++) {
		char *value = strchr(arguments[i], '=') + 1;

		if (!strncmp(arguments[i], "out=", 4))
			out = fopen(value, "w");
		else if (!strncmp(arguments[i], "path=", 5) && path_count < PATHS)
			paths[path_count++].address = strtoull(value, NULL, 16);
		else if (!strncmp(arguments[i], "flush=", 6) && flush_count < PATHS)
			flushes[flush_count++] = strtoull(value, NULL, 16);
		else
			return 1;
	}
	if (!out)
		return 1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, look_at);
	return 0;
}
