// Programs whose flushes have each another cause in the kernel:
//
//     cases NAME
//
// A second thread computes on CPU 1, which the kernel must interrupt. The function that makes the
// call has the name of the case. Build it with `cc -O1 -g -pthread`. The tests of `shootdown explain` run them.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64, LENGTH = PAGES * PAGE, UNAVAILABLE = 77 };

#define CALL __attribute__((noinline)) static void
#define END __asm__ volatile("")

static volatile int started, stop;
static char *area, *other;
static int file;

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) exit(UNAVAILABLE);
}

static void *compute(void *unused) {
    pin(1);
    for (started = 1; !stop;) END;
    return unused;
}

static void write_pages(char *from) {
    for (long at = 0; at < LENGTH; at += PAGE) from[at]++;
}

static char *map(int flags, int descriptor) {
    char *at = mmap(0, LENGTH, PROT_READ | PROT_WRITE, flags, descriptor, 0);
    if (at == MAP_FAILED) exit(UNAVAILABLE);
    return at;
}

static void map_file(int descriptor) {
    file = descriptor;
    if (file < 0 || ftruncate(file, LENGTH)) exit(UNAVAILABLE);
    area = map(MAP_SHARED, file);
}

static void in_memory(void) { map_file(memfd_create("case", 0)); }

static void on_disk(void) {
    char name[] = "/var/tmp/shootdown-case-XXXXXX";
    map_file(mkstemp(name));
    unlink(name);
}

static void private(void) {
    area = map(MAP_PRIVATE | MAP_ANONYMOUS, -1);
    madvise(area, LENGTH, MADV_NOHUGEPAGE);
}

static void two_areas(void) {
    private();
    other = area;
    private();
    write_pages(area);
}

static void watch(unsigned long long features, unsigned long mode) {
    two_areas();
    file = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API, .features = features};
    struct uffdio_register first = {{(unsigned long)area, LENGTH}, mode, 0}, second = first;
    second.range.start = (unsigned long)other;
    if (file < 0 || ioctl(file, UFFDIO_API, &api) || ioctl(file, UFFDIO_REGISTER, &first) ||
        ioctl(file, UFFDIO_REGISTER, &second))
        exit(UNAVAILABLE);
}

static void userfault(void) { watch(UFFD_FEATURE_PAGEFAULT_FLAG_WP, UFFDIO_REGISTER_MODE_WP); }

// UFFD_FEATURE_MOVE, since Linux 6.8.
static void userfault_move(void) { watch(1 << 16, UFFDIO_REGISTER_MODE_MISSING); }

CALL shrink_file(void) {
    write_pages(area);
    if (ftruncate(file, PAGE) || ftruncate(file, LENGTH)) exit(1);
}

CALL punch_hole(void) {
    write_pages(area);
    fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, LENGTH);
    END;
}

CALL remove_pages(void) {
    write_pages(area);
    madvise(area, LENGTH, MADV_REMOVE);
    END;
}

CALL protect_writes(void) {
    struct uffdio_writeprotect range = {{(unsigned long)area, LENGTH}, UFFDIO_WRITEPROTECT_MODE_WP};
    ioctl(file, UFFDIO_WRITEPROTECT, &range);
    range.mode = 0;
    ioctl(file, UFFDIO_WRITEPROTECT, &range);
    write_pages(area);
}

CALL commit(void) {
    write_pages(area);
    msync(area, LENGTH, MS_SYNC);
    END;
}

CALL clear_soft_dirty(void) {
    write_pages(area);
    int clear = open("/proc/self/clear_refs", O_WRONLY);
    if (clear < 0 || write(clear, "4", 1) != 1) exit(UNAVAILABLE);
    close(clear);
}

CALL toggle_key(void) {
    area[0]++;
    syscall(SYS_pkey_mprotect, area, PAGE, PROT_READ, -1);
    syscall(SYS_pkey_mprotect, area, PAGE, PROT_READ | PROT_WRITE, -1);
    END;
}

CALL toggle_write(void) {
    area[0]++;
    mprotect(area, PAGE, PROT_READ);
    mprotect(area, PAGE, PROT_READ | PROT_WRITE);
    END;
}

CALL unmap_file(void) {
    area = map(MAP_SHARED, file);
    write_pages(area);
    munmap(area, LENGTH);
    END;
}

CALL page_out(void) {
    for (volatile char *at = area; at < area + LENGTH; at += PAGE) (void)*at;
    madvise(area, LENGTH, MADV_PAGEOUT);
    END;
}

CALL grow(void) {
    private();
    write_pages(area);
    mremap(area, LENGTH / 2, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, other);
    munmap(area + LENGTH / 2, LENGTH / 2);
}

CALL copy_after_fork(void) {
    int child = fork();
    while (child == 0) pause();
    for (long at = 0; at < LENGTH; at += PAGE) area[at]++;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

CALL exchange_pages(void) {
    char *from = area;
    area = other;
    other = from;
    // UFFDIO_MOVE of `struct uffdio_move`.
    unsigned long long move[5] = {(unsigned long)area, (unsigned long)other, LENGTH};
    if (ioctl(file, _IOWR(UFFDIO, 5, move), move)) exit(1);
}

CALL free_lazily(void) {
    write_pages(area);
    madvise(area, LENGTH, MADV_FREE);
    END;
}

CALL map_over(void) {
    write_pages(area);
    mmap(area, LENGTH, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    END;
}

CALL lower_break(void) {
    char *end = sbrk(LENGTH);
    write_pages(end);
    sbrk(-LENGTH);
    END;
}

CALL move_page(void) {
    area[0]++;
    mremap(area, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, area + 9 * PAGE);
    mremap(area + 9 * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, area);
    END;
}

CALL discard_ranges(void) {
    struct iovec ranges[PAGES / 2];
    write_pages(area);
    for (int i = 0; i < PAGES / 2; i++) ranges[i] = (struct iovec){area + 2 * i * PAGE, PAGE};
    int self = syscall(SYS_pidfd_open, getpid(), 0);
    if (syscall(SYS_process_madvise, self, ranges, PAGES / 2, MADV_DONTNEED, 0) < 0)
        exit(UNAVAILABLE);
    close(self);
}

CALL wait_for_others(void) {
    syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
    END;
}

static void barriers(void) {
    syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
}

CALL install_filter(void) {
    struct sock_filter code[] = {{BPF_RET | BPF_K, 0, 0, 0xffff}};
    struct sock_fprog filter = {1, code};
    setsockopt(file, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
    setsockopt(file, SOL_SOCKET, SO_DETACH_FILTER, 0, 0);
}

// Locked pages stay mapped, and pages that are already on their node are not moved.
CALL lock_pages(void) {
    write_pages(area);
    if (mlock(area, LENGTH) || munlock(area, LENGTH)) exit(UNAVAILABLE);
}

CALL move_to_node(void) {
    void *page = area;
    int node = 0, status;
    write_pages(area);
    if (syscall(SYS_move_pages, 0, 1, &page, &node, &status, 0)) exit(UNAVAILABLE);
}

// The bitmap of idle pages: the kernel clears the accessed bits, and flushes nothing.
CALL mark_idle(void) {
    unsigned long idle = -1ul;
    write_pages(area);
    if (pwrite(file, &idle, sizeof idle, 0) < 0) exit(UNAVAILABLE);
}

static void idle_pages(void) {
    private();
    file = open("/sys/kernel/mm/page_idle/bitmap", O_WRONLY);
    if (file < 0) exit(UNAVAILABLE);
}

// Anonymous pages go to a file and back. Only the way there flushes.
static char swap[] = "/var/tmp/shootdown-case-XXXXXX";

CALL page_out_to_swap(void) {
    madvise(area, LENGTH, MADV_PAGEOUT);
    END;
}

CALL empty_swap(void) {
    static int rounds;
    if (rounds++ >= 20) return;
    int is_on = !swapon(swap, 0);
    if (is_on) {
        write_pages(area);
        page_out_to_swap();
        is_on = !swapoff(swap);
    }
    if (rounds == 20 || !is_on) unlink(swap);
    if (!is_on) exit(UNAVAILABLE);
}

static void swap_file(void) {
    // The header of `mkswap`: version 1, and the number of the last page.
    unsigned header[PAGE / sizeof(unsigned)] = {[256] = 1, [257] = PAGES * 2};
    memcpy((char *)header + PAGE - 10, "SWAPSPACE2", 10);
    private();
    file = mkstemp(swap);
    for (int page = 0; page <= PAGES * 2; page++) {
        if (write(file, header, PAGE) != PAGE) exit(UNAVAILABLE);
        memset(header, 0, page ? 0 : PAGE);
    }
    if (fsync(file)) exit(UNAVAILABLE);
}

// The kernel merges pages of equal contents. It protects each page before it compares the page.
CALL write_equal_pages(void) {
    madvise(area, LENGTH, MADV_DONTNEED);
    memset(area, 1, LENGTH);
    usleep(4000);
}

static void mergeable(void) {
    private();
    if (madvise(area, LENGTH, MADV_MERGEABLE)) exit(UNAVAILABLE);
}

static void filters(void) { file = socket(AF_INET, SOCK_DGRAM, 0); }

static const struct {
    const char *name;
    void (*prepare)(void), (*once)(void);
} cases[] = {
    {"shrink_file", in_memory, shrink_file},
    {"punch_hole", in_memory, punch_hole},
    {"remove_pages", in_memory, remove_pages},
    {"protect_writes", userfault, protect_writes},
    {"commit", on_disk, commit},
    {"clear_soft_dirty", private, clear_soft_dirty},
    {"toggle_key", private, toggle_key},
    {"toggle_write", private, toggle_write},
    {"unmap_file", in_memory, unmap_file},
    {"page_out", on_disk, page_out},
    {"grow", two_areas, grow},
    {"copy_after_fork", private, copy_after_fork},
    {"exchange_pages", userfault_move, exchange_pages},
    {"free_lazily", private, free_lazily},
    {"map_over", private, map_over},
    {"lower_break", private, lower_break},
    {"move_page", private, move_page},
    {"discard_ranges", private, discard_ranges},
    {"wait_for_others", barriers, wait_for_others},
    {"install_filter", filters, install_filter},
    {"lock_pages", private, lock_pages},
    {"move_to_node", private, move_to_node},
    {"mark_idle", idle_pages, mark_idle},
    {"empty_swap", swap_file, empty_swap},
    {"write_equal_pages", mergeable, write_equal_pages},
};

// A program whose pages its parent reclaims. Prints the number of the process, and ends when its
// standard input does.
static int reclaimed(void) {
    on_disk();
    munmap(area, LENGTH);
    int child = fork();
    if (child < 0) return UNAVAILABLE;
    if (child == 0) {
        mmap(area, LENGTH, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
        pin(1);
        dprintf(1, "%d\n", getpid());
        for (;;) {
            for (volatile char *at = area; at < area + LENGTH; at += PAGE) (void)*at;
        }
    }
    pin(0);
    fcntl(0, F_SETFL, O_NONBLOCK);
    int descriptor = syscall(SYS_pidfd_open, child, 0);
    struct iovec range = {area, LENGTH};
    for (char end; read(0, &end, 1) != 0; usleep(2000))
        syscall(SYS_process_madvise, descriptor, &range, 1, MADV_PAGEOUT, 0);
    kill(child, SIGKILL);
    return 0;
}

int main(int count, char **arguments) {
    if (count == 2 && !strcmp(arguments[1], "reclaimed")) return reclaimed();
    for (unsigned long i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (count != 2 || strcmp(cases[i].name, arguments[1])) continue;
        cases[i].prepare();
        pthread_t thread;
        if (pthread_create(&thread, NULL, compute, NULL)) return UNAVAILABLE;
        pin(0);
        while (!started) sched_yield();
        for (int round = 0; round < 500; round++) {
            cases[i].once();
            for (volatile int pause = 0; pause < 20000; pause++) END;
        }
        stop = 1;
        pthread_join(thread, NULL);
        return 0;
    }
    return 2;
}
