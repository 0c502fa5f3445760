//! The numbers with which the engine, the kernel and the hardware name CPUs, spaces, page tables
//! and tags.

/// The number of a CPU. The kernel numbers CPUs from 0, without large gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(pub u32);

impl CpuId {
    /// The number as an index into per-CPU arrays.
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The id of a [`Space`](crate::Space): never 0, and unique among the spaces of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(pub(crate) u64);

impl SpaceId {
    /// The id as a number: 1 for the first space of the engine. A CPU gives its spaces 64 numbers
    /// in a row, and then those of another block.
    #[must_use]
    #[inline]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// The physical address of the top level of a page table, as the hardware loads it (CR3, TTBR0,
/// satp). The engine only passes it to [`Machine::load`](crate::Machine::load).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Root(pub u64);

/// The number with which the hardware distinguishes the translations of address spaces (x86 PCID,
/// Arm and RISC-V ASID). [`Tagging`](crate::Tagging) describes how spaces get their tags.
///
/// Tag 0 is [`KERNEL`](Self::KERNEL).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u16);

impl Tag {
    /// The tag under which the kernel's own root is loaded, and the only tag on a machine without
    /// tags.
    pub const KERNEL: Self = Self(0);
}

/// The place of a command to devices among all commands of the machine. See
/// [`issue_to_devices`](crate::Machine::issue_to_devices).
///
/// Tickets are ordered: when the commands of one are done, so are those of all lower ones. For a
/// kernel with one queue, a ticket is a number that counts its synchronising commands. With several
/// queues, count their commands together, and let a ticket be done when all commands up to it are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceTicket(pub u64);

impl DeviceTicket {
    /// The ticket of commands that are done when they are issued.
    pub const DONE: Self = Self(0);
}
