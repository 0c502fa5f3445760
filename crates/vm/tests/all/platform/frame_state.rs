//! The record of a frame.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

pub(super) const FREE: u8 = 0;
pub(super) const TABLE: u8 = 1;
pub(super) const PAGE: u8 = 2;
pub(super) const GARBAGE: u64 = 0xdead_beef_dead_beef;

#[derive(Default)]
pub(super) struct FrameState {
    pub(super) kind: AtomicU8,
    pub(super) users: AtomicU64,
    pub(super) word: AtomicU64,
    /// The CPUs whose replicas link to a table.
    pub(super) sharers: AtomicU64,
    pub(super) entries: OnceLock<Box<[AtomicU64; 512]>>,
    /// `true` if the frame is a table that was emptied for good.
    pub(super) is_emptied: AtomicBool,
}

impl FrameState {
    pub(super) fn become_page(&self) {
        self.word.store(GARBAGE, Relaxed);
        self.users.store(1, Relaxed);
        self.kind.store(PAGE, Release);
    }
}
