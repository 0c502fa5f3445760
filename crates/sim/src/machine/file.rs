//! The machine file's keys, and what they become.

use serde::Deserialize;

use super::{MachineError, Topology};
use crate::time::Time;

/// A number of a machine file, for people to look at.
#[derive(Clone, Debug, PartialEq)]
pub struct Number {
    /// The section.
    pub section: String,
    /// The key, with its unit last.
    pub key: String,
    /// The number.
    pub value: f64,
    /// Where it is from.
    pub source: String,
    /// The published measurement that it was fitted to, if it was.
    pub calibrated_on: Option<String>,
}

impl Number {
    pub(super) fn check(&self) -> Result<(), MachineError> {
        let Self { section, key, value, source, .. } = self;
        // What takes longer is no machine that anybody waits for; others spin meanwhile.
        let largest = match key.rsplit('_').next() {
            Some("ns") => 1e5,
            Some("us") => 1e6,
            Some("times") => 100.0,
            _ => 1e6,
        };
        if !value.is_finite() || *value < 0.0 || *value > largest {
            return Err(MachineError::Impossible {
                what: format!("`{section}.{key}` is {value}"),
                remedy: format!("it must be between 0 and {largest}"),
            });
        }
        let whole = !["_ns", "_us", "_times"].iter().any(|unit| key.ends_with(unit));
        if whole && value.fract() != 0.0 {
            return Err(MachineError::Impossible {
                what: format!("`{section}.{key}` is {value}"),
                remedy: "it must be a whole number".to_owned(),
            });
        }
        if source.trim().is_empty() {
            return Err(MachineError::Impossible {
                what: format!("`{section}.{key}` has no source"),
                remedy: "say where the number is from".to_owned(),
            });
        }
        Ok(())
    }
}

/// A number as the file has it: `key = { value = 1.5, source = "…" }`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sourced {
    value: f64,
    source: String,
    calibrated_on: Option<String>,
}

impl Sourced {
    fn number(&self, section: &str, key: &str) -> Number {
        Number {
            section: section.to_owned(),
            key: key.to_owned(),
            value: self.value,
            source: self.source.clone(),
            calibrated_on: self.calibrated_on.clone(),
        }
    }
}

/// What a number of the file becomes.
trait FromValue {
    fn from_value(value: f64, key: &str, scale: f64) -> Self;
}

impl FromValue for Time {
    fn from_value(value: f64, key: &str, scale: f64) -> Self {
        // Microseconds are waits that somebody has chosen, not work.
        let ps_per_unit = if key.ends_with("_us") { 1e6 } else { 1e3 * scale };
        Self::from_ps((value * ps_per_unit).round() as u64)
    }
}

impl FromValue for usize {
    fn from_value(value: f64, _key: &str, _scale: f64) -> Self {
        value as Self
    }
}

/// A section: what the file has (`$file`), and what it becomes (`$section`).
macro_rules! section {
    (
        $(#[$doc:meta])* $section:ident, $file:ident, $name:literal:
        $($(#[$field_doc:meta])* $field:ident: $kind:ty = $key:ident,)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $section { $($(#[$field_doc])* pub $field: $kind,)* }

        #[derive(Clone, Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct $file { $($key: Sourced,)* }

        impl $file {
            pub(super) fn resolve(&self, scale: f64) -> $section {
                $section {
                    $($field: <$kind>::from_value(self.$key.value, stringify!($key), scale),)*
                }
            }

            fn add_numbers(&self, numbers: &mut Vec<Number>) {
                $(numbers.push(self.$key.number($name, stringify!($key)));)*
            }
        }
    };
}

section! {
    /// What an access to memory costs, by where the line is. Lines stay cached until another CPU
    /// takes them: capacity is not modelled.
    Cache, CacheFile, "cache":
    /// The line is in this CPU's own cache.
    hit: Time = hit_ns,
    /// It comes from a thread of the same core.
    core: Time = core_ns,
    /// It comes from a CPU of the same cluster.
    cluster: Time = cluster_ns,
    /// It comes from a CPU of the same socket.
    socket: Time = socket_ns,
    /// It comes from another socket.
    system: Time = system_ns,
    /// Nobody has it.
    memory: Time = memory_ns,
    /// A store, which waits in the store buffer for its line.
    store: Time = store_ns,
    /// A locked read-modify-write, over and above having the line.
    atomic: Time = atomic_ns,
    /// A full barrier, over and above waiting for earlier stores.
    fence: Time = fence_ns,
    /// One turn of a loop that waits for another CPU (`pause`).
    pause: Time = pause_ns,
}

section! {
    /// What is cached of page tables, and what it costs to forget it.
    Tlb, TlbFile, "tlb":
    /// How many address spaces' translations can be told apart; 0 if none can.
    tags: usize = tags,
    /// Translations of 4 KiB pages.
    entries: usize = entries,
    /// The associativity of those.
    ways: usize = ways,
    /// Translations of larger pages; fully associative.
    large_entries: usize = large_entries,
    /// Cached entries of upper page-table levels; fully associative.
    upper_entries: usize = upper_entries,
    /// A miss, over and above the accesses to page-table entries.
    walk: Time = walk_ns,
    /// Loading a root and keeping what is cached under its tag.
    load_root: Time = load_root_ns,
    /// Loading a root, or the same root again, and forgetting what was cached under its tag.
    load_root_and_discard: Time = load_root_and_discard_ns,
    /// Forgetting one page, or as many in a row as one operation can name.
    invalidate_page: Time = invalidate_page_ns,
    /// How many those are.
    pages_per_invalidation: usize = pages_per_invalidation,
    /// Forgetting everything, global translations included.
    invalidate_all: Time = invalidate_all_ns,
    /// Above how many pages all of a tag is forgotten instead.
    flush_ceiling: usize = flush_ceiling,
}

section! {
    /// What an interrupt costs.
    Interrupt, InterruptFile, "interrupt":
    /// Writing the command to the interrupt controller, for each group of targets.
    send: Time = send_ns,
    /// How many targets one command can reach, if they are in the same group of that size.
    targets_per_send: usize = targets_per_send,
    /// From the command to a CPU of the same socket.
    deliver_socket: Time = deliver_socket_ns,
    /// From the command to a CPU of another socket.
    deliver_system: Time = deliver_system_ns,
    /// From the interrupted instruction to the handler: the CPU's own entry and the kernel's.
    entry: Time = entry_ns,
    /// Telling the controller that the interrupt was taken; before the handler does its work.
    acknowledge: Time = acknowledge_ns,
    /// From the handler back to the interrupted instruction.
    exit: Time = exit_ns,
}

section! {
    /// What an interrupt costs in addition where CPUs are virtual.
    Virtualization, VirtualizationFile, "virtualization":
    /// The sender's exit to the hypervisor, for each command.
    send_exit: Time = send_exit_ns,
    /// From the hypervisor's own interrupt to the target's: its exit, the injection, its entry.
    inject: Time = inject_ns,
    /// The target's exit when it tells its controller that the interrupt was taken.
    acknowledge_exit: Time = acknowledge_exit_ns,
}

section! {
    /// What the kernel's own work costs, over and above the shared memory that it touches.
    Kernel, KernelFile, "kernel":
    /// A system call: entry, dispatch, exit.
    syscall: Time = syscall_ns,
    /// A page fault: exception, looking for the cause, return.
    fault: Time = fault_ns,
    /// Finding, making, cutting or removing areas of an address space.
    areas: Time = areas_ns,
    /// Looking at one page-table entry in a loop.
    entry: Time = entry_ns,
    /// Taking one page out of the books.
    unmap_page: Time = unmap_page_ns,
    /// Copying one page-table entry at a fork.
    fork_entry: Time = fork_entry_ns,
    /// Allocating or freeing a frame.
    frame: Time = frame_ns,
    /// Filling a page with zeros.
    clear_page: Time = clear_page_ns,
    /// Copying a page.
    copy_page: Time = copy_page_ns,
    /// From one thread to another, without what the address space costs.
    context_switch: Time = context_switch_ns,
    /// Making a sleeping thread runnable.
    wake: Time = wake_ns,
    /// Moving a running thread to another CPU (`sched_setaffinity`), without the context switches.
    migrate: Time = migrate_ns,
    /// How long a thread runs while others wait for its CPU.
    timeslice: Time = timeslice_us,
}

section! {
    /// Hardware that tells every CPU's TLB (TLBI Inner Shareable, INVLPGB).
    Broadcast, BroadcastFile, "broadcast":
    /// One operation, on the CPU that issues it.
    issue: Time = issue_ns,
    /// From then until it is done on every CPU, if nobody else issues any.
    complete: Time = complete_ns,
    /// How long it keeps all others from the interconnect, where they are served one by one.
    occupy: Time = occupy_ns,
    /// What it takes from each other CPU that runs.
    victim: Time = victim_ns,
    /// How many pages in a row one operation can name.
    pages_per_operation: usize = pages_per_operation,
    /// Above how many operations all of a tag is named instead.
    page_ceiling: usize = page_ceiling,
}

section! {
    /// Firmware that has a set of CPUs invalidate (SBI remote fence).
    RemoteFence, RemoteFenceFile, "remote_fence":
    /// The call, over and above what each target adds.
    call: Time = call_ns,
    /// For each target, on the caller.
    each: Time = each_ns,
    /// What it takes from each target, over and above the invalidations.
    target: Time = target_ns,
    /// From the end of the call until a target has done it that did nothing else.
    deliver: Time = deliver_ns,
    /// Above how many pages the firmware has the targets drop all of the tag.
    page_ceiling: usize = page_ceiling,
}

section! {
    /// Where files are stored.
    Storage, StorageFile, "storage":
    /// The kernel's work for a page that is read or written, on the CPU that asks for it: finding
    /// its block, and whatever else the page cache and the file system do.
    page: Time = page_ns,
    /// How long a page that was written before takes to be read, without the CPU.
    read: Time = read_us,
    /// How long a page takes to be written, without the CPU.
    write: Time = write_us,
}

/// How the hardware's tags are given to address spaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tagging {
    /// Each CPU has its own: a tag means one space here and another there (x86 PCID).
    #[default]
    PerCpu,
    /// A space has one tag, the same on all CPUs (arm64, RISC-V, AMD with INVLPGB).
    Global,
    /// Each CPU takes them from a counter; to drop a space's translations is to take the next
    /// (ARC).
    Renamed,
}

/// Who walks page tables after a miss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refill {
    /// The hardware, which caches upper levels, and may walk for nothing.
    #[default]
    Hardware,
    /// The kernel, in an exception: only for what is really used, and from the root.
    Software,
}

/// What becomes of the first write through a translation that was cached when the page was not
/// marked as written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StaleWrites {
    /// The page tables are walked again, and the entry is marked, or found to be gone (x86, Arm,
    /// RISC-V; where the kernel marks entries, what is not marked is not writable).
    #[default]
    Trapped,
    /// It goes through, and the entry is marked if it is still there.
    Unnoticed,
}

/// Whether a TLB may hold translations of two sizes for one address, which no access uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MixedSizes {
    /// It must not: an entry changes its size by *break before make*, on lazy CPUs as well (Arm).
    #[default]
    Refused,
    /// It may (x86).
    Tolerated,
}

/// What CPUs do when they have nothing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Idle {
    /// They look again and again whether there is something (`idle=poll`).
    Poll,
    /// They wait for an interrupt, in deeper states the longer it takes.
    States(Vec<IdleState>),
}

/// An idle state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleState {
    /// What it is called.
    pub name: String,
    /// How long a CPU has been idle when it enters this state.
    pub after: Time,
    /// How long it takes to wake from it.
    pub exit: Time,
    /// What becomes of the TLB.
    pub tlb: TlbInIdle,
}

/// What an idle state does to the TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlbInIdle {
    /// It stays.
    Kept,
    /// It is lost.
    Lost,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MachineFile {
    pub(super) name: String,
    pub(super) about: String,
    #[serde(default)]
    pub(super) tagging: Tagging,
    #[serde(default)]
    pub(super) refill: Refill,
    #[serde(default)]
    pub(super) stale_writes: StaleWrites,
    #[serde(default)]
    pub(super) mixed_sizes: MixedSizes,
    /// By how much the times of `[interrupt]`, `[virtualization]`, `[remote_fence]`, `[kernel]` and
    /// `[storage]` are to be multiplied, where they were not measured on this machine. Once, if
    /// missing.
    scale: Option<ScaleFile>,
    topology: TopologyFile,
    pub(super) cache: CacheFile,
    pub(super) tlb: TlbFile,
    pub(super) interrupt: InterruptFile,
    pub(super) virtualization: Option<VirtualizationFile>,
    pub(super) broadcast: Option<BroadcastFile>,
    pub(super) remote_fence: Option<RemoteFenceFile>,
    /// None: it takes no time.
    pub(super) storage: Option<StorageFile>,
    /// None: CPUs poll.
    #[serde(default)]
    idle: Vec<IdleStateFile>,
    pub(super) kernel: KernelFile,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScaleFile {
    software_times: Sourced,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TopologyFile {
    sockets: Sourced,
    clusters_per_socket: Sourced,
    cores_per_cluster: Sourced,
    threads_per_core: Sourced,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct IdleStateFile {
    name: String,
    tlb: TlbInIdle,
    after_us: Sourced,
    exit_us: Sourced,
}

impl MachineFile {
    /// The factor by which software's times are multiplied.
    pub(super) fn scale(&self) -> f64 {
        self.scale.as_ref().map_or(1.0, |scale| scale.software_times.value)
    }

    pub(super) fn topology(&self) -> Topology {
        let of = |number: &Sourced| number.value as usize;
        let file = &self.topology;
        Topology::new(
            of(&file.sockets),
            of(&file.clusters_per_socket),
            of(&file.cores_per_cluster),
            of(&file.threads_per_core),
        )
    }

    pub(super) fn idle(&self) -> Idle {
        if self.idle.is_empty() {
            return Idle::Poll;
        }
        let mut states: Vec<_> = self
            .idle
            .iter()
            .map(|state| IdleState {
                name: state.name.clone(),
                after: Time::from_value(state.after_us.value, "after_us", 1.0),
                exit: Time::from_value(state.exit_us.value, "exit_us", 1.0),
                tlb: state.tlb,
            })
            .collect();
        states.sort_by_key(|state| state.after);
        Idle::States(states)
    }

    pub(super) fn numbers(&self) -> Vec<Number> {
        let mut numbers = vec![
            self.topology.sockets.number("topology", "sockets"),
            self.topology.clusters_per_socket.number("topology", "clusters_per_socket"),
            self.topology.cores_per_cluster.number("topology", "cores_per_cluster"),
            self.topology.threads_per_core.number("topology", "threads_per_core"),
        ];
        if let Some(scale) = &self.scale {
            numbers.push(scale.software_times.number("scale", "software_times"));
        }
        self.cache.add_numbers(&mut numbers);
        self.tlb.add_numbers(&mut numbers);
        self.interrupt.add_numbers(&mut numbers);
        if let Some(virtualization) = &self.virtualization {
            virtualization.add_numbers(&mut numbers);
        }
        if let Some(broadcast) = &self.broadcast {
            broadcast.add_numbers(&mut numbers);
        }
        if let Some(remote_fence) = &self.remote_fence {
            remote_fence.add_numbers(&mut numbers);
        }
        if let Some(storage) = &self.storage {
            storage.add_numbers(&mut numbers);
        }
        for state in &self.idle {
            let section = format!("idle.{}", state.name);
            numbers.push(state.after_us.number(&section, "after_us"));
            numbers.push(state.exit_us.number(&section, "exit_us"));
        }
        self.kernel.add_numbers(&mut numbers);
        numbers
    }
}
