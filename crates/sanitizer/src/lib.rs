//! A TLB that never forgets, beside QEMU's.
//!
//! Emulators hide missing flushes: they evict entries, and invalidate more than they are asked to.
//! The sanitizer keeps, for each CPU, every translation that the CPU has used and may still hold by
//! the [rules](shootdown_profile::Profile) of its architecture. When a frame gets a new owner, each
//! old translation to it is marked, and a CPU that can use a marked one is reported.
//!
//! # Reading order
//!
//! [`translation`] and [`invalidation`] are the entries and what removes them; [`arch`] reads both
//! from instructions, registers and page tables. `held` are the entries of one tag, [`shadow`] the
//! TLB of one CPU, [`frames`] the CPUs that hold a frame, `gone` the frames that have lost a
//! mapping, `speculation` the page tables that a CPU may have walked without an access, [`report`]
//! the result, [`hook`] the events that a user names, and [`sanitizer`] the events of a guest. None
//! of these uses QEMU: the plugin calls them.

#![warn(clippy::pedantic)]
#![allow(
    clippy::module_name_repetitions,
    clippy::must_use_candidate,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::precedence,
    reason = "names are qualified by their module; addresses and registers are words"
)]

// In reading order.
pub mod translation;
pub mod invalidation;
pub mod report;
pub mod hook;
pub mod arch;
mod held;
pub mod shadow;
pub mod frames;
mod gone;
mod speculation;
mod cpu;
pub mod sanitizer;
mod plugin;

pub use cpu::Use;

/// A program in C that exposes missing flushes of the kernel that runs it: threads use pages
/// without a fault, while another one replaces and protects them.
pub const EXPOSING_PROGRAM: &str = include_str!("../expose.c");
