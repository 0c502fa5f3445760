//! The keys of a machine file, and the values that they become.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::kinds::{MixedSizes, Policy, Refill, StaleWrites, Tagging};
use super::{Links, MachineError, Topology, require};
use crate::time::Time;

/// A number of a machine file, for display.
#[derive(Clone, Debug, PartialEq)]
pub struct Number {
    /// Section of the file.
    pub section: String,
    /// Key, which ends with its unit.
    pub key: String,
    /// Value, in the key's unit.
    pub value: f64,
    /// Source of the value.
    pub source: String,
    /// The published measurement to which the value was fitted, if any.
    pub calibrated_on: Option<String>,
}

impl Number {
    pub(super) fn check(&self) -> Result<(), MachineError> {
        let Self { section, key, value, source, .. } = self;
        // Simulations with longer times would not end in a reasonable time, because CPUs spin.
        let largest = match key.rsplit('_').next() {
            Some("ns") => 1e6,
            Some("us") => 1e6,
            Some("times") => 100.0,
            _ => 1e6,
        };
        let is_count = !["_ns", "_us", "_times", "ghz"].iter().any(|unit| key.ends_with(unit));
        require(
            (0.0..=largest).contains(value),
            format!("`{section}.{key}` is {value}"),
            &format!("use a number between 0 and {largest}"),
        )?;
        require(
            !is_count || value.fract() == 0.0,
            format!("`{section}.{key}` is {value}"),
            "use a whole number",
        )?;
        require(
            !source.trim().is_empty(),
            format!("`{section}.{key}` has no source"),
            "add the origin of the number as its `source`",
        )
    }
}

/// Returns the number of a file that `key` names as `SECTION.KEY`.
pub(super) fn number_mut<'t>(table: &'t mut toml::Table, key: &str) -> Option<&'t mut toml::Table> {
    let (section, key) = key.rsplit_once('.')?;
    let section = match section.split_once('.') {
        Some(("idle", state)) => {
            let states = table.get_mut("idle")?.as_array_mut()?.iter_mut();
            let mut states = states.filter_map(|it| it.as_table_mut());
            states.find(|it| it.get("name").and_then(toml::Value::as_str) == Some(state))?
        }
        _ => table.get_mut(section)?.as_table_mut()?,
    };
    section.get_mut(key)?.as_table_mut()
}

/// Returns `true` if two keys have the same section or the same last part.
pub(super) fn is_similar(one: &str, other: &str) -> bool {
    let parts = |key: &str| key.rsplit_once('.').map(|(a, b)| (a.to_owned(), b.to_owned()));
    match (parts(one), parts(other)) {
        (Some(one), Some(other)) => one.0 == other.0 || one.1 == other.1,
        (Some((_, key)), None) => key == other,
        _ => false,
    }
}

/// A number as written in the file: `key = { value = 1.5, source = "…" }`.
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

/// A type to which a number of the file is converted.
trait FromValue {
    fn from_value(value: f64, key: &str, scale: f64) -> Self;
}

impl FromValue for Time {
    fn from_value(value: f64, key: &str, scale: f64) -> Self {
        // Microseconds are configured waits, not work, so they do not scale with the processor.
        let ps_per_unit = if key.ends_with("_us") { 1e6 } else { 1e3 * scale };
        Self::from_ps((value * ps_per_unit).round() as u64)
    }
}

impl FromValue for usize {
    fn from_value(value: f64, _key: &str, _scale: f64) -> Self {
        value as Self
    }
}

/// Defines a section: the type of its keys in the file (`$file`), and of their values (`$section`).
/// `core` marks times of the core.
macro_rules! section {
    (
        $(#[$doc:meta])* $vis:vis $section:ident, $file:ident, $name:literal:
        $($(#[$field_doc:meta])* $field:ident: $kind:ty = $key:ident $($core:ident)?,)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        $vis struct $section { $($(#[$field_doc])* $vis $field: $kind,)* }

        #[derive(Clone, Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct $file { $($key: Sourced,)* }

        impl $file {
            /// The section, and its times of the core.
            const OF_CORE: (&str, &[&str]) = ($name, &[$($(section!(@$core $key),)?)*]);

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
    (@core $key:ident) => { stringify!($key) };
}

section! {
    /// Numbers of CPUs in each part of the machine: see [`Topology`].
    pub(super) TopologySizes, TopologyFile, "topology":
    sockets: usize = sockets,
    clusters_per_socket: usize = clusters_per_socket,
    cores_per_cluster: usize = cores_per_cluster,
    threads_per_core: usize = threads_per_core,
}

section! {
    /// Cost of an access to memory, depending on where the line is. Lines stay cached until another
    /// CPU takes them: capacity is not modelled.
    pub Cache, CacheFile, "cache":
    /// The line is in this CPU's own cache.
    hit: Time = hit_ns core,
    /// The line comes from a thread of the same core.
    core: Time = core_ns core,
    /// The line comes from a CPU of the same cluster.
    cluster: Time = cluster_ns,
    /// The line comes from a CPU of the same socket.
    socket: Time = socket_ns,
    /// The line comes from another socket.
    system: Time = system_ns,
    /// The line is in no cache.
    memory: Time = memory_ns,
    /// A store, which waits in the store buffer for its line.
    store: Time = store_ns core,
    /// A locked read-modify-write, in addition to fetching the line.
    atomic: Time = atomic_ns core,
    /// A full barrier, in addition to waiting for earlier stores.
    fence: Time = fence_ns core,
    /// One iteration of a loop that waits for another CPU (`pause`).
    pause: Time = pause_ns core,
}

section! {
    /// Costs between sockets that have no link: see [`Links`].
    pub Far, FarFile, "far":
    /// A line comes from such a socket.
    line: Time = line_ns,
    /// From the command of an interrupt to a CPU of such a socket.
    deliver: Time = deliver_ns,
}

section! {
    /// Sizes of a CPU's TLB, and costs of misses and invalidations.
    pub Tlb, TlbFile, "tlb":
    /// Number of tags, so number of spaces whose translations can be cached together; 0 if the TLB
    /// has no tags.
    tags: usize = tags,
    /// Number of translations of 4 KiB pages.
    entries: usize = entries,
    /// Associativity for 4 KiB pages.
    ways: usize = ways,
    /// Number of translations of larger pages; fully associative.
    large_entries: usize = large_entries,
    /// Number of cached entries of upper page-table levels; fully associative.
    upper_entries: usize = upper_entries,
    /// A miss, in addition to the accesses to page-table entries.
    walk: Time = walk_ns core,
    /// Loading a root without dropping the entries of its tag.
    load_root: Time = load_root_ns core,
    /// Loading a root, possibly the current one, and dropping the entries of its tag.
    load_root_and_discard: Time = load_root_and_discard_ns core,
    /// Invalidating one page, or all consecutive pages that one operation can name.
    invalidate_page: Time = invalidate_page_ns core,
    /// Number of consecutive pages that one operation can name.
    pages_per_invalidation: usize = pages_per_invalidation,
    /// Invalidating everything, global translations included.
    invalidate_all: Time = invalidate_all_ns core,
    /// Number of pages above which a flush drops all entries of a tag instead.
    flush_ceiling: usize = flush_ceiling,
}

section! {
    /// Cost of an interrupt, including the part of the hypervisor where CPUs are virtual.
    pub Interrupt, InterruptFile, "interrupt":
    /// Writing the command to the interrupt controller, for each group of targets.
    send: Time = send_ns core,
    /// Size of a group. One command can reach all targets in the same group.
    targets_per_send: usize = targets_per_send,
    /// From the command to a CPU of the same socket.
    deliver_socket: Time = deliver_socket_ns,
    /// From the command to a CPU of another socket.
    deliver_system: Time = deliver_system_ns,
    /// From the interrupted instruction to the handler: the entry of the CPU and of the kernel.
    entry: Time = entry_ns core,
    /// Acknowledging the interrupt at the controller, before the handler does its work.
    acknowledge: Time = acknowledge_ns core,
    /// From the handler back to the interrupted instruction.
    exit: Time = exit_ns core,
}

section! {
    /// Additional cost of an interrupt where CPUs are virtual.
    pub(super) Virtualization, VirtualizationFile, "virtualization":
    /// The sender's exit to the hypervisor, for each command to the controller.
    send_exit: Time = send_exit_ns core,
    /// From the hypervisor's own interrupt to the target's: VM exit, injection and VM entry.
    inject: Time = inject_ns core,
    /// The target's exit to the hypervisor when it acknowledges the interrupt.
    acknowledge_exit: Time = acknowledge_exit_ns core,
}

section! {
    /// Cost of the kernel's own work, in addition to its accesses to shared memory.
    pub Kernel, KernelFile, "kernel":
    /// A system call: entry, dispatch, exit.
    syscall: Time = syscall_ns core,
    /// A page fault: exception, search for the cause, return.
    fault: Time = fault_ns core,
    /// Creating, splitting, joining or removing areas of an address space.
    areas: Time = areas_ns core,
    /// Finding the area of a call that changes none, such as `madvise`.
    find_area: Time = find_area_ns core,
    /// Preparing a flush that the memory manager requests, besides what the design does.
    flush: Time = flush_ns core,
    /// Reading one page-table entry in a loop.
    entry: Time = entry_ns core,
    /// Examining one page of a file around the page of a fault, mapped or not.
    around_fault: Time = around_fault_ns core,
    /// Adding a new page to the kernel's records, besides allocating and filling it.
    new_page: Time = new_page_ns core,
    /// Removing one page from the kernel's records.
    unmap_page: Time = unmap_page_ns core,
    /// Copying one page-table entry at a fork.
    fork_entry: Time = fork_entry_ns core,
    /// Allocating or freeing a frame.
    frame: Time = frame_ns core,
    /// Filling a page with zeros.
    clear_page: Time = clear_page_ns core,
    /// Copying a page.
    copy_page: Time = copy_page_ns core,
    /// Moving a page to another node, besides its copy: isolating it, removing and restoring its
    /// mappings, and the memory's latency.
    move_page: Time = move_page_ns core,
    /// Switching from one thread to another, without the cost of the address space.
    context_switch: Time = context_switch_ns core,
    /// Making a sleeping thread runnable.
    wake: Time = wake_ns core,
    /// Moving a running thread to another CPU (`sched_setaffinity`), without the context switches.
    migrate: Time = migrate_ns core,
    /// Longest time for which a thread runs while others wait for its CPU.
    timeslice: Time = timeslice_us,
}

section! {
    /// Hardware that broadcasts invalidations to every CPU's TLB (TLBI Inner Shareable, INVLPGB).
    pub Broadcast, BroadcastFile, "broadcast":
    /// One operation, on the CPU that issues it.
    issue: Time = issue_ns,
    /// From the issue until the operation is complete on every CPU of the socket, if no other CPU
    /// issues any: the latency of the barrier.
    complete: Time = complete_ns,
    /// The time by which it is complete later where the machine has several sockets.
    cross: Time = cross_ns,
    /// Time for which one operation occupies the interconnect, which serves one at a time.
    occupy: Time = occupy_ns,
    /// Time that one operation takes from each other CPU that is running.
    victim: Time = victim_ns,
    /// Number of consecutive pages that one operation can name.
    pages_per_operation: usize = pages_per_operation,
    /// Number of operations above which all entries of a tag are named instead.
    page_ceiling: usize = page_ceiling,
}

section! {
    /// TLBI domains: sets of CPUs that a broadcast of a whole tag can name, in place of every CPU.
    pub Domains, DomainsFile, "domains":
    /// Number of consecutive CPUs of each domain.
    cpus: usize = cpus,
    /// Number of domains above which a broadcast to every CPU is used instead: each domain takes an
    /// operation.
    most: usize = most,
    /// From the issue until an operation is complete on the CPUs of a domain in the issuer's
    /// socket, if no other CPU issues any.
    complete: Time = complete_ns,
    /// Time for which one operation occupies the interconnect.
    occupy: Time = occupy_ns,
}

section! {
    /// Firmware that makes a set of CPUs invalidate (SBI remote fence).
    pub RemoteFence, RemoteFenceFile, "remote_fence":
    /// The call, without the cost of each target.
    call: Time = call_ns,
    /// The caller's cost for each target.
    each: Time = each_ns,
    /// Time that a fence takes from each target, in addition to the invalidations.
    target: Time = target_ns,
    /// From the end of the call until an otherwise idle target has invalidated.
    deliver: Time = deliver_ns,
    /// Number of pages above which the firmware makes the targets drop all entries of the tag.
    page_ceiling: usize = page_ceiling,
}

section! {
    /// Access to files.
    pub Storage, StorageFile, "storage":
    /// The kernel's work for a page that is read or written, on the CPU that requests it: finding
    /// its block, and all other work of the page cache and the file system.
    page: Time = page_ns core,
    /// Time to read a page that was written before, during which the CPU is free.
    read: Time = read_us,
    /// Time to write a page, during which the CPU is free.
    write: Time = write_us,
}

/// The times of the core, by section: they scale with its clock if two files state theirs as
/// `clock.ghz`. Delivery of interrupts, memory and other sockets have clocks of their own.
pub(super) const TIMES_OF_CORE: [(&str, &[&str]); 11] = [
    TopologyFile::OF_CORE,
    CacheFile::OF_CORE,
    FarFile::OF_CORE,
    TlbFile::OF_CORE,
    InterruptFile::OF_CORE,
    VirtualizationFile::OF_CORE,
    KernelFile::OF_CORE,
    BroadcastFile::OF_CORE,
    DomainsFile::OF_CORE,
    RemoteFenceFile::OF_CORE,
    StorageFile::OF_CORE,
];

/// Behaviour of CPUs that have no thread to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Idle {
    /// They poll for a thread (`idle=poll`).
    Poll,
    /// They wait for an interrupt, in states that get deeper with time.
    States(Vec<IdleState>),
}

/// An idle state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleState {
    /// Name of the state.
    pub name: String,
    /// Idle time after which a CPU enters this state.
    pub after: Time,
    /// Time to wake from this state.
    pub exit: Time,
    /// Effect on the TLB.
    pub tlb: TlbInIdle,
}

/// Effect of an idle state on the TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlbInIdle {
    /// The TLB keeps its entries.
    Kept,
    /// The TLB loses its entries.
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
    pub(super) scheduler: Policy,
    #[serde(default)]
    pub(super) stale_writes: StaleWrites,
    #[serde(default)]
    pub(super) mixed_sizes: MixedSizes,
    /// Factor for the times of `[interrupt]`, `[virtualization]`, `[remote_fence]`, `[kernel]` and
    /// `[storage]`, if they were not measured on this machine. 1 if missing.
    scale: Option<ScaleFile>,
    /// The sockets that are near each other; all if missing.
    #[serde(default)]
    pub(super) socket_links: Links,
    topology: TopologyFile,
    pub(super) cache: CacheFile,
    pub(super) far: Option<FarFile>,
    pub(super) tlb: TlbFile,
    interrupt: InterruptFile,
    virtualization: Option<VirtualizationFile>,
    pub(super) broadcast: Option<BroadcastFile>,
    pub(super) domains: Option<DomainsFile>,
    pub(super) remote_fence: Option<RemoteFenceFile>,
    /// Missing if storage takes no time.
    pub(super) storage: Option<StorageFile>,
    /// Missing if CPUs poll.
    #[serde(default)]
    idle: Vec<IdleStateFile>,
    pub(super) kernel: KernelFile,
    /// The clock of the cores, by which files that extend this one scale its times.
    clock: Option<ClockFile>,
    /// Times of programs on the real machine, in nanoseconds.
    #[serde(default)]
    measured: BTreeMap<String, Sourced>,
    /// Missing if no time on the machine is known that was not used to make the file.
    error: Option<ErrorFile>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ErrorFile {
    time_percent: Sourced,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClockFile {
    ghz: Sourced,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScaleFile {
    software_times: Sourced,
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
    /// The costs of interrupts, including those of a hypervisor.
    pub(super) fn interrupt(&self) -> Interrupt {
        let scale = self.scale();
        let mut interrupt = self.interrupt.resolve(scale);
        if let Some(exits) = self.virtualization.as_ref().map(|file| file.resolve(scale)) {
            interrupt.send += exits.send_exit;
            interrupt.deliver_socket += exits.inject;
            interrupt.deliver_system += exits.inject;
            interrupt.acknowledge += exits.acknowledge_exit;
        }
        interrupt
    }

    /// The costs between sockets without a link; those of other sockets if the file has none.
    pub(super) fn far(&self) -> Far {
        let scale = self.scale();
        let Some(far) = &self.far else {
            let (cache, interrupt) = (self.cache.resolve(1.0), self.interrupt());
            return Far { line: cache.system, deliver: interrupt.deliver_system };
        };
        let inject = self.virtualization.as_ref().map(|file| file.resolve(scale).inject);
        let deliver = far.resolve(scale).deliver + inject.unwrap_or(Time::ZERO);
        Far { line: far.resolve(1.0).line, deliver }
    }

    /// The factor for the times of software.
    pub(super) fn scale(&self) -> f64 {
        self.scale.as_ref().map_or(1.0, |scale| scale.software_times.value)
    }

    pub(super) fn topology(&self) -> Topology {
        let sizes = self.topology.resolve(1.0);
        Topology::new(
            sizes.sockets,
            sizes.clusters_per_socket,
            sizes.cores_per_cluster,
            sizes.threads_per_core,
        )
        .with_links(self.socket_links)
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
        let mut numbers = Vec::new();
        self.topology.add_numbers(&mut numbers);
        if let Some(scale) = &self.scale {
            numbers.push(scale.software_times.number("scale", "software_times"));
        }
        self.cache.add_numbers(&mut numbers);
        self.far.iter().for_each(|file| file.add_numbers(&mut numbers));
        self.tlb.add_numbers(&mut numbers);
        self.interrupt.add_numbers(&mut numbers);
        self.virtualization.iter().for_each(|file| file.add_numbers(&mut numbers));
        self.broadcast.iter().for_each(|file| file.add_numbers(&mut numbers));
        self.domains.iter().for_each(|file| file.add_numbers(&mut numbers));
        self.remote_fence.iter().for_each(|file| file.add_numbers(&mut numbers));
        self.storage.iter().for_each(|file| file.add_numbers(&mut numbers));
        for state in &self.idle {
            let section = format!("idle.{}", state.name);
            numbers.push(state.after_us.number(&section, "after_us"));
            numbers.push(state.exit_us.number(&section, "exit_us"));
        }
        self.kernel.add_numbers(&mut numbers);
        numbers.extend(self.clock.iter().map(|clock| clock.ghz.number("clock", "ghz")));
        numbers.extend(self.error.iter().map(|it| it.time_percent.number("error", "time_percent")));
        numbers.extend(self.measured());
        numbers
    }

    pub(super) fn time_error_percent(&self) -> Option<u64> {
        self.error.as_ref().map(|error| error.time_percent.value as u64)
    }

    pub(super) fn measured(&self) -> Vec<Number> {
        self.measured.iter().map(|(key, number)| number.number("measured", key)).collect()
    }
}
