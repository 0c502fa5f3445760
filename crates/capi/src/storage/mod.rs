//! Room for the engine's types, which C allocates.

#![expect(unsafe_code, reason = "the engine's values live in memory that C owns")]

use core::mem::MaybeUninit;

use shootdown::{
    Batch, CleanBatch, CpuBits, CpuState, ExtentSet, LazyEntryPredictor, Pending, PrimaryChanges,
    SecondaryFault, SentBatch, Space, VcpuWord,
};
use shootdown_hw::x86_64::kvm::StealTime;

use crate::machine::{self, Machine, MachineOf};

pub mod sizes;

/// The spaces of a C kernel: each stays in place until it is reclaimed.
pub(crate) type SpaceRef = &'static Space<Machine>;

/// The bag of a batch, whose pages the C kernel keeps itself.
#[derive(Debug, Default)]
pub(crate) struct NoBag;

/// A batch of a C kernel.
#[derive(Debug)]
pub(crate) struct CBatch {
    pub(crate) batch: Batch<SpaceRef, NoBag>,
    /// The batch was sent, and not waited for.
    pub(crate) is_sent: bool,
}

/// Pages of a C kernel that are flushed when their frames are reused.
#[derive(Debug)]
#[cfg_attr(not(feature = "reuse"), expect(dead_code, reason = "the header has its size"))]
pub(crate) struct CUnflushed {
    pub(crate) batch: CleanBatch<SpaceRef, NoBag>,
    /// The flush was counted. Nothing may be added any more.
    pub(crate) is_deferred: bool,
    /// The flush was sent, and not waited for.
    pub(crate) is_sent: bool,
}

type Sent<B> = SentBatch<'static, 'static, MachineOf<B>, &'static Space<MachineOf<B>>, NoBag>;

/// A batch of a C kernel that was sent.
pub(crate) struct CSentBatch<B: CpuBits + Send + Sync + 'static> {
    /// Initialised if there is a flag.
    pub(crate) sent: MaybeUninit<Sent<B>>,
    /// The `is_sent` of the batch, or of the collection that is reused; `None` after the wait, and
    /// in zeroed memory.
    pub(crate) is_sent: Option<&'static mut bool>,
}

/// Room for a value of the engine.
pub(crate) trait Storage: Sized {
    /// The engine's type.
    type Value: 'static;

    /// Writes a first value.
    ///
    /// # Safety
    ///
    /// `place` must be valid for writes, and aligned.
    ///
    /// # Panics
    ///
    /// As [`get`](Self::get).
    #[inline]
    #[track_caller]
    unsafe fn init(place: *mut Self, value: Self::Value) {
        // SAFETY: the caller promises the same.
        unsafe { Self::uninit(place).as_mut_ptr().write(value) }
    }

    /// The place of a first value.
    ///
    /// # Safety
    ///
    /// As [`init`](Self::init).
    ///
    /// # Panics
    ///
    /// As [`get`](Self::get).
    #[inline]
    #[track_caller]
    unsafe fn uninit<'a>(place: *mut Self) -> &'a mut MaybeUninit<Self::Value> {
        check(place);
        // SAFETY: `Self` has the size and at least the alignment of the value.
        unsafe { &mut *place.cast() }
    }

    /// The value.
    ///
    /// # Safety
    ///
    /// `place` must have been initialised, and nothing may move, write or free it during `'a`,
    /// except through the engine.
    ///
    /// # Panics
    ///
    /// If `place` is null or not aligned.
    #[inline]
    #[track_caller]
    unsafe fn get<'a>(place: *const Self) -> &'a Self::Value {
        check(place);
        // SAFETY: the caller promises what a reference requires.
        unsafe { &*place.cast() }
    }

    /// The value, exclusively.
    ///
    /// # Safety
    ///
    /// As [`get`](Self::get), and nothing else may access `place` during `'a`.
    ///
    /// # Panics
    ///
    /// As [`get`](Self::get).
    #[inline]
    #[track_caller]
    unsafe fn get_mut<'a>(place: *mut Self) -> &'a mut Self::Value {
        check(place);
        // SAFETY: the caller promises what a reference requires.
        unsafe { &mut *place.cast() }
    }
}

/// Checks what a pointer shows by itself.
///
/// # Panics
///
/// If the pointer is null, or not aligned.
#[inline]
#[track_caller]
pub(crate) fn check<T>(place: *const T) {
    let is_valid = !place.is_null() && place.is_aligned();
    assert!(is_valid || !cfg!(feature = "checks"), "a pointer is null, or not aligned");
}

macro_rules! storage {
    ($name:ident, $words:ident, $value:ty) => {
        /// Number of 64-bit words.
        pub const $words: usize = size_of::<$value>() / 8;

        impl Storage for $name {
            type Value = $value;
        }

        const _: () = assert!(size_of::<$name>() == size_of::<$value>());
        const _: () = assert!(align_of::<$name>() >= align_of::<$value>());
    };
}

storage!(CpuStorage, SHOOTDOWN_CPU_WORDS, CpuState<Machine>);
storage!(SpaceStorage, SHOOTDOWN_SPACE_WORDS, Space<Machine>);
// `None`: a flush that was begun before there was an engine.
storage!(PendingStorage, SHOOTDOWN_PENDING_WORDS, Option<Pending<'static, Machine>>);
storage!(LazyPredictorStorage, SHOOTDOWN_LAZY_PREDICTOR_WORDS, LazyEntryPredictor);
storage!(StealTimeStorage, SHOOTDOWN_STEAL_TIME_WORDS, StealTime);
storage!(VcpuStorage, SHOOTDOWN_VCPU_WORDS, VcpuWord<Machine>);
storage!(ExtentsStorage, SHOOTDOWN_EXTENTS_WORDS, ExtentSet);
storage!(BatchStorage, SHOOTDOWN_BATCH_WORDS, CBatch);
storage!(SentBatchStorage, SHOOTDOWN_SENT_BATCH_WORDS, CSentBatch<machine::CpuBits>);
storage!(UnflushedStorage, SHOOTDOWN_UNFLUSHED_WORDS, CUnflushed);
storage!(PrimaryChangesStorage, SHOOTDOWN_PRIMARY_CHANGES_WORDS, PrimaryChanges<Machine>);
storage!(FaultStorage, SHOOTDOWN_SECONDARY_FAULT_WORDS, SecondaryFault);

/// The engine's state of one CPU. Allocate one for each CPU, in memory near that CPU, and
/// initialise it with `shootdown_cpu_init`.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct CpuStorage {
    words: [u64; SHOOTDOWN_CPU_WORDS],
}

/// The engine's part of an address space. Put it into your structure of the address space, and
/// initialise it with `shootdown_space_init`. It must not move after the first
/// `shootdown_switch` to it.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct SpaceStorage {
    words: [u64; SHOOTDOWN_SPACE_WORDS],
}

/// A flush that was sent and may not yet be done, usually on the stack. Every flush function
/// initialises it. Pass it to `shootdown_wait` before the pages are reused: C has no destructor
/// that would do so.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct PendingStorage {
    words: [u64; SHOOTDOWN_PENDING_WORDS],
}

/// The extents of one operation, for one flush.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct ExtentsStorage {
    words: [u64; SHOOTDOWN_EXTENTS_WORDS],
}

/// Unmapped pages of up to 32 spaces that were not flushed yet.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct BatchStorage {
    words: [u64; SHOOTDOWN_BATCH_WORDS],
}

/// A batch whose flush was sent.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct SentBatchStorage {
    words: [u64; SHOOTDOWN_SENT_BATCH_WORDS],
}

/// Clean pages of up to 32 spaces, which are flushed when their frames are reused.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct UnflushedStorage {
    words: [u64; SHOOTDOWN_UNFLUSHED_WORDS],
}

/// The changes of primary entries that concern one secondary table.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct PrimaryChangesStorage {
    words: [u64; SHOOTDOWN_PRIMARY_CHANGES_WORDS],
}

/// A fault of a secondary table, which has not installed its entry yet.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct FaultStorage {
    words: [u64; SHOOTDOWN_SECONDARY_FAULT_WORDS],
}

/// The word of a virtual CPU, which its hypervisor and the flushing CPUs of its guest share.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct VcpuStorage {
    words: [u64; SHOOTDOWN_VCPU_WORDS],
}

/// The predictor of a CPU of whether to enter lazy.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct LazyPredictorStorage {
    words: [u64; SHOOTDOWN_LAZY_PREDICTOR_WORDS],
}

/// The record of a virtual CPU under KVM on x86-64, which KVM writes (`struct kvm_steal_time`).
#[derive(Debug)]
#[repr(C, align(64))]
pub struct StealTimeStorage {
    words: [u64; SHOOTDOWN_STEAL_TIME_WORDS],
}
