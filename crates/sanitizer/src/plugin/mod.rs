//! The plugin: QEMU's callbacks, and the sanitizer's view of QEMU.

mod api;
mod callbacks;
mod options;
mod qemu;
