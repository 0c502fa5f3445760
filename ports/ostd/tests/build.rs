//! Passes the linker script of the comparison's kernel to the linker.

fn main() {
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    // The linker runs in this folder.
    println!("cargo:rustc-link-arg-bins=-L../kernel");
    println!("cargo:rustc-link-arg-bins=-T{arch}.ld");
    println!("cargo:rerun-if-changed=../kernel/{arch}.ld");
    println!("cargo:rerun-if-changed=../kernel/sections.ld");
}
