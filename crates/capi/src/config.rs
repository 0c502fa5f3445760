//! The properties of the kernel's machine, as values.

/// `tagging`: each CPU gives its few tags to the spaces that it ran last (x86: PCIDs).
pub const SHOOTDOWN_TAGS_PER_CPU: u32 = 0;
/// `tagging`: a space has the same tag on all CPUs (Arm, RISC-V).
pub const SHOOTDOWN_TAGS_GLOBAL: u32 = 1;
/// `tagging`: each CPU counts tags up, and gives a space the next one instead of invalidating
/// (ARC).
pub const SHOOTDOWN_TAGS_RENAMED: u32 = 2;
/// `tagging`: the kernel assigns tags to spaces with `shootdown_space_assign_tag`. Spaces may share
/// a tag, and the tag of a retired space may be assigned again at once: no flush is needed.
pub const SHOOTDOWN_TAGS_ASSIGNED: u32 = 3;

/// `broadcast.reach`: there are no broadcasts.
pub const SHOOTDOWN_REACH_NOBODY: u32 = 0;
/// `broadcast.reach`: a broadcast reaches every CPU (Arm's `TLBI … IS`).
pub const SHOOTDOWN_REACH_EVERYONE: u32 = 1;
/// `broadcast.reach`: a broadcast reaches the CPUs that it names (SBI's remote fence, a hypercall).
/// Such calls are complete when they return. So the engine calls
/// `shootdown_mmu_complete_broadcasts` before the flush returns, and no wait interrupts the CPU of
/// the flush.
pub const SHOOTDOWN_REACH_TARGETS: u32 = 2;

/// `processor`, on x86-64: all entries of the kernel's pages have G (bit 8) set. Without this flag,
/// each flush of kernel pages drops all translations where the processor has tags.
pub const SHOOTDOWN_X86_64_GLOBAL_KERNEL: u32 = 1 << 0;
/// `processor`, on AArch64: the machine has cores of several kinds (big.LITTLE), and a later one
/// was refused by `shootdown_online`. The library then uses the workarounds that any of them may
/// need, besides those that it finds for the first CPU.
pub const SHOOTDOWN_AARCH64_MIXED_CORES: u32 = 1 << 1;
/// `processor`, on RISC-V: all CPUs have the extension Svinval.
pub const SHOOTDOWN_RISCV64_SVINVAL: u32 = 1 << 2;
/// `processor`, on RISC-V: a write of `satp` ends the walks that began with the old value. The
/// manual does not promise this, so set it only if the manufacturer does, or under QEMU. Without
/// it, a CPU that loads another space drops what it has cached of the old one.
pub const SHOOTDOWN_RISCV64_SATP_ENDS_WALKS: u32 = 1 << 3;
/// `processor`, on AArch64: the flush interrupt is an FIQ, as the interrupts between Apple's CPUs,
/// and so it is masked by `PSTATE.F`.
pub const SHOOTDOWN_AARCH64_FIQ: u32 = 1 << 4;
/// `processor`, on AArch64, RISC-V and x86-64: every flush, of kernel pages too, notifies by
/// interrupts, and none by broadcasts.
pub const SHOOTDOWN_NEVER_BROADCAST: u32 = 1 << 5;

/// `processor`, on RISC-V: the kernel's exit path loads roots, which need not map the kernel: see
/// `shootdown_loaded`. The kernel runs on a page table of its own under ASID 0, and no entry has G
/// but those of pages that all page tables map alike. `shootdown_switch` writes no `satp`.
pub const SHOOTDOWN_RISCV64_KERNEL_LOADS: u32 = 1 << 6;

/// `processor`, on RISC-V: there is no firmware (SBI) to call, as under QEMU's `-bios none`. No
/// hart needs a workaround of the library for errata (SiFive's FU540 and FU740 do).
pub const SHOOTDOWN_RISCV64_NO_FIRMWARE: u32 = 1 << 7;

/// `processor`, on x86-64: the kernel sets `CR4.PGE` and `CR4.PCIDE`, and the library only reads
/// them. It uses tags if PCIDE is set on the CPU that calls `shootdown_init`, and refuses a CPU on
/// which it differs. Without the flag, `shootdown_online` sets both bits.
pub const SHOOTDOWN_X86_64_KERNEL_SETS_CR4: u32 = 1 << 8;

/// `shootdown_duties`: before a user page loses its permission to execute, clear the entry, flush,
/// wait, and then store the new entry (Arm's erratum 2645198).
pub const SHOOTDOWN_DUTY_BREAK_EXECUTABLE: u32 = 1 << 0;
/// `shootdown_duties`: leave `TCR_EL1.HD` 0, because the hardware's dirty marks have an erratum
/// (Arm's 1024718 and 2051678).
pub const SHOOTDOWN_DUTY_NO_DIRTY_MARKS: u32 = 1 << 1;
/// `shootdown_duties`: ignore the bits for accessed and dirty in entries that are not valid
/// (Knights Landing).
pub const SHOOTDOWN_DUTY_IGNORE_LATE_MARKS: u32 = 1 << 2;

/// Costs with which the engine chooses between interrupts and broadcasts, in nanoseconds.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NotifyCosts {
    /// Time to interrupt one or more CPUs: to send, and to wait for the first answer. 0 to
    /// broadcast whatever it costs.
    pub interrupt_ns: u64,
    /// Additional time for each CPU that is interrupted.
    pub interrupt_each_ns: u64,
    /// Time to issue and complete a broadcast of one operation.
    pub broadcast_ns: u64,
    /// Additional time for each CPU that the broadcast names.
    pub broadcast_each_ns: u64,
    /// Additional time for each further operation of the broadcast.
    pub operation_ns: u64,
}

/// The broadcasts of a kernel that defines `shootdown_mmu_broadcast` and the functions after it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BroadcastConfig {
    /// One of `SHOOTDOWN_REACH_…`. All but `SHOOTDOWN_REACH_NOBODY` need `SHOOTDOWN_TAGS_GLOBAL`.
    pub reach: u32,
    /// Number of pages that one operation invalidates; 0 for 1.
    pub pages_per_operation: u32,
    /// Number of operations above which a broadcast drops the whole tag; 0 for 1.
    pub operation_ceiling: u32,
    /// The costs of both methods.
    pub costs: NotifyCosts,
}

/// The properties of the machine, for `shootdown_init`.
///
/// Set `layout`, and leave all other members 0 for which the default is right. If the library was
/// built with the feature `processor`, set `kernel_root` as well. All members after `processor` are
/// for libraries without this feature, and must be 0 with it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Config {
    /// Must be `SHOOTDOWN_LAYOUT`: shows that this header belongs to the library.
    pub layout: u64,
    /// Physical address of the page table that has only the kernel's pages. It must stay valid for
    /// ever. 0 without the feature `processor`: then `shootdown_mmu_load_kernel` has it.
    pub kernel_root: u64,
    /// On AArch64 with the feature `processor`; null for none. A machine whose CPUs have Arm's
    /// erratum 4193714 (C1-Pro with SME) uses broadcasts only with this function, which each
    /// completion of broadcasts then calls. It interrupts each other CPU that may execute SME
    /// instructions of a program, and returns when each has taken the interrupt or has left user
    /// mode since the call (Linux: `sme_do_dvmsync`). A CPU marks for it when it returns to user
    /// mode and when it leaves, both with a full barrier. The function does not wait for CPUs in
    /// the kernel, and does not call the library. It may be called masked.
    pub interrupt_sme: Option<extern "C" fn()>,
    /// Wakes the threads that wait for the answer of a CPU, after `shootdown_poll_or_wake`; null if
    /// the kernel does not call that. Called with the number of the CPU, masked, in the handler of
    /// the flush interrupt or where the CPU goes offline; perhaps when nothing waits. It may make
    /// threads runnable, and may call `shootdown_poll_or_wake` for a flush for which an earlier
    /// call has returned false, to wake its thread only if that is done.
    pub wake_waiters: Option<extern "C" fn(u32)>,
    /// On x86-64, in a library with the feature `kpti`; null if user mode runs on the space's own
    /// root. Called masked, with a tag whose translations this CPU has dropped, and only if the
    /// processor has PCIDs. User mode runs under the PCID `tag | 0x800`: drop this one on this CPU
    /// before user mode uses it (Linux: `user_pcid_flush_mask`). An NMI restores the CR3 that it
    /// found, with bit 63 set if that is a user half.
    pub mark_user_half: Option<extern "C" fn(u16)>,
    /// Upper limit of the number of CPUs; 0 for `SHOOTDOWN_CPUS_MAX`.
    pub cpu_limit: u32,
    /// Flags of the processor that the library has: `SHOOTDOWN_X86_64_…`, `SHOOTDOWN_AARCH64_…`,
    /// `SHOOTDOWN_RISCV64_…` or `SHOOTDOWN_NEVER_BROADCAST`. 0 is right on every processor: errata
    /// are detected on the first CPU, and `shootdown_online` refuses a CPU that needs more. The
    /// flag `SHOOTDOWN_AARCH64_FIQ` is a fact about the kernel, and must be right.
    pub processor: u32,
    /// True if the processor walks the page tables before the first write to
    /// a page that it has cached as not dirty. Batches then defer writable pages as well.
    pub traps_stale_writes: bool,
    /// True if a CPU may have translations of two sizes for one address.
    pub tolerates_mixed_sizes: bool,
    /// One of `SHOOTDOWN_TAGS_…`.
    pub tagging: u32,
    /// Number of tags (PCIDs, ASIDs) for spaces, below 65536; 0 if the TLB has none. At most 64 are
    /// used if they are per CPU.
    pub tag_count: u32,
    /// Number of pages above which a CPU drops a whole tag instead of single
    /// pages; 0 for 33.
    pub flush_ceiling: u32,
    /// The broadcasts, if the library was built with the feature `broadcast`.
    pub broadcast: BroadcastConfig,
}
