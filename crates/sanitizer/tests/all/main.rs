//! The core of the sanitizer on memory that a test writes, without QEMU.

mod guest;
mod instructions;
mod modes;
mod owners;
mod pitfalls;
mod walks;
