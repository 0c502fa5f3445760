//! The plugin: QEMU's callbacks, and the sanitizer's view of QEMU.

mod api;
mod options;
mod qemu;
mod places;
mod callbacks;
